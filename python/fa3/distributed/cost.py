# SPDX-License-Identifier: Apache-2.0
"""What a schedule costs: pairs, bytes, and a machine's time for them. The model behind "auto".

A stage's keys travel while the stage before is computed, so a stage takes the longer of both; heads
are traded before and after, which nothing hides. benchmarks/context_parallel.py --predict prints
the same model for many GPUs.
"""

from typing import NamedTuple

from fa3.distributed.cover import Call
from fa3.distributed.layout import count, pieces
from fa3.distributed.schedule import Schedule, Stage
from fa3.distributed.stages import Sizes

SAMPLED_RANKS = 8  # of larger groups: these many, spread evenly


class Machine(NamedTuple):
    """Rates of one rank: what its kernels do, and what its links carry each way.

    Teams of up to `node` neighbours trade heads by the links of their node.
    """

    name: str
    forward_flops: float  # a second, of long calls
    backward_flops: float
    bytes_per_second: float  # of keys and gradients
    node: int
    trade_bytes_per_second: float  # of a rank's heads within a node, those that stay too
    memory_bytes_per_second: float
    merged_bytes_per_second: float  # of float32 that is read, added to and written
    seconds_a_message: float
    seconds_a_range: float  # of rows that lie apart: each is copied for itself
    seconds_a_forward: float  # of a call, beside its FLOPs
    seconds_a_backward: float
    seconds_a_trade: float  # of both directions


# As measured (docs/lab/context-parallel.md), but for a message's latency and the network, which are
# assumed, and all of the CPU.
H200_NVLINK = Machine(
    "H200, NVLink",
    forward_flops=807e12,
    backward_flops=680e12,
    bytes_per_second=363e9,
    node=8,
    trade_bytes_per_second=232e9,
    memory_bytes_per_second=4.19e12,
    merged_bytes_per_second=2.6e12,
    seconds_a_message=20e-6,
    seconds_a_range=5e-6,
    seconds_a_forward=30e-6,
    seconds_a_backward=60e-6,
    seconds_a_trade=100e-6,
)
H200_NETWORK = H200_NVLINK._replace(name="H200, 400 Gb/s", bytes_per_second=45e9)
CPU = Machine("CPU", 100e9, 80e9, 2e9, 1, 2e9, 10e9, 10e9, 100e-6, 5e-6, 50e-6, 50e-6, 400e-6)


class Heads(NamedTuple):
    batch: int
    queries: int
    keys: int
    dim: int
    dim_v: int
    bytes_per_element: int


class Seconds(NamedTuple):
    """Times of the slowest rank: of the whole, and of its calls alone."""

    forward: float
    backward: float
    forward_calls: float
    backward_calls: float

    def of(self, gradients: bool) -> float:
        return self.forward + self.backward if gradients else self.forward


def predict(
    sizes: Sizes,
    team: int,
    layout: str,
    lengths: tuple[int, ...],
    mask,
    heads: Heads,
    machine: Machine,
) -> Seconds:
    """Seconds of both passes. team: ranks that trade heads; sizes: of the stages over the teams."""
    schedule = Schedule(sizes, layout, lengths, mask, team=team)
    world = schedule.world * team
    local = heads._replace(queries=heads.queries // team, keys=heads.keys // team)
    traded = 0.0
    if team > 1:
        rows = max(count(pieces(layout, lengths, world, r)) for r in (0, world - 1))
        row = heads.queries * (heads.dim + heads.dim_v) + heads.keys * (heads.dim + heads.dim_v)
        had = heads.batch * rows * row * heads.bytes_per_element
        traded = had / machine.trade_bytes_per_second  # putting heads into order takes most of it
        if team > machine.node:
            traded = max(traded, had * (team - 1) / team / machine.bytes_per_second)
        traded += machine.seconds_a_trade
    step = max(schedule.world // SAMPLED_RANKS, 1)
    ranks = range(0, schedule.world, step)
    forward = [pass_of(schedule, rank, local, machine, backward=False) for rank in ranks]
    backward = [pass_of(schedule, rank, local, machine, backward=True) for rank in ranks]
    (f, f_calls), (b, b_calls) = max(forward), max(backward)
    return Seconds(f + traded, b + traded, f_calls, b_calls)


def pass_of(schedule: Schedule, rank: int, heads: Heads, machine: Machine, *, backward: bool):
    """(seconds, seconds of the calls alone) of a rank."""
    stages = [schedule.stage(rank, index) for index in range(schedule.num_stages)]
    # Rows that several calls have are float32 between them.
    wide = not schedule.is_apart and sum(len(stage.calls) for stage in stages) > 1
    calls = [stage_calls(stage, heads, machine, backward, wide) for stage in stages]
    messages = [stage_messages(stage, rank, heads, machine, backward) for stage in stages]
    total = messages[0]
    for index, seconds in enumerate(calls):
        total += max(seconds, messages[index + 1]) if index + 1 < len(calls) else seconds
    if backward:
        total += last_way_home(schedule, rank, messages[-1] / 2, heads, machine)
        total += sum(additions(stage, rank, heads, machine) for stage in stages)
        if not schedule.is_apart:
            total += rounding(schedule.num_rows(rank), heads, machine)
    return total, sum(calls)


def last_way_home(
    schedule: Schedule, rank: int, seconds: float, heads: Heads, machine: Machine
) -> float:
    """What the last gradients add to a backward: own rows may be computed meanwhile."""
    row = heads.batch * heads.keys * (heads.dim + heads.dim_v) * heads.bytes_per_element
    held = schedule.held_back(rank, row)
    if held is None:
        return seconds
    products = 2 * heads.batch * heads.queries * (3 * heads.dim + 2 * heads.dim_v)
    meanwhile = products * pairs(held[1]) / machine.backward_flops
    return machine.seconds_a_backward + max(0.0, seconds - meanwhile)


def stage_calls(stage: Stage, heads: Heads, machine: Machine, backward: bool, wide: bool) -> float:
    products = 3 * heads.dim + 2 * heads.dim_v if backward else heads.dim + heads.dim_v
    rate = machine.backward_flops if backward else machine.forward_flops
    seconds = 0.0
    for call in stage.calls:
        flops = 2 * heads.batch * heads.queries * pairs(call) * products
        seconds += flops / rate
        seconds += machine.seconds_a_backward if backward else machine.seconds_a_forward
        if wide:  # read and written in float32
            rows = heads.batch * (call.rows[1] - call.rows[0])
            width = heads.dim if backward else heads.dim_v
            seconds += 2 * 4 * rows * heads.queries * width / machine.merged_bytes_per_second
    return seconds


def stage_messages(stage: Stage, rank: int, heads: Heads, machine: Machine, backward: bool):
    """Seconds until the keys are where calls read them, and gradients are back."""
    received = received_keys(stage, rank)
    if not received:
        return 0.0
    row = heads.batch * heads.keys * (heads.dim + heads.dim_v)
    size, times = heads.bytes_per_element, 1
    if backward:  # gradients of one call go back in its type, sums in float32
        size += heads.bytes_per_element if len(stage.calls) == 1 else 4
        times = 3  # keys come, gradients go, and are added
    ranges = 2 * times * sum(len(fetch.rows) for fetch in stage.fetches)  # of keys and of values
    own = 2 * row * (stage.num_keys - received) * heads.bytes_per_element
    return (
        received * row * size / machine.bytes_per_second
        + own / machine.memory_bytes_per_second
        + machine.seconds_a_message
        + ranges * machine.seconds_a_range
    )


def additions(stage: Stage, rank: int, heads: Heads, machine: Machine) -> float:
    """Seconds for adding what comes back, about as much as was received."""
    row = heads.batch * heads.keys * (heads.dim + heads.dim_v)
    return 3 * 4 * received_keys(stage, rank) * row / machine.merged_bytes_per_second


def rounding(rows: int, heads: Heads, machine: Machine) -> float:
    """Seconds for gradients of a rank's keys that are float32 sums first: 2 bytes more written, 4
    read, 2 written, of each number."""
    row = heads.batch * heads.keys * (heads.dim + heads.dim_v)
    return 8 * rows * row / machine.memory_bytes_per_second


def received_keys(stage: Stage, rank: int) -> int:
    """Rows of keys that come from other ranks."""
    return sum(b - a for fetch in stage.fetches if fetch.source != rank for a, b in fetch.rows)


def pairs(call: Call) -> int:
    """Query-key pairs that a call multiplies."""
    total = 0
    left, right = call.window
    for (a, b), (c, d) in call.sequences():
        rows, keys = b - a, d - c
        diagonal = keys - rows + call.shift
        above = keys * rows if right < 0 else keys_up_to(rows, keys, diagonal + right)
        below = 0 if left < 0 else keys_up_to(rows, keys, diagonal - left - 1)
        total += above - below
    return total


def keys_up_to(rows: int, keys: int, diagonal: int) -> int:
    """Pairs with key <= row + diagonal."""
    begin = min(max(0, -diagonal - 1), rows)
    end = min(max(begin, keys - diagonal - 1), rows)
    inside = (end - begin) * (diagonal + 1) + (begin + end - 1) * (end - begin) // 2
    return inside + (rows - end) * keys

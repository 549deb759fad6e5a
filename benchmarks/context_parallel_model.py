# SPDX-License-Identifier: Apache-2.0
"""What context parallelism should take on many GPUs, by the model behind method="auto".

fa3/distributed/cost.py has the model and its assumptions: rates of one GPU's kernels and links.
"""

from fa3.distributed import choose, cost, stages
from fa3.distributed.cover import Mask

CAUSAL = Mask(None, 0)
NODE = 8  # GPUs that NVLink joins


def machine_of(world: int) -> cost.Machine:
    """Groups within a node have NVLink; of larger ones, the slowest link counts for all."""
    return cost.H200_NVLINK if world <= NODE else cost.H200_NETWORK


COLUMNS = ["ring", "ring, growing", "all_gather", "ulysses", "hybrid"]


def print_predictions(worlds: list[int], tokens: list[int], heads: list, head_dim: int) -> None:
    """A Markdown table: what part of the ideal each method reaches, forward and both passes."""
    for queries, keys in heads:
        print(f"\nHeads {queries}:{keys}, d{head_dim}, causal, bf16; forward, both passes:\n")
        print(f"| GPUs | links | tokens a GPU | {' | '.join(COLUMNS)} |\n|{'---|' * 8}")
        of = cost.Heads(1, queries, keys, head_dim, head_dim, 2)
        for world in worlds:
            for rows in tokens:
                cells = [cell(column, world, rows, of) for column in COLUMNS]
                links = machine_of(world).name.partition(", ")[2]
                print(f"| {world} | {links} | {rows} | {' | '.join(cells)} |", flush=True)


def schedules(column: str, world: int, kv_heads: int) -> list[tuple[int, stages.Sizes]]:
    """(ranks of a team, sizes of stages) that a column chooses from."""
    if column == "ring, growing":
        return [(1, stages.growing(world))] if world > 2 else []
    found = [(t, sizes) for name, t, sizes in choose.candidates(world, kv_heads) if name == column]
    return [one for one in found if column != "ring" or one[1] == stages.ring(world)]


def cell(column: str, world: int, rows: int, heads: cost.Heads) -> str:
    found = [efficiency(one, world, rows, heads) for one in schedules(column, world, heads.keys)]
    if not found:
        return "-"
    forward, both = max(found, key=lambda pair: pair[1])
    return f"{100 * forward:.0f}%, {100 * both:.0f}%"


def efficiency(of: tuple[int, stages.Sizes], world: int, rows: int, heads: cost.Heads):
    """The ideal's time over the predicted: forward, and of both passes."""
    machine, total = machine_of(world), rows * world
    team, sizes = of
    seconds = cost.predict(sizes, team, "zigzag", (total,), CAUSAL, heads, machine)
    products = total * (total + 1) * heads.queries / world  # 2 FLOPs a pair and column
    forward = products * (heads.dim + heads.dim_v) / machine.forward_flops
    forward += machine.seconds_a_forward
    backward = products * (3 * heads.dim + 2 * heads.dim_v) / machine.backward_flops
    backward += machine.seconds_a_backward
    return forward / seconds.forward, (forward + backward) / (seconds.forward + seconds.backward)

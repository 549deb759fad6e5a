# SPDX-License-Identifier: Apache-2.0
"""What context parallelism should take on many GPUs, by the model behind method="auto".

fa3/distributed/cost.py has the model and its assumptions: rates of one GPU's kernels and links.
"""

from fa3.distributed import choose, cost
from fa3.distributed.cover import Mask

CAUSAL = Mask(None, 0)
NODE = 8  # GPUs that NVLink joins


def machine_of(world: int) -> cost.Machine:
    """Groups within a node have NVLink; of larger ones, the slowest link counts for all."""
    return cost.H200_NVLINK if world <= NODE else cost.H200_NETWORK


def print_predictions(worlds: list[int], tokens: list[int], heads: list, head_dim: int) -> None:
    """A Markdown table: what part of the ideal each method reaches, forward and both passes."""
    for queries, keys in heads:
        print(f"\nHeads {queries}:{keys}, d{head_dim}, causal, bf16; forward, both passes:\n")
        methods = ["ring", "all_gather", "ulysses", "hybrid"]
        print(f"| GPUs | links | tokens a GPU | {' | '.join(methods)} |\n|{'---|' * 7}")
        of = cost.Heads(1, queries, keys, head_dim, head_dim, 2)
        for world in worlds:
            for rows in tokens:
                cells = [cell(method, world, rows, of) for method in methods]
                links = machine_of(world).name.partition(", ")[2]
                print(f"| {world} | {links} | {rows} | {' | '.join(cells)} |")


def cell(method: str, world: int, rows: int, heads: cost.Heads) -> str:
    teams = [team for name, team in choose.candidates(world, heads.keys) if name == method]
    if not teams:
        return "-"
    found = [efficiency(method, team, world, rows, heads) for team in teams]
    forward, both = max(found, key=lambda pair: pair[1])
    return f"{100 * forward:.0f}%, {100 * both:.0f}%"


def efficiency(method: str, team: int, world: int, rows: int, heads: cost.Heads):
    """The ideal's time over the predicted: forward, and of both passes."""
    machine, total = machine_of(world), rows * world
    seconds = cost.predict(method, team, world, "zigzag", (total,), CAUSAL, heads, machine)
    products = total * (total + 1) * heads.queries / world  # 2 FLOPs a pair and column
    forward = products * (heads.dim + heads.dim_v) / machine.forward_flops
    backward = products * (3 * heads.dim + 2 * heads.dim_v) / machine.backward_flops
    return forward / seconds.forward, (forward + backward) / (seconds.forward + seconds.backward)

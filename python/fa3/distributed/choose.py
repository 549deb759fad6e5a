# SPDX-License-Identifier: Apache-2.0
"""method="auto": the method that cost.py expects to be fastest, and why."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fa3.distributed import cost
from fa3.distributed.cover import Mask

BYTES = {"float32": 4, "float64": 8}


class Question(NamedTuple):
    """All that the choice depends on."""

    world: int
    layout: str
    lengths: tuple[int, ...]
    mask: Mask
    heads: cost.Heads
    gradients: bool
    device: str

    @classmethod
    def of(cls, facts: Mapping[str, Any], world: int) -> "Question":
        batch, queries, dim = facts["q"]
        return cls(
            world,
            facts["layout"],
            facts["lengths"],
            facts["mask"],
            cost.Heads(
                int(batch.removeprefix("batch ")) if batch != "packed" else 1,
                queries,
                facts["k"][0],
                dim,
                facts["v"][1],
                BYTES.get(facts["dtype"], 2),
            ),
            facts["gradients"],
            facts["device"],
        )

    def machine(self) -> cost.Machine:
        return cost.CPU if self.device == "cpu" else cost.H200_NVLINK


def candidates(world: int, kv_heads: int) -> list[tuple[str, int]]:
    """(method, ranks of a team)."""
    found = [("ring", 1), ("all_gather", 1)] if world > 1 else [("ring", 1)]
    for team in range(2, world + 1):
        if world % team == 0 and kv_heads % team == 0:
            found.append(("ulysses" if team == world else "hybrid", team))
    return found


def hybrid_degree(world: int, kv_heads: int) -> int:
    """The largest team that is not the whole group, if there is one."""
    sizes = [team for method, team in candidates(world, kv_heads) if method == "hybrid"]
    return max(sizes, default=1)


def expected(question: Question) -> dict[tuple[str, int], cost.Seconds]:
    machine = question.machine()
    return {
        (method, team): cost.predict(method, team, *question[:5], machine)
        for method, team in candidates(question.world, question.heads.keys)
    }


def choose(question: Question) -> tuple[str, int]:
    found = expected(question)
    return min(found, key=lambda name: found[name].of(question.gradients))


def explain(question: Question) -> str:
    """The choice in words: a line a candidate, the chosen one marked."""
    found = expected(question)
    chosen = min(found, key=lambda name: found[name].of(question.gradients))
    passes = "forward and backward" if question.gradients else "forward"
    lines = [
        f"{sum(question.lengths)} rows in {len(question.lengths)} documents over {question.world} "
        f"ranks, {question.layout}, mask {tuple(question.mask)}",
        f"expected milliseconds of the slowest rank, {passes}, on {question.machine().name}:",
    ]
    for (method, team), seconds in found.items():
        alone = seconds.forward_calls + seconds.backward_calls * question.gradients
        name = f"{method}, teams of {team}" if method == "hybrid" else method
        lines.append(
            f"{'*' if (method, team) == chosen else ' '} {name:<20} "
            f"{1e3 * seconds.of(question.gradients):10.3f}, its calls alone {1e3 * alone:10.3f}"
        )
    return "\n".join(lines)

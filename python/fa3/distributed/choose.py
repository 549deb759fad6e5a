# SPDX-License-Identifier: Apache-2.0
"""method="auto": the method that cost.py expects to be fastest, and why."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fa3.distributed import cost, stages
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


Candidate = tuple[str, int, stages.Sizes]  # method, ranks of a team, sizes of the stages


def candidates(world: int, kv_heads: int) -> list[Candidate]:
    found: list[Candidate] = []
    for team in range(1, world + 1):
        if world % team or kv_heads % team:
            continue
        for sizes in stages.choices(world // team):
            found.append((name_of(world, team, sizes), team, sizes))
    return found


def name_of(world: int, team: int, sizes: stages.Sizes) -> str:
    if team > 1:
        return "ulysses" if team == world else "hybrid"
    return "all_gather" if len(sizes) == 1 and world > 1 else "ring"


def hybrid_degree(world: int, kv_heads: int) -> int:
    """The largest team that is not the whole group, if there is one."""
    teams = (team for team in range(1, world) if world % team == 0 == kv_heads % team)
    return max(teams, default=1)


def expected(question: Question) -> dict[Candidate, cost.Seconds]:
    of, machine = question, question.machine()
    return {
        one: cost.predict(one[2], one[1], of.layout, of.lengths, of.mask, of.heads, machine)
        for one in candidates(of.world, of.heads.keys)
    }


def choose(question: Question) -> Candidate:
    found = expected(question)
    return min(found, key=lambda one: found[one].of(question.gradients))


def explain(question: Question) -> str:
    """The choice in words: a line a candidate, the chosen one marked."""
    found = expected(question)
    chosen = min(found, key=lambda one: found[one].of(question.gradients))
    passes = "forward and backward" if question.gradients else "forward"
    lines = [
        f"{sum(question.lengths)} rows in {len(question.lengths)} documents over {question.world} "
        f"ranks, {question.layout}, mask {tuple(question.mask)}",
        f"expected milliseconds of the slowest rank, {passes}, on {question.machine().name}:",
    ]
    for one, seconds in found.items():
        method, team, sizes = one
        alone = seconds.forward_calls + seconds.backward_calls * question.gradients
        name = f"{method}, teams of {team}" if method == "hybrid" else method
        whole = 1e3 * seconds.of(question.gradients)
        lines.append(
            f"{'*' if one == chosen else ' '} {name:<20} {whole:10.3f}, "
            f"its calls alone {1e3 * alone:10.3f}, stages {said(sizes)}"
        )
    return "\n".join(lines)


def said(sizes: stages.Sizes) -> str:
    return ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")

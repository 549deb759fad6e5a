# SPDX-License-Identifier: Apache-2.0
"""All-to-all between rows and heads (DeepSpeed-Ulysses, arXiv 2309.14509), differentiable.

Neighbouring ranks of a group trade: each has some rows of all heads before, and all of their rows
for some heads after. Rows then are in the order of the stream, which for both layouts is what one
rank of a smaller group would hold.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fa3.distributed.transport.exchange import naming

Range = tuple[int, int]


class Team(NamedTuple):
    """The ranks that trade, neighbours in the group; members are all of the group's ranks."""

    group: Any
    size: int
    place: int  # of this rank in its team
    first: int  # the group's rank of its first member
    world: int
    rows: tuple[int, ...]  # of each member
    order: tuple[Range, ...]  # of all members' rows, one after the other: what comes next
    back: tuple[Range, ...]  # the inverse

    def splits(self, counts) -> list[int]:
        """What goes to each rank of the group: nothing beyond the team."""
        found = [0] * self.world
        found[self.first : self.first + self.size] = counts
        return found


def exchange(team: Team, tensor: torch.Tensor, to, of) -> torch.Tensor:
    """all_to_all of rows (n, ...): `to` and `of` count what each member gets and gives."""
    result = tensor.new_empty((sum(of), *tensor.shape[1:]))
    with naming("heads of the neighbouring ranks"):
        dist.all_to_all_single(
            result, tensor.contiguous(), team.splits(of), team.splits(to), group=team.group
        )
    return result


def reordered(x: torch.Tensor, order) -> torch.Tensor:
    return torch.cat([x[a:b] for a, b in order]) if len(order) > 1 else x


def to_heads(team: Team, x: torch.Tensor) -> torch.Tensor:
    """(b, s, h, d) of this rank -> (b, rows of the team, h / size, d)."""
    rows, heads = x.shape[1:3]
    x = x.unflatten(2, (team.size, heads // team.size)).permute(2, 1, 0, 3, 4)
    x = exchange(team, x.flatten(0, 1), [rows] * team.size, team.rows)
    return reordered(x, team.order).transpose(0, 1)


def to_rows(team: Team, x: torch.Tensor) -> torch.Tensor:
    """The inverse of to_heads."""
    rows = team.rows[team.place]
    x = reordered(x.transpose(0, 1), team.back)
    x = exchange(team, x, team.rows, [rows] * team.size)
    return x.unflatten(0, (team.size, rows)).permute(2, 1, 0, 3, 4).flatten(2, 3)


class ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, team, x):
        ctx.team = team
        return to_heads(team, x)

    @staticmethod
    def backward(ctx, gradient):
        return None, to_rows(ctx.team, gradient)


class ToRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, team, x):
        ctx.team = team
        return to_rows(team, x)

    @staticmethod
    def backward(ctx, gradient):
        return None, to_heads(ctx.team, gradient)

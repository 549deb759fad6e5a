# SPDX-License-Identifier: Apache-2.0
"""Sums over the stages, in float32: partial outputs, which merge, and gradients, which add up.

The library's calls go on from what is there (step.py has them for everybody): a call reads a row of
the output before it writes it, and adds to gradients. The last call on a row rounds it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from fa3.distributed.cover import Call
from fa3.torch.operators import new_rows

Range = tuple[int, int]
Result = tuple[torch.Tensor, torch.Tensor]


class Merged:
    """The output and the LSE of a rank's query rows, over all its calls."""

    def __init__(self, q: torch.Tensor, v: torch.Tensor, last: Call | None) -> None:
        batch, rows, heads, _ = q.shape
        self.shape, self.dtype = (batch, rows, heads, v.shape[-1]), q.dtype
        self.wide = new_rows(self.shape, torch.float32, q.device)
        self.lse = q.new_empty((batch, heads, rows), dtype=torch.float32)
        self.out = new_rows(self.shape, q.dtype, q.device)
        self.last = last
        self.is_empty = True

    def places(self, call: Call) -> tuple[Result, Result | None]:
        """Where a call writes its rows of out and lse, and what it goes on from; it must do so."""
        rows = slice(*call.rows)
        wide, lse = self.wide[:, rows], self.lse[..., rows]
        out = self.out[:, rows] if call is self.last else wide
        if not self.is_empty:
            return (out, lse), (wide, lse)
        self.is_empty = False
        for others in (slice(0, rows.start), slice(rows.stop, self.shape[1])):
            self.wide[:, others].zero_()
            self.lse[..., others].fill_(-torch.inf)
        return (out, lse), None

    def result(self, sink: torch.Tensor | None) -> Result:
        """out and lse. sink: one that no call has had, one more partial result, of value 0."""
        if self.is_empty:
            self.wide.zero_()
            self.lse.fill_(-torch.inf)
        rows = slice(0, 0) if self.last is None else slice(*self.last.rows)
        for others in (slice(0, rows.start), slice(rows.stop, self.shape[1])):
            self.out[:, others] = self.wide[:, others]
        return (self.out, self.lse) if sink is None else self.with_sink(sink)

    def with_sink(self, sink: torch.Tensor) -> Result:
        lse = torch.logaddexp(self.lse, sink[:, None])
        weight = (self.lse - lse).where(self.lse != -torch.inf, -torch.inf).exp()
        weight = weight.where(lse != torch.inf, 0.0)
        return (self.wide * weight.transpose(1, 2)[..., None]).to(self.dtype), lse


class Total:
    """The gradient of a tensor's rows: of one call in a type of its choice, or a float32 sum."""

    def __init__(self, like: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.like, self.dtype = like, dtype
        self.sum: torch.Tensor | None = None

    def place(self, rows: Range) -> tuple[torch.Tensor, bool]:
        """Where a call writes its part, and whether it adds to what is there."""
        adds = self.sum is not None
        if not adds:
            self.sum = torch.empty(self.like.shape, dtype=self.dtype, device=self.like.device)
            self.sum[:, : rows[0]].zero_()
            self.sum[:, rows[1] :].zero_()
        return self.tensor()[:, slice(*rows)], adds

    def add(self, rows: Range, part: torch.Tensor, borrowed: bool = False) -> None:
        """borrowed: the part is another's memory soon."""
        if self.sum is None and self.is_all(rows):
            self.sum = part.to(torch.float32, copy=True) if borrowed else part
            return
        self.sum = self.tensor().float()
        self.sum[:, slice(*rows)] += part

    def is_all(self, rows: Range) -> bool:
        return rows == (0, self.like.shape[1])

    def tensor(self) -> torch.Tensor:
        if self.sum is None:
            self.sum = torch.zeros(self.like.shape, dtype=self.dtype, device=self.like.device)
        return self.sum

    def result(self, last: Sequence[tuple[Range, torch.Tensor]] = ()) -> torch.Tensor:
        """In the type of the tensor, with the last parts: one pass over the rows of most."""
        if not last:
            return self.tensor().to(self.like.dtype)
        total = self.tensor().float()
        result = torch.empty_like(self.like, memory_format=torch.contiguous_format)
        for (a, b), parts in pieces_of(last, total.shape[1]):
            here, into = total[:, a:b], result[:, a:b]
            for part in parts[:-1]:
                here += part
            if parts:
                torch.add(here, parts[-1], out=into)
            else:
                into.copy_(here)
        return result


class Apart:
    """Gradients of rows that one call alone has: it writes them, and nobody adds."""

    def __init__(self, like: torch.Tensor, rows: torch.Tensor) -> None:
        self.like, self.rows = like, rows

    def place(self, rows: Range) -> tuple[torch.Tensor, bool]:
        return self.rows, False

    def add(self, rows: Range, part: torch.Tensor) -> None:
        self.rows.copy_(part)


def add_parts(total: torch.Tensor, parts: Sequence[tuple[Range, torch.Tensor]]) -> None:
    """Adds rows of (b, s, h, d), in order, in float32 that is rounded once."""
    for (a, b), here in pieces_of(parts, total.shape[1]):
        rows = total[:, a:b]
        if len(here) == 1:
            rows += here[0]  # computed in float32
        elif here:
            rows.copy_(sum(here, start=rows.float()))


def pieces_of(parts: Sequence[tuple[Range, torch.Tensor]], rows: int):
    """All rows in order, cut where parts begin or end; with the parts' rows there."""
    edges = sorted({0, rows, *(edge for rows, _ in parts for edge in rows)})
    for a, b in itertools.pairwise(edges):
        yield (a, b), [part[:, a - c : b - c] for (c, d), part in parts if c <= a and b <= d]

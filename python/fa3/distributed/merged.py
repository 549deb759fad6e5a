# SPDX-License-Identifier: Apache-2.0
"""Sums over the stages, in float32: partial outputs, which merge, and gradients, which add up.

The library's merge works in place: slot 0 holds what is merged, a call writes to slot 1. The last
merge writes the output's own type, so that it is rounded once, on the way.
"""

from __future__ import annotations

import torch

from fa3 import _native
from fa3.distributed.cover import Call
from fa3.torch.operators import new_rows, threads_of


class Merged:
    """The output and the LSE of a rank's query rows."""

    def __init__(self, q: torch.Tensor, v: torch.Tensor, num_threads: int) -> None:
        batch, rows, heads, _ = q.shape
        self.shape, self.dtype = (batch, rows, heads, v.shape[-1]), q.dtype
        self.out = new_rows((2, *self.shape), torch.float32, q.device)
        self.lse = q.new_empty((2, batch, heads, rows), dtype=torch.float32)
        self.num_threads = num_threads or threads_of(q)
        self.is_empty = True
        self.written: Call | None = None  # in slot 1

    def slot(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """Where a call writes its rows of out and lse, which it then must do."""
        self.merge()
        rows = slice(*call.rows)
        if self.is_empty and call.rows == (0, self.shape[1]):
            self.is_empty = False
            return self.out[0], self.lse[0]
        if self.is_empty:
            self.clear()
        self.written = call
        return self.out[1][:, rows], self.lse[1][..., rows]

    def clear(self) -> None:
        self.out[0].zero_()
        self.lse[0].fill_(-torch.inf)
        self.is_empty = False

    def merge(self) -> None:
        if self.written is not None:
            self.merge_into(self.out[0], self.written)
            self.written = None

    def merge_into(self, result: torch.Tensor, call: Call) -> None:
        rows = slice(*call.rows)
        out, lse = self.out[:, :, rows], self.lse[..., rows]
        _native.merge(out, lse, result[:, rows], lse[0], self.num_threads)

    def result(self, sink: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse. A sink is one more partial result, of value 0."""
        if self.is_empty:
            self.clear()
        if sink is not None:
            self.merge()
            return self.with_sink(sink)
        out, call = new_rows(self.shape, self.dtype, self.out.device), self.written
        a, b = (0, 0) if call is None else call.rows
        if call is not None:
            self.merge_into(out, call)
        for rows in (slice(0, a), slice(b, self.shape[1])):
            out[:, rows] = self.out[0][:, rows]
        return out, self.lse[0]

    def with_sink(self, sink: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lse = torch.logaddexp(self.lse[0], sink[:, None])
        weight = (self.lse[0] - lse).where(self.lse[0] != -torch.inf, -torch.inf).exp()
        weight = weight.where(lse != torch.inf, 0.0)
        return (self.out[0] * weight.transpose(1, 2)[..., None]).to(self.dtype), lse


class Total:
    """The gradient of a tensor's rows: one part as it is, or a float32 sum of parts."""

    def __init__(self, like: torch.Tensor) -> None:
        self.like = like
        self.sum: torch.Tensor | None = None

    def add(self, rows: tuple[int, int], part: torch.Tensor) -> None:
        if self.sum is None and rows == (0, self.like.shape[1]):
            self.sum = part
            return
        self.sum = self.tensor().float()
        self.sum[:, slice(*rows)] += part

    def tensor(self) -> torch.Tensor:
        if self.sum is None:
            self.sum = torch.zeros(self.like.shape, dtype=torch.float32, device=self.like.device)
        return self.sum

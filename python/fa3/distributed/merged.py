# SPDX-License-Identifier: Apache-2.0
"""Partial results of a rank's query rows, merged in float32 and rounded once.

The library's merge works in place: slot 0 holds what is merged, a call writes to slot 1.
"""

from __future__ import annotations

import torch

from fa3 import _native
from fa3.distributed.cover import Call
from fa3.torch.operators import new_rows, threads_of


class Merged:
    def __init__(self, q: torch.Tensor, v: torch.Tensor) -> None:
        batch, rows, heads, _ = q.shape
        self.out = new_rows((2, batch, rows, heads, v.shape[-1]), torch.float32, q.device)
        self.lse = q.new_empty((2, batch, heads, rows), dtype=torch.float32)
        self.is_empty = True

    def slot(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """Where a call writes its rows of out and lse."""
        if self.is_empty and call.rows != (0, self.out.shape[2]):
            self.clear()
        at, rows = int(not self.is_empty), slice(*call.rows)
        return self.out[at][:, rows], self.lse[at][..., rows]

    def clear(self) -> None:
        self.out[0].zero_()
        self.lse[0].fill_(-torch.inf)
        self.is_empty = False

    def merge(self, call: Call, num_threads: int) -> None:
        """Takes what the call has written."""
        if self.is_empty:
            self.is_empty = False
            return
        rows = slice(*call.rows)
        out, lse = self.out[:, :, rows], self.lse[..., rows]
        _native.merge(out, lse, out[0], lse[0], num_threads or threads_of(out))

    def result(self, dtype, sink: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """out, rounded once, and lse. A sink is one more partial result, of value 0."""
        if self.is_empty:
            self.clear()
        out, lse = self.out[0], self.lse[0]
        if sink is not None:
            whole = torch.logaddexp(lse, sink[:, None])
            weight = (lse - whole).where(lse != -torch.inf, -torch.inf).exp()
            weight = weight.where(whole != torch.inf, 0.0)
            out, lse = out * weight.transpose(1, 2)[..., None], whole
        return out.to(dtype), lse

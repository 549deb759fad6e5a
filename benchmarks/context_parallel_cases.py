# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/context_parallel.py times: cases of a whole sequence, and who attends to it."""

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Case:
    tokens: int  # of a rank
    heads: tuple[int, int]  # of queries, of keys
    head_dim: int
    packed: bool
    backward: bool
    dtype: str
    device: str
    sm_margin: int

    @property
    def total(self) -> int:
        return self.tokens * dist.get_world_size()

    def lengths(self) -> list[int]:
        """The whole as one document, or as documents of log-uniform lengths."""
        if not self.packed:
            return [self.total]
        draw, left, found = random.Random(0), self.total, []
        while left:
            found.append(min(left, round(16 * 1024 ** draw.random())))
            left -= found[-1]
        return found

    def cu_seqlens(self) -> list[int]:
        return list(itertools.accumulate(self.lengths(), initial=0))

    def flops(self) -> float:
        """FLOPs of a rank: 4 products of a pair forward, 10 backward, causal."""
        pairs = sum(n * (n + 1) / 2 for n in self.lengths())
        passes = 4 + 10 * self.backward
        return passes * pairs * self.heads[0] * self.head_dim / dist.get_world_size()


@dataclass(frozen=True)
class Contender:
    name: str
    layout: str
    attend: Callable  # (q, k, v) -> out, of a rank's rows
    around: Callable = contextlib.nullcontext
    whole: bool = False  # the ideal: all rows of some heads
    host_ms: int = 8  # what Python may take of a call, beside a GPU that sleeps for as long

# SPDX-License-Identifier: Apache-2.0
"""Lengths of the documents of a packed stream, from cu_seqlens in host memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from fa3.errors import InvalidArgument

if TYPE_CHECKING:
    CuSeqlens: TypeAlias = Sequence[int] | torch.Tensor


def documents(cu_seqlens: CuSeqlens) -> tuple[int, ...]:
    if isinstance(cu_seqlens, torch.Tensor) and not cu_seqlens.is_cpu:
        raise InvalidArgument(
            "cu_seqlens: expected host memory, since the schedule follows from it, got "
            f"{cu_seqlens.device}; pass cu_seqlens.cpu(), once a batch"
        )
    values = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else list(cu_seqlens)
    found = tuple(b - a for a, b in itertools.pairwise(values))
    if values[:1] != [0] or min(found, default=0) < 0:
        raise InvalidArgument(
            f"cu_seqlens: expected numbers that begin with 0 and do not decrease, got {values[:16]}"
        )
    return found

# SPDX-License-Identifier: Apache-2.0
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from fa3.ops import attention as attention

__all__ = ["attention", "disable_sdpa", "enable_sdpa", "sdpa"]

def enable_sdpa(name: str = "fa3", *, fp8: bool = False) -> None: ...
def disable_sdpa() -> None: ...
def sdpa(name: str = "fa3", *, fp8: bool = False) -> AbstractContextManager[None]: ...

# What fa3.merge and fa3.quantize call with torch tensors.
def merge(
    o_partial: Tensor, lse_partial: Tensor, num_threads: int = 0
) -> tuple[Tensor, Tensor]: ...
def quantize(
    x: Tensor, scaling: str, center: bool, cos: Tensor | None, sin: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor | None]: ...
def quantize_together(
    q: Tensor, k: Tensor, v: Tensor, scaling: str, center: bool, *options: Any
) -> list[tuple[Tensor, Tensor, Tensor | None]]: ...

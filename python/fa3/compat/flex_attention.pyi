# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any, Literal, overload

from torch import Tensor

__all__ = ["flex_attention"]

@overload
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: Literal[False] = False,
    kernel_options: Any = None,
    *,
    return_aux: None = None,
) -> Tensor: ...
@overload
def flex_attention(*arguments: Any, return_lse: bool, **named: Any) -> Any: ...
@overload
def flex_attention(*arguments: Any, return_aux: Any, **named: Any) -> Any: ...

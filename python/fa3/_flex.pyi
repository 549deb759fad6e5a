# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

Array = TypeVar("Array")  # torch.Tensor

class LooksTurned(UserWarning): ...

@overload
def flex_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    score_mod: Callable[[Any, Any, Any, Any, Any], Any] | None = None,
    mask_mod: Callable[[Any, Any, Any, Any], Any] | None = None,
    block_mask: Any = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    scale: float | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    page_table: Any = None,
    batch_index: Any = None,
    left_padding: Any = None,
    num_splits: int = 0,
    k_descale: Any = None,
    v_descale: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    return_lse: Literal[False] = False,
    layout: Literal["bshd", "bhsd"] | None = None,
) -> Array: ...
@overload
def flex_attention(
    q: Array, k: Array, v: Array, *, return_lse: Literal[True], **options: Any
) -> tuple[Array, Array]: ...
@overload
def flex_attention(
    q: Array, k: Array, v: Array, *, return_lse: bool, **options: Any
) -> Array | tuple[Array, Array]: ...

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from torch import Tensor

@overload
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    attention_chunk: int | None = None,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    only_qv: bool = False,
    sm_margin: int = 0,
    return_softmax_lse: Literal[False] = False,
    sinks: Tensor | None = None,
    score_mod: Callable[..., Any] | None = None,
    aux_tensors: Any = None,
    ver: int = 3,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def flash_attn_with_kvcache(*arguments: Any, return_softmax_lse: bool, **named: Any) -> Any: ...
@overload
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[int | None] | None = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    only_qv: bool = False,
    sm_margin: int = 0,
    return_softmax_lse: Literal[False] = False,
    sinks: Tensor | None = None,
    score_mod: Callable[..., Any] | None = None,
    aux_tensors: Any = None,
    ver: int = 3,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def flash_attn_varlen_func(*arguments: Any, return_softmax_lse: bool, **named: Any) -> Any: ...
def is_fa3_supported(device: Any = None) -> bool: ...

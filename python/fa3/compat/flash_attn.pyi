# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from torch import Tensor

@overload
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
) -> Tensor: ...
@overload
def flash_attn_func(*arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...
@overload
def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
) -> Tensor: ...
@overload
def flash_attn_kvpacked_func(*arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...
@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
) -> Tensor: ...
@overload
def flash_attn_qkvpacked_func(*arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...
@overload
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    block_table: Tensor | None = None,
) -> Tensor: ...
@overload
def flash_attn_varlen_func(*arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...
@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
) -> Tensor: ...
@overload
def flash_attn_varlen_kvpacked_func(
    *arguments: Any, return_attn_probs: bool, **named: Any
) -> Any: ...
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
) -> Tensor: ...
@overload
def flash_attn_varlen_qkvpacked_func(
    *arguments: Any, return_attn_probs: bool, **named: Any
) -> Any: ...
@overload
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: Literal[False] = False,
) -> Tensor: ...
@overload
def flash_attn_with_kvcache(*arguments: Any, return_softmax_lse: bool, **named: Any) -> Any: ...

_flash_attn_forward: Callable[..., Any]
_flash_attn_backward: Callable[..., Any]
_flash_attn_varlen_forward: Callable[..., Any]
_flash_attn_varlen_backward: Callable[..., Any]
flash_attn_gpu: Any

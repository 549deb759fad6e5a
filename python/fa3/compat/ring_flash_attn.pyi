# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from torch import Tensor

@overload
def ring_flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
) -> Tensor: ...
@overload
def ring_flash_attn_func(*arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...
@overload
def zigzag_ring_flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
) -> Tensor: ...
@overload
def zigzag_ring_flash_attn_func(*arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...
@overload
def ring_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
) -> Tensor: ...
@overload
def ring_flash_attn_varlen_func(*arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...
@overload
def zigzag_ring_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
) -> Tensor: ...
@overload
def zigzag_ring_flash_attn_varlen_func(
    *arguments: Any, return_attn_probs: bool, **named: Any
) -> Any: ...
@overload
def llama3_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    heads_k_stride: int,
    local_k_slice: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int | None] | None = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
) -> Tensor: ...
@overload
def llama3_flash_attn_varlen_func(
    *arguments: Any, return_attn_probs: bool, **named: Any
) -> Any: ...
def llama3_flash_attn_prepare_cu_seqlens(
    cu_seqlens: Tensor, causal: bool, rank: int, world_size: int
) -> tuple[Tensor, Tensor, int, int, slice]: ...
def update_ring_flash_attn_params(cu_seqlens: Tensor, process_group: Any) -> None: ...
def substitute_hf_flash_attn(process_group: Any, heads_k_stride: int) -> None: ...

llama3_flash_attn_varlen_kvpacked_func: Callable[..., Any]
llama3_flash_attn_varlen_qkvpacked_func: Callable[..., Any]
ring_flash_attn_kvpacked_func: Callable[..., Any]
ring_flash_attn_qkvpacked_func: Callable[..., Any]
ring_flash_attn_varlen_kvpacked_func: Callable[..., Any]
ring_flash_attn_varlen_qkvpacked_func: Callable[..., Any]
zigzag_ring_flash_attn_kvpacked_func: Callable[..., Any]
zigzag_ring_flash_attn_qkvpacked_func: Callable[..., Any]
zigzag_ring_flash_attn_varlen_kvpacked_func: Callable[..., Any]
zigzag_ring_flash_attn_varlen_qkvpacked_func: Callable[..., Any]

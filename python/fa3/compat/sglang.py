# SPDX-License-Identifier: Apache-2.0
"""Drop-in for sgl_kernel.flash_attn, and for the functions of sglang that choose its version.

LSE is the natural log of the sum of exp(scores), (heads, total_q) where queries are packed, else
(batch, heads, seq), and -inf for a query that sees no key. No gradients, as in the original. What
fa3 cannot do raises fa3.Unsupported with the argument's name. ver, pack_gqa and scheduler_metadata
are accepted, without effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

import fa3
from fa3.compat._arguments import (
    factors,
    float32,
    int32,
    joined,
    length,
    options,
    rows_of_stride_1,
    unsupported,
)
from fa3.compat._kvcache import attend, renamed
from fa3.compat._signatures import Window, with_lse, without_gradients

__all__ = [
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
    "is_fa3_supported",
]


def __dir__():
    return __all__


@with_lse
def flash_attn_with_kvcache(
    q: Tensor | None,
    k_cache: Tensor | None,
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
    window_size: Window = (-1, -1),
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
):
    """Attention over the first cache_seqlens rows of the caches, or of pages (page_table).

    Args:
        q: (batch, sq, hq, d), or packed (total_q, hq, d) with cu_seqlens_q and max_seqlen_q.
        k_cache, v_cache: (batch, s, hk, d | dv), or pages (pages, page_size, hk, d | dv).
        k, v: (batch, s_new, hk, d | dv), or packed with cu_seqlens_k_new: first written into the
            caches behind cache_seqlens, in place, turned by rotary_cos and rotary_sin, as q is.
        cache_seqlens: an int, or (batch,); page_table: (batch, max_pages), of any strides. Both
            may have 64 bits.
        qv: q's shape with v's head dim: scores are scale * (q.k + qv.v), the absorbed form of MLA.
            The caches are copied for it unless they lie side by side in memory, v first. With
            only_qv scores are scale * qv.v; q and k_cache are not used.
        k_descale, v_descale: float32 (batch, hk), factors of float8 numbers; ignored beside others.
        window_size: (left, right) in keys; None and below 0 are unbounded.
        attention_chunk: keys per chunk; None and 0 are off.
        sinks: (hq,) of any float type: one more logit per query head.
        out: written instead of a new tensor.

    Returns:
        out, or (out, lse) with return_softmax_lse.

    Raises:
        fa3.InvalidArgument: the call is wrong. Also a ValueError.
        fa3.Unsupported: score_mod, and what no engine does on these tensors.
    """
    refuse(score_mod, aux_tensors)
    if only_qv:
        unsupported(k=(k, None, "with only_qv the scores read v_cache alone: append before"))
        q, k_cache, qv, k_descale = qv, v_cache, None, v_descale
    with renamed({"sink": "sinks"}):
        return attend(
            rows_of_stride_1(q),
            k_cache,
            v_cache,
            rows_of_stride_1(k),
            rows_of_stride_1(v),
            options(softmax_scale, causal, window_size, softcap, False, attention_chunk, sm_margin)
            | {"sink": float32(sinks)},
            qv=rows_of_stride_1(qv),
            **factors(q, k_cache, v_cache, q_descale, k_descale, v_descale),
            cache_seqlens=int32(cache_seqlens),
            page_table=int32(page_table),
            batch_index=int32(cache_batch_idx),
            left_padding=int32(cache_leftpad),
            cu_seqlens_q=int32(cu_seqlens_q),
            cu_seqlens_new=int32(cu_seqlens_k_new),
            max_seqlen_q=max_seqlen_q,
            rotary=(rotary_cos, rotary_sin),
            rotary_interleaved=rotary_interleaved,
            first_position=int32(rotary_seqlens),
            num_splits=num_splits,
            out=out,
            return_lse=return_softmax_lse,
        )


@with_lse
@without_gradients
def flash_attn_varlen_func(
    q: Tensor | None,
    k: Tensor | None,
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
    window_size: Window = (-1, -1),
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
):
    """Packed q (total_q, hq, d), k and v (total_k, hk, d | dv); without cu_seqlens (b, s, h, d).

    With page_table k and v are pages, of lengths seqused_k, or else those of cu_seqlens_k. The
    other arguments, results and errors are those of flash_attn_with_kvcache.
    """
    refuse(score_mod, aux_tensors)
    if only_qv:
        q, k, qv, k_descale = qv, v, None, v_descale
    cu_seqlens_k, seqused_k = int32(cu_seqlens_k), int32(seqused_k)
    if page_table is not None:
        seqused_k = cu_seqlens_k.diff() if seqused_k is None else seqused_k
        cu_seqlens_k = None
    q, k, v = (rows_of_stride_1(x) for x in (q, k, v))
    q, k, v = joined(q, k, v, qv)
    with renamed({"sink": "sinks"}):
        return fa3.attention(
            q,
            k,
            v,
            out=out,
            return_lse=return_softmax_lse,
            cu_seqlens_q=int32(cu_seqlens_q),
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=int32(seqused_q),
            seqused_k=seqused_k,
            max_seqlen_q=length(max_seqlen_q),
            max_seqlen_k=length(max_seqlen_k),
            page_table=int32(page_table),
            sink=float32(sinks),
            num_splits=num_splits,
            **factors(q, k, v, q_descale, k_descale, v_descale),
            **options(
                softmax_scale, causal, window_size, softcap, False, attention_chunk, sm_margin
            ),
        )


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads: int,
    num_heads_k: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: Any = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    seqused_q: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor:
    """What the calls take as scheduler_metadata: an empty int32 tensor. fa3 plans in the call."""
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def is_fa3_supported(device: Any = None) -> bool:
    """Whether this machine has a GPU that fa3 has kernels for. Tensors on the CPU need none."""
    return any(name == "hopper" and available for name, available, _ in fa3.engines())


def refuse(score_mod, aux_tensors):
    unsupported(
        score_mod=(score_mod, None, "fa3 has no scores by function"),
        aux_tensors=(aux_tensors, None, "fa3 has no scores by function"),
    )

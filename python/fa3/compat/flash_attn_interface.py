# SPDX-License-Identifier: Apache-2.0
"""Drop-in for the module flash_attn_interface of FlashAttention-3: its functions, its order.

Semantics are those of fa3.attention. What fa3 cannot do yet raises fa3.Unsupported with the
argument's name. pack_gqa and scheduler_metadata are hints for speed: accepted, without effect. So
is num_splits, but for caches: there it bounds the parts that keys are cut into.
qv, of q's shape with v's head dim, adds qv.v to each product q.k. k and v are copied for it unless
they lie side by side in memory, v first, as in MLA's caches.
s_aux (hq), by name: the sinks of gpt-oss, in any floating type, for callers that look for it in a
signature, as Transformers does.
LSE is -inf for a row that sees no key, also where K is empty (the original gives +inf there).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

import fa3
from fa3.compat import _passes
from fa3.compat._arguments import float32, joined, length, options
from fa3.compat._kvcache import attend
from fa3.compat._passes import indices, rows
from fa3.compat._passes_of_fa3 import _flash_attn_backward as _flash_attn_backward
from fa3.compat._passes_of_fa3 import _flash_attn_forward as _flash_attn_forward
from fa3.compat._registry import register
from fa3.compat._signatures import Window, with_lse, with_probs

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


def __dir__():
    return __all__


@with_probs
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: Literal[False] = False,
    *,
    s_aux: Tensor | None = None,
):
    """q (b, sq, hq, d), k (b, sk, hk, d), v (b, sk, hk, dv) -> out (b, sq, hq, dv).

    With return_attn_probs: (out, lse (b, hq, sq)), as the original; never probabilities.
    """
    named = options(
        softmax_scale, causal, window_size, softcap, deterministic, attention_chunk, sm_margin
    )
    named |= sinks(s_aux)
    q, k, v = joined(q, k, v, qv)
    return attention(q, k, v, (q_descale, k_descale, v_descale), return_attn_probs, named)


@with_probs
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
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
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: Literal[False] = False,
    *,
    s_aux: Tensor | None = None,
):
    """Packed q (total_q, hq, d), k and v (total_k, hk, ...); lse (hq, total_q)."""
    named = options(
        softmax_scale, causal, window_size, softcap, deterministic, attention_chunk, sm_margin
    )
    names = "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"
    lengths = indices(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    named |= zip(names, lengths, strict=True)
    named |= {"max_seqlen_q": length(max_seqlen_q), "max_seqlen_k": length(max_seqlen_k)}
    named |= sinks(s_aux)
    q, k, v = joined(q, k, v, qv)
    return attention(q, k, v, (q_descale, k_descale, v_descale), return_attn_probs, named)


@with_probs
def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: Literal[False] = False,
):
    """qkv (b, s, 3, h, d), or (b, s, hq + 2 hk, d) with num_heads_q = hq."""
    if qkv.ndim == 5:
        q, k, v = qkv.unbind(2)
    elif num_heads_q is None:
        raise fa3.InvalidArgument("num_heads_q: expected the query heads, since qkv has 4 dims")
    else:
        heads_k = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, heads_k, heads_k], dim=2)
    named = options(
        softmax_scale, causal, window_size, softcap, deterministic, attention_chunk, sm_margin
    )
    return attention(q, k, v, (q_descale, k_descale, v_descale), return_attn_probs, named)


@with_lse
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
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: Literal[False] = False,
    *,
    s_aux: Tensor | None = None,
):
    """Attention over the first cache_seqlens rows of the caches (b, s, hk, d | dv), or of pages.

    k and v (b, s_new, hk, ...), or packed with cu_seqlens_k_new, are first written into the caches
    behind those rows, in place, turned by rotary_cos and rotary_sin, as q is.
    """
    q, k, v = rows(q, k, v)
    cu_seqlens_q, cu_seqlens_k_new = indices(cu_seqlens_q, cu_seqlens_k_new)
    named = options(softmax_scale, causal, window_size, softcap, False, attention_chunk, sm_margin)
    return attend(
        q,
        k_cache,
        v_cache,
        k,
        v,
        named | sinks(s_aux),
        qv=qv,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        cache_seqlens=cache_seqlens,
        page_table=page_table,
        batch_index=cache_batch_idx,
        left_padding=cache_leftpad,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_new=cu_seqlens_k_new,
        max_seqlen_q=max_seqlen_q,
        rotary=(rotary_cos, rotary_sin),
        rotary_interleaved=rotary_interleaved,
        first_position=rotary_seqlens,
        num_splits=num_splits,
        return_lse=return_softmax_lse,
    )


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: Any = None
) -> tuple[Tensor, Tensor]:
    """Merges partial results over disjoint keys: fa3.merge.

    out_partial (n, b, s, h, dv) float32, lse_partial (n, b, s, h) float32 -> out (b, s, h, dv) in
    out_dtype and lse (b, s, h).
    """
    merged, lse = fa3.merge(out_partial, lse_partial.transpose(-1, -2))
    lse = lse.transpose(-1, -2)
    if out is not None:
        return out.copy_(merged), lse
    return merged.to(out_dtype or torch.float32), lse


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: Any = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
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
    """What flash_attn_with_kvcache takes as scheduler_metadata: an empty int32 tensor.

    fa3 plans inside the call, from the shapes alone, and reads the lengths where it computes: there
    is nothing to prepare, and nothing that new lengths would make stale.
    """
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def attention(q, k, v, descales, return_lse, named):
    """A call of the functions above. The original lets tensors of float8_e4m3fn ask for a gradient;
    there is none."""
    if q.dtype == torch.float8_e4m3fn:
        q, k, v = (x.detach() for x in (q, k, v))
    q_descale, k_descale, v_descale = descales
    named |= {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    return _passes.attention(q, k, v, return_lse, named)


def sinks(s_aux):
    return {"sink": float32(s_aux)}


library = register(
    _flash_attn_forward, _flash_attn_backward, flash_attn_combine, get_scheduler_metadata
)

# SPDX-License-Identifier: Apache-2.0
"""Drop-in for the package flash_attn of FlashAttention-2: its functions, its order.

Semantics are those of fa3.attention. alibi_slopes, (hq,) or (b, hq), have no gradient, as in the
original; with dropout they are computed on the CPU alone. With
return_attn_probs the functions return (out, lse, S_dmask): with dropout the weights of the scores,
negative where they were dropped (signed_weights), which are for tests and take O(N^2) memory;
without dropout None, where the original has an empty tensor. Head dims that are no multiples of 8
are filled with zeros in copies, as the original does.
Where q, k and v are packed into one tensor, they are stacked before the heads: qkv (b, s, 3, h, d),
or kv (b, sk, 2, hk, d).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fa3.compat import flash_attn_2_cuda
from fa3.compat._arguments import length, options, unsupported
from fa3.compat._kvcache import attend
from fa3.compat._passes import forward, indices, rows, whole_chunks
from fa3.compat._passes_of_fa2 import _flash_attn_backward as _flash_attn_backward
from fa3.compat._passes_of_fa2 import _flash_attn_forward as _flash_attn_forward
from fa3.compat._passes_of_fa2 import _flash_attn_varlen_backward as _flash_attn_varlen_backward
from fa3.compat._passes_of_fa2 import _flash_attn_varlen_forward as _flash_attn_varlen_forward
from fa3.compat._passes_of_fa2 import forward_with_state
from fa3.compat._signatures import Window, packed_forms, with_lse, with_probs

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def __dir__():
    return __all__


# The compiled module, in name.
flash_attn_gpu = flash_attn_2_cuda

# In the original these are torch.ops.flash_attn.* from torch 2.4 on, and the functions before.
_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward

USE_TRITON_ROCM = False  # tests of the original ask


def _get_block_size_n(device, head_dim, is_dropout, is_causal):
    """How many keys of S_dmask share a largest score: all."""
    return 2**31 - 1


@with_probs
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
):
    """q (b, sq, hq, d), k (b, sk, hk, d), v (b, sk, hk, dv) -> out (b, sq, hq, dv)."""
    named = options(softmax_scale, causal, window_size, softcap, deterministic, dropout_p=dropout_p)
    named |= with_alibi(alibi_slopes, dropout_p and return_attn_probs)
    return answer(q, k, v, named, return_attn_probs)


flash_attn_qkvpacked_func, flash_attn_kvpacked_func = packed_forms(flash_attn_func)


@with_probs
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
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    block_table: Tensor | None = None,
):
    """Packed q (total_q, hq, d), k and v (total_k, hk, ...); lse (hq, total_q).

    With block_table k and v are pages, and cu_seqlens_k holds the lengths of sequences in them.
    """
    cu_seqlens_q, cu_seqlens_k, block_table = indices(cu_seqlens_q, cu_seqlens_k, block_table)
    keys = {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": length(max_seqlen_k)}
    if block_table is not None:
        keys = {"page_table": block_table, "seqused_k": cu_seqlens_k.diff()}
    named = options(softmax_scale, causal, window_size, softcap, deterministic, dropout_p=dropout_p)
    named |= {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": length(max_seqlen_q)} | keys
    named |= with_alibi(alibi_slopes, dropout_p and return_attn_probs)
    return answer(q, k, v, named, return_attn_probs)


@with_probs
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
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
):
    """Packed q (total_q, hq, d) and kv (total_k, 2, hk, d)."""
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
    others = *lengths, *rest, return_attn_probs
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, *others)


@with_probs
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
):
    """Packed qkv (total, 3, h, d)."""
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
    others = *lengths, *rest, return_attn_probs
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, *others)


@with_lse
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
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: Literal[False] = False,
):
    """Attention over the first cache_seqlens rows of the caches, or of pages (block_table).

    k and v are first appended in place, turned by rotary_cos and rotary_sin, as q is.
    """
    named = options(scale_of(q, softmax_scale), causal, window_size, softcap)
    named |= with_alibi(alibi_slopes)
    caches = k_cache, v_cache
    filled = whole_chunks(*caches)
    out, lse = attend(
        *whole_chunks(*rows(q)),
        *filled,
        *whole_chunks(*rows(k, v)),
        named,
        cache_seqlens=cache_seqlens,
        page_table=block_table,
        batch_index=cache_batch_idx,
        left_padding=cache_leftpad,
        rotary=(rotary_cos, rotary_sin),
        rotary_interleaved=rotary_interleaved,
        num_splits=num_splits,
        return_lse=True,
    )
    for cache, copy in zip(caches, filled, strict=True):
        if copy is not cache and k is not None:
            cache.copy_(first_columns(copy, cache))
    out = first_columns(out, v_cache)
    return (out, lse) if return_softmax_lse else out


def with_alibi(alibi_slopes, wants_dropped=False):
    """The option of fa3.attention. wants_dropped: asks for S_dmask."""
    if alibi_slopes is None:
        return {}
    if wants_dropped:
        why = "fa3 has no S_dmask of ALiBi; pass return_attn_probs=False"
        unsupported(alibi_slopes=(alibi_slopes, None, why))
    return {"alibi_slopes": alibi_slopes.detach()}


def scale_of(q, softmax_scale):
    """What softmax_scale is for q before whole_chunks."""
    return q.shape[-1] ** -0.5 if softmax_scale is None and q.shape[-1] % 8 else softmax_scale


def first_columns(x, like):
    return x if x.shape[-1] == like.shape[-1] else x[..., : like.shape[-1]]


def answer(q, k, v, named, return_attn_probs):
    named["scale"] = scale_of(q, named["scale"])
    filled = whole_chunks(q, k, v)
    if not return_attn_probs:
        return first_columns(forward(*filled, named)[0], v)
    asked = bool(named["dropout_p"])
    out, lse, weights, _ = forward_with_state(*filled, named, asked)
    return first_columns(out, v), lse, weights if asked else None

# SPDX-License-Identifier: Apache-2.0
"""Drop-in for the package flash_attn of FlashAttention-2: its functions, its order.

Semantics are those of fa3.attention. alibi_slopes, (hq,) or (b, hq), have no gradient, as in the
original; with dropout they are computed on the CPU alone. With
return_attn_probs the functions return (out, lse, S_dmask): with dropout the weights of the scores,
negative where they were dropped (_probabilities.py), which are for tests and take O(N^2) memory;
without dropout None, where the original has an empty tensor. Head dims that are no multiples of 8
are filled with zeros in copies, as the original does.
The functions of packed tensors take the arguments behind those in their docstrings by position or
by name, as flash_attn_func does.
"""

import inspect

from fa3._options import shows
from fa3.compat import flash_attn_2_cuda
from fa3.compat._arguments import length, options, unsupported
from fa3.compat._kvcache import attend
from fa3.compat._passes import forward, indices, rows, whole_chunks
from fa3.compat._passes_of_fa2 import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
    forward_with_state,
)

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


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q (b, sq, hq, d), k (b, sk, hk, d), v (b, sk, hk, dv) -> out (b, sq, hq, dv)."""
    named = options(softmax_scale, causal, window_size, softcap, deterministic, dropout_p=dropout_p)
    named |= with_alibi(alibi_slopes, dropout_p and return_attn_probs)
    return answer(q, k, v, named, return_attn_probs)


shows_tail = shows(list(inspect.signature(flash_attn_func).parameters.values())[3:])


@shows_tail
def flash_attn_kvpacked_func(q, kv, *tail, **named):
    """kv (b, sk, 2, hk, d)."""
    return flash_attn_func(q, *kv.unbind(2), *tail, **named)


@shows_tail
def flash_attn_qkvpacked_func(qkv, *tail, **named):
    """qkv (b, s, 3, h, d)."""
    return flash_attn_func(*qkv.unbind(2), *tail, **named)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
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


@shows_tail
def flash_attn_varlen_kvpacked_func(
    q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *tail, **named
):
    """Packed q (total_q, hq, d) and kv (total_k, 2, hk, d)."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return flash_attn_varlen_func(q, *kv.unbind(1), *lengths, *tail, **named)


@shows_tail
def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, *tail, **named):
    """Packed qkv (total, 3, h, d)."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*qkv.unbind(1), *lengths, *tail, **named)


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
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

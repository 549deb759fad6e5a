# SPDX-License-Identifier: Apache-2.0
"""The functions of flash_attn.cute (FlashAttention-4), in its order.

Functions return (out, lse). score_mod and mask_mod are functions of torch, as fa3.flex_attention
takes them: score_mod(score, b, h, q_idx, kv_idx), mask_mod(b, h, q_idx, kv_idx); not of CuTe.
score_mod_bwd is ignored: gradients go through score_mod itself. Hints for speed are accepted,
without effect: pack_gqa, scheduler_metadata, min_seqlen_k and those of the gather's backward. So is
num_splits, but for caches.
"""

import inspect

import fa3
from fa3.compat._arguments import float32, int32, joined, length, options, unsupported
from fa3.errors import Unsupported

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


def __dir__():
    return __all__


def flash_attn_func(
    q,
    k,
    v,
    qv=None,
    gather_kv_indices=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    aux_tensors=None,
    aux_scalars=None,
    block_sparse_tensors=None,
    block_sparse_tensors_bwd=None,
    return_lse=False,
    gather_bwd_recompute_p=False,
    gather_bwd_token_chunk=None,
):
    """q (b, sq, hq, d), k (b, sk, hk, d), v (b, sk, hk, dv) -> (out, lse)."""
    refuse(gather_kv_indices, aux_tensors, aux_scalars, block_sparse_tensors)
    backward_alone = "a backward has the mask of its forward: pass mask_mod, or fa3.masks.BlockMask"
    unsupported(block_sparse_tensors_bwd=(block_sparse_tensors_bwd, None, backward_alone))
    refuse_window(causal, window_size, mask_mod)
    named = options(softmax_scale, causal, window_size, softcap, deterministic)
    return attend(*joined(q, k, v, qv), learnable_sink, score_mod, mask_mod, named)


def flash_attn_varlen_func(
    q,
    k,
    v,
    qv=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    min_seqlen_k=None,
    seqused_q=None,
    seqused_k=None,
    gather_kv_indices=None,
    page_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    block_sparse_tensors=None,
    aux_tensors=None,
    aux_scalars=None,
    return_lse=False,
    scheduler_metadata=None,
    seqlen_k_per_split=None,
    disable_scheduler_metadata=False,
    gather_bwd_recompute_p=False,
    gather_bwd_token_chunk=None,
):
    """Packed q (total_q, hq, d), k and v (total_k, hk, ...), or batches; lse (hq, total_q)."""
    refuse(gather_kv_indices, aux_tensors, aux_scalars, block_sparse_tensors)
    unsupported(seqlen_k_per_split=(seqlen_k_per_split, None, "fa3 takes num_splits"))
    refuse_window(causal, window_size, mask_mod)
    named = options(softmax_scale, causal, window_size, softcap, deterministic)
    lengths = {
        "cu_seqlens_q": int32(cu_seqlens_q),
        "cu_seqlens_k": int32(cu_seqlens_k),
        "seqused_q": int32(seqused_q),
        "seqused_k": int32(seqused_k),
        "page_table": int32(page_table),
    }
    named |= {name: x for name, x in lengths.items() if x is not None}
    if cu_seqlens_q is not None:
        named["max_seqlen_q"] = length(max_seqlen_q)
    if cu_seqlens_k is not None:
        named["max_seqlen_k"] = length(max_seqlen_k)
    if page_table is not None:
        named["num_splits"] = max(num_splits, 0)
    return attend(*joined(q, k, v, qv), learnable_sink, score_mod, mask_mod, named)


def attend(q, k, v, sink, score_mod, mask_mod, named):
    """(out, lse). named: options of fa3.attention."""
    if score_mod is None and mask_mod is None:
        return fa3.attention(q, k, v, sink=float32(sink), return_lse=True, **named)
    refuse_cute(score_mod, "score_mod", 5)
    refuse_cute(mask_mod, "mask_mod", 4)
    others = named.pop("softcap"), named.pop("deterministic")
    reason = "fa3.flex_attention has none; write it as a part of score_mod"
    unsupported(
        learnable_sink=(sink, None, "not together with score_mod and mask_mod"),
        softcap=(others[0], 0.0, reason),
        deterministic=(others[1], False, "not together with score_mod and mask_mod"),
    )
    for name in ("attention_chunk", "sm_margin", "dropout_p"):
        named.pop(name)
    return fa3.flex_attention(
        q, k, v, score_mod=score_mod, mask_mod=mask_mod, return_lse=True, **named
    )


def refuse(gather_kv_indices, aux_tensors, aux_scalars, block_sparse_tensors):
    captured = "score_mod and mask_mod are functions of torch here, which capture tensors"
    unsupported(
        gather_kv_indices=(gather_kv_indices, None, "fa3 has block masks (fa3.masks), no gather"),
        aux_tensors=(aux_tensors, None, captured),
        aux_scalars=(aux_scalars, None, captured),
        block_sparse_tensors=(block_sparse_tensors, None, "pass mask_mod, or fa3.masks.BlockMask"),
    )


def refuse_window(causal, window_size, mask_mod):
    """What FlashAttention-4 takes in another way: its mask_mod replaces both masks, and
    in its window None alone is unbounded."""
    sides = window_size or (None, None)
    if mask_mod is not None and (causal or any(side not in (None, -1) for side in sides)):
        raise Unsupported(
            "mask_mod: expected neither causal nor window_size beside it, which FlashAttention-4 "
            f"passes over, got {causal} and {window_size}; write them as a part of mask_mod"
        )
    negative = [side is not None and side < 0 for side in sides]
    if any(negative) and not all(negative):
        raise Unsupported(
            f"window_size: expected sides >= 0, or None where it is unbounded, got {window_size}"
        )


def refuse_cute(function, name, count):
    """FlashAttention-4's own functions are of CuTe, and get the lengths and aux_tensors too."""
    if function is None or not callable(function):
        return
    try:
        takes = inspect.signature(function)
        takes.bind(*[None] * count)
    except TypeError:
        raise Unsupported(
            f"{name}: expected a function of torch with {count} arguments, as fa3.flex_attention "
            f"takes it, got {function!r}"
        ) from None
    except ValueError:  # without a signature
        return

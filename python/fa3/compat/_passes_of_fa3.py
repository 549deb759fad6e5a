# SPDX-License-Identifier: Apache-2.0
"""The private functions of FlashAttention-3, and the operators that torch's registry asks for.

Same arguments in the same order. The form of 2025, in which window_size, causal and out are passed
by name and the backward returns (dq, dk, dv, softmax_d), is understood too: yunchang and
FlashAttention-3's test of determinism call it so.
"""

import torch

from fa3.compat._arguments import joined, length, options, unsupported
from fa3.compat._kvcache import attend
from fa3.compat._passes import backward, forward, indices, no_softmax_d, rows


def _flash_attn_forward(
    q,
    k,
    v,
    k_new=None,
    v_new=None,
    qv=None,
    out_=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    cu_seqlens_k_new=None,
    seqused_q=None,
    seqused_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    page_table=None,
    kv_batch_idx=None,
    leftpad_k=None,
    rotary_cos=None,
    rotary_sin=None,
    seqlens_rotary=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size_left=-1,
    window_size_right=-1,
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=1,
    pack_gqa=None,
    sm_margin=0,
    *,
    window_size=None,
    out=None,
):
    """(out, lse, empty, empty): the last two hold the parts of a split in the original.

    With k_new: flash_attn_with_kvcache, whose cache_seqlens are seqused_k here.
    """
    window = (window_size_left, window_size_right) if window_size is None else window_size
    named = options(softmax_scale, causal, window, softcap, False, attention_chunk, sm_margin)
    out = out_ if out is None else out
    cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new = indices(
        cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new
    )
    seqused_q, seqused_k, page_table, kv_batch_idx, leftpad_k = indices(
        seqused_q, seqused_k, page_table, kv_batch_idx, leftpad_k
    )
    packing = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": length(max_seqlen_q)}
    cache = {"page_table": page_table, "batch_index": kv_batch_idx, "left_padding": leftpad_k}
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    if k_new is None and v_new is None and rotary_cos is None:
        packing |= {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": length(max_seqlen_k)}
        packing |= {"seqused_q": seqused_q, "seqused_k": seqused_k, "out": out}
        if any(x is not None for x in cache.values()):
            packing["num_splits"] = num_splits
        result = forward(*joined(q, k, v, qv), named | packing | cache | descales)
    else:
        only_attention = "not where k_new is appended"
        unsupported(
            cu_seqlens_k=(cu_seqlens_k, None, only_attention),
            seqused_q=(seqused_q, None, only_attention),
        )
        q, k_new, v_new = rows(q, k_new, v_new)
        result = attend(
            q,
            k,
            v,
            k_new,
            v_new,
            named,
            qv=qv,
            **packing,
            **cache,
            **descales,
            cache_seqlens=seqused_k,
            cu_seqlens_new=cu_seqlens_k_new,
            rotary=(rotary_cos, rotary_sin),
            rotary_interleaved=rotary_interleaved,
            first_position=seqlens_rotary,
            num_splits=num_splits,
            return_lse=True,
        )
        if out is not None:
            result = out.copy_(result[0]), result[1]
    nothing = torch.empty(0, device=q.device)
    return *result, nothing, nothing


def _flash_attn_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    sequed_q=None,
    sequed_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    dq=None,
    dk=None,
    dv=None,
    softmax_scale=None,
    is_causal=False,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    deterministic=False,
    sm_margin=0,
    *,
    window_size=None,
    causal=None,
):
    """softmax_d, which is empty; dq, dk and dv are written where they are given.

    With window_size by name, (dq, dk, dv, softmax_d).
    """
    window = (window_size_left, window_size_right) if window_size is None else window_size
    causal = is_causal if causal is None else causal
    named = options(softmax_scale, causal, window, softcap, deterministic, sm_margin=sm_margin)
    names = "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"
    lengths = indices(cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k)
    named |= zip(names, lengths, strict=True)
    named |= {"max_seqlen_q": length(max_seqlen_q), "max_seqlen_k": length(max_seqlen_k)}
    gradients = backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, named)
    softmax_d = no_softmax_d(softmax_lse)
    return softmax_d if window_size is None else (*gradients, softmax_d)

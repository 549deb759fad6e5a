# SPDX-License-Identifier: Apache-2.0
"""The private functions of flash_attn 2.8, on which ring and context parallelism are built.

Same arguments in the same order. The forwards return (out, softmax_lse, S_dmask, rng_state): the
LSE is (b, h, sq) or, packed, (h, total_q); S_dmask is empty and rng_state zeros, since there is no
dropout. The backwards write dq, dk and dv where they are given and return an empty softmax_d.
"""

import torch

from fa3.compat._arguments import length, options, unsupported
from fa3.compat._passes import backward, forward, indices, no_softmax_d


def _flash_attn_forward(
    q,
    k,
    v,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    return_softmax,
):
    refuse(dropout_p, alibi_slopes, return_softmax)
    window = window_size_left, window_size_right
    return without_dropout(*forward(q, k, v, options(softmax_scale, causal, window, softcap)))


def _flash_attn_varlen_forward(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    return_softmax=False,
    block_table=None,
    leftpad_k=None,
    seqused_k=None,
    zero_tensors=False,
    num_splits=0,
):
    refuse(dropout_p, alibi_slopes, return_softmax)
    cu_seqlens_q, cu_seqlens_k, block_table = indices(cu_seqlens_q, cu_seqlens_k, block_table)
    named = options(softmax_scale, causal, (window_size_left, window_size_right), softcap)
    named |= {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": length(max_seqlen_q)}
    if block_table is None:
        named |= {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": length(max_seqlen_k)}
    else:
        used = cu_seqlens_k.diff() if seqused_k is None else seqused_k
        named |= {"page_table": block_table, "seqused_k": used, "num_splits": num_splits}
    if seqused_k is not None:
        (named["seqused_k"],) = indices(seqused_k)
    if leftpad_k is not None:
        (named["left_padding"],) = indices(leftpad_k)
    return without_dropout(*forward(q, k, v, named))


def _flash_attn_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    deterministic,
    rng_state=None,
):
    refuse(dropout_p, alibi_slopes)
    window = window_size_left, window_size_right
    named = options(softmax_scale, causal, window, softcap, deterministic)
    backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, named)
    return no_softmax_d(softmax_lse)


def _flash_attn_varlen_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    deterministic,
    rng_state=None,
    zero_tensors=False,
):
    refuse(dropout_p, alibi_slopes)
    cu_seqlens_q, cu_seqlens_k = indices(cu_seqlens_q, cu_seqlens_k)
    window = window_size_left, window_size_right
    named = options(softmax_scale, causal, window, softcap, deterministic)
    named |= {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": length(max_seqlen_q)}
    named |= {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": length(max_seqlen_k)}
    backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, named)
    return no_softmax_d(softmax_lse)


def refuse(dropout_p, alibi_slopes, return_softmax=False):
    unsupported(
        dropout_p=(dropout_p, 0.0, "fa3 has no dropout"),
        alibi_slopes=(alibi_slopes, None, "fa3 has no ALiBi"),
        return_softmax=(return_softmax, False, "fa3 never forms the probabilities"),
    )


def without_dropout(out, lse):
    return out, lse, out.new_empty(0), torch.zeros(2, dtype=torch.int64, device=out.device)

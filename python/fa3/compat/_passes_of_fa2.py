# SPDX-License-Identifier: Apache-2.0
"""The private functions of flash_attn 2.8, on which ring and context parallelism are built.

Same arguments in the same order. The forwards return (out, softmax_lse, S_dmask, rng_state): the
LSE is (b, h, sq) or, packed, (h, total_q); S_dmask is empty unless return_softmax asks for it
(_probabilities.py); rng_state is int64, the seed and offset of dropout, which is drawn from the
generator of q's device, and zeros without. The backwards write dq, dk and dv where they are given
and return an empty softmax_d.
"""

import torch

from fa3.compat._arguments import length, options, unsupported
from fa3.compat._passes import backward, forward, indices, no_softmax_d
from fa3.compat._probabilities import signed_weights
from fa3.errors import InvalidArgument
from fa3.torch.dropout import draw


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
    refuse(alibi_slopes)
    window = window_size_left, window_size_right
    named = options(softmax_scale, causal, window, softcap, dropout_p=dropout_p)
    return forward_with_state(q, k, v, named, return_softmax)


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
    refuse(alibi_slopes)
    cu_seqlens_q, cu_seqlens_k, block_table = indices(cu_seqlens_q, cu_seqlens_k, block_table)
    window = window_size_left, window_size_right
    named = options(softmax_scale, causal, window, softcap, dropout_p=dropout_p)
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
    return forward_with_state(q, k, v, named, return_softmax)


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
    refuse(alibi_slopes)
    window = window_size_left, window_size_right
    named = options(softmax_scale, causal, window, softcap, deterministic, dropout_p=dropout_p)
    named |= seed_of(rng_state, dropout_p)
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
    refuse(alibi_slopes)
    cu_seqlens_q, cu_seqlens_k = indices(cu_seqlens_q, cu_seqlens_k)
    window = window_size_left, window_size_right
    named = options(softmax_scale, causal, window, softcap, deterministic, dropout_p=dropout_p)
    named |= seed_of(rng_state, dropout_p)
    named |= {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": length(max_seqlen_q)}
    named |= {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": length(max_seqlen_k)}
    backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, named)
    return no_softmax_d(softmax_lse)


def refuse(alibi_slopes):
    unsupported(
        alibi_slopes=(
            alibi_slopes,
            None,
            "fa3 has ALiBi in flash_attn_func and flash_attn_varlen_func alone",
        )
    )


def forward_with_state(q, k, v, named, return_softmax):
    """(out, softmax_lse, S_dmask, rng_state) of fa3.attention with options by name."""
    if not named["dropout_p"]:
        out, lse = forward(q, k, v, named)
        seed = torch.zeros(2, dtype=torch.int64, device=q.device)
    else:
        seed = draw(q.device)
        named = named | {"dropout_seed": seed}
        out, lse = forward(q, k, v, named)
    weights = signed_weights(q, k, named) if return_softmax else out.new_empty(0)
    return out, lse, weights, seed


def seed_of(rng_state, dropout_p):
    if dropout_p and rng_state is None:
        raise InvalidArgument("rng_state: expected the forward's with dropout_p, got None")
    return {"dropout_seed": rng_state if dropout_p else None}

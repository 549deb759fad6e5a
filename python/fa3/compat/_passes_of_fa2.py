# SPDX-License-Identifier: Apache-2.0
"""The private functions of flash_attn 2.8, on which ring and context parallelism are built.

Same arguments in the same order. The forwards return (out, softmax_lse, S_dmask, rng_state): the
LSE is (b, h, sq) or, packed, (h, total_q); S_dmask is empty unless return_softmax asks for it: the
weights of the scores, negative where dropout dropped them; rng_state is int64, the seed and offset
of dropout, which is drawn from the generator of q's device, and zeros without. The backwards write
dq, dk and dv where they are given and return an empty softmax_d.
"""

import torch

import fa3
from fa3._options import OF_BOTH_PASSES, Options, in_order
from fa3.compat._arguments import length, options, unsupported
from fa3.compat._passes import backward, forward, indices, no_softmax_d
from fa3.errors import InvalidArgument
from fa3.torch import textbook
from fa3.torch.dropout import draw

KEYS_AT_ONCE = 128  # a head dim of every engine


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


@torch.no_grad()
def signed_weights(q, k, named):
    """S_dmask: (b, heads, queries, keys) in q's dtype; extents are the longest sequence's, over 128
    rounded. For tests.

    fa3's kernels never form it; this is the formula, with every score of a sequence in memory. A
    weight is exp(score - the largest score of its row), so that a row's largest is 1: flash_attn's
    own are those of its kernels' blocks, and _get_block_size_n tells its tests how wide a block is.
    What a query does not see is 0. A sequence has the first rows and columns of its matrix; the
    others are 0.
    """
    options = Options(*in_order("attention", named, OF_BOTH_PASSES))
    rows_q = textbook.rows_of_sequences(q, options.cu_seqlens_q, options.seqused_q)
    rows_k = textbook.rows_of_sequences(k, options.cu_seqlens_k, options.seqused_k)
    flat_q, flat_k = (x.flatten(0, 1) if x.ndim == 4 else x for x in (q, k))
    longest = [max((at.stop - at.start for at in rows), default=0) for rows in (rows_q, rows_k)]
    heads, wide = q.shape[-2], torch.promote_types(q.dtype, torch.float32)
    found = q.new_zeros((len(rows_q), heads, *(-(-rows // 128) * 128 for rows in longest)))
    for matrix, at_q, at_k in zip(found, rows_q, rows_k, strict=True):
        scores = textbook.scores_of(*(x.to(wide) for x in (flat_q[at_q], flat_k[at_k])), options)
        if scores.numel():
            weights = (scores - scores.amax(-1, keepdim=True)).exp().nan_to_num_(0.0)
            matrix[:, : scores.shape[1], : scores.shape[2]] = weights
    if options.dropout_p:
        dropped = dropped_by_kernels(options, (len(rows_q), heads, *longest))
        part = found[..., : longest[0], : longest[1]]
        part.copy_(part.where(~dropped, -part))
    return found


def dropped_by_kernels(options, shape):
    """True where a call with these options drops a weight: (b, heads, queries, keys).

    Read from the kernels themselves, where all scores are 0 and V is a part of the identity, so
    that a column of the output is a weight: they do on their device what a formula would on a CPU.
    """
    batch, heads, queries, keys = shape
    seed = options.dropout_seed
    made = {"dtype": torch.bfloat16, "device": seed.device}
    dropped = torch.empty(shape, dtype=torch.bool, device=seed.device)
    q = torch.zeros(batch, queries, heads, KEYS_AT_ONCE, **made)
    k = torch.zeros(batch, keys, 1, KEYS_AT_ONCE, **made)
    for first in range(0, keys, KEYS_AT_ONCE):
        v = torch.zeros_like(k)
        part = v[:, first : first + KEYS_AT_ONCE, 0]
        part.diagonal(dim1=1, dim2=2).fill_(1)
        out = fa3.attention(q, k, v, dropout_p=options.dropout_p, dropout_seed=seed)
        columns = out[..., : part.shape[1]].permute(0, 2, 1, 3)
        dropped[..., first : first + KEYS_AT_ONCE] = columns == 0
    return dropped

# SPDX-License-Identifier: Apache-2.0
"""S_dmask of flash_attn 2: weights of the scores, negative where dropout dropped them. For tests.

fa3's kernels never form it; this is the formula, with every score of a sequence in memory. A weight
is exp(score - the largest score of its row), so that a row's largest is 1: flash_attn's own are
those of its kernels' blocks, and _get_block_size_n tells its tests how wide a block is.
"""

import torch

import fa3
from fa3._options import OF_BOTH_PASSES, Options, in_order
from fa3.torch import textbook

KEYS_AT_ONCE = 128  # a head dim of every engine


@torch.no_grad()
def signed_weights(q, k, named):
    """(b, heads, queries, keys) in q's dtype; extents are the longest sequence's, over 128 rounded.

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

# SPDX-License-Identifier: Apache-2.0
"""S_dmask of flash_attn 2: the probabilities, negative where dropout dropped them. For tests.

fa3's kernels never form them; this is the formula, with every score of a batch in memory.
"""

import torch

from fa3._options import OF_BOTH_PASSES, Options, in_order
from fa3.torch import textbook


@torch.no_grad()
def signed_probabilities(q, k, named):
    """(b, heads, queries, keys) in q's dtype; extents are the longest sequence's, over 128 rounded.

    Probabilities come before dropout and sum to 1. What a query does not see is 0. A sequence has
    the first rows and columns of its matrix; the others are 0.
    """
    options = Options(*in_order("attention", named, OF_BOTH_PASSES))
    rows_q = textbook.rows_of_sequences(q, options.cu_seqlens_q, options.seqused_q)
    rows_k = textbook.rows_of_sequences(k, options.cu_seqlens_k, options.seqused_k)
    flat_q, flat_k = (x.flatten(0, 1) if x.ndim == 4 else x for x in (q, k))
    longest = [max((at.stop - at.start for at in rows), default=0) for rows in (rows_q, rows_k)]
    shape = len(rows_q), q.shape[-2], *(-(-rows // 128) * 128 for rows in longest)
    found = q.new_zeros(shape)
    for number, (at_q, at_k) in enumerate(zip(rows_q, rows_k, strict=True)):
        weights, _ = textbook.weights_of(flat_q[at_q].double(), flat_k[at_k].double(), options)
        if options.dropout_p:
            weights = weights.where(textbook.mask_of(options, number, weights.shape), -weights)
        found[number, :, : weights.shape[1], : weights.shape[2]] = weights.to(q.dtype)
    return found

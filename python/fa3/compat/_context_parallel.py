# SPDX-License-Identifier: Apache-2.0
"""Decode context parallelism: ranks hold the keys of each sequence in turn.

Local key j of rank r is key j * world + r of its sequence. A mask by places then ends between
other local keys for each query, so each query becomes a sequence of its own, with lengths that are
computed on the device: nothing waits.
"""

import torch

from fa3.errors import InvalidArgument, Unsupported


def keys_in_turn(call, num_queries, world, rank, totals):
    """The options of fa3.attention for this rank's keys, from those of a call over all keys.

    call has packed queries; totals: (batch,), the keys of each sequence on all ranks.
    """
    if world < 1 or not 0 <= rank < world:
        raise InvalidArgument(
            f"cp_rank: expected a rank of the {world} in cp_world_size, from 0, got {rank}"
        )
    left, right = call["window"]
    if call["causal"]:
        right = 0  # of the window's end and the diagonal, whichever comes first
    sees_all = left < 0 and (right < 0 or call["max_seqlen_q"] == 1)
    if sees_all or num_queries == 0:
        return call | {"causal": False, "window": (-1, -1)}
    if totals is None:
        raise InvalidArgument(
            "cp_tot_seqused_k: expected the lengths on all ranks, which a mask needs"
        )
    if call["seqused_k"] is None:
        raise Unsupported(
            "cu_seqlens_k: expected seqused_k, with keys in pages or in a batch: a mask over the "
            "keys of one rank takes each query for a sequence, and these cannot share packed keys"
        )
    starts, used = call["cu_seqlens_q"], call["seqused_k"]
    query = torch.arange(num_queries + 1, dtype=torch.int32, device=starts.device)
    sequence = torch.searchsorted(starts[1:], query[:-1], right=True)
    is_owned = sequence < used.shape[0]
    sequence.clamp_(max=used.shape[0] - 1)
    # The last query of a sequence is at its last key.
    place = totals[sequence] - starts[sequence + 1] + query[:-1]
    end = used[sequence] * is_owned
    if right >= 0:
        end = torch.minimum(end, local_keys_before(place + right + 1, world, rank))
    begin = local_keys_before(place - left, world, rank) if left >= 0 else None
    of_query = {
        "cu_seqlens_q": query,
        "max_seqlen_q": 1,
        "seqused_k": end.int(),
        "batch_index": sequence.int(),
        "left_padding": None if begin is None else torch.minimum(begin, end).int(),
    }
    for name in ("q_descale", "k_descale", "v_descale"):
        if call[name] is not None and call[name].dim() > 1:
            of_query[name] = call[name][sequence]
    return call | of_query | {"causal": False, "window": (-1, -1)}


def local_keys_before(key, world, rank):
    """How many of the rank's keys come before a key of the sequence."""
    return ((key - rank + world - 1) // world).clamp(min=0)

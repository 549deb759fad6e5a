# SPDX-License-Identifier: Apache-2.0
"""Masks as functions: mask_mod, and block masks, become a part of the score function.

A score that they hide is -inf. torch's BlockMask says of each block of keys whether a block of
queries sees none, some (mask_mod says which) or all of it: a captured tensor of numbers 0, 1 and 2.
fa3's has bits instead of a function. Next: lists.py, where engines skip what is hidden.
"""

import torch

from fa3.errors import InvalidArgument
from fa3.flex.torch_mask import kept_of
from fa3.masks import BLOCK, FULL, BlockMask

SOME, ALL = 1, 2
WORD = 32


def mask_of(mask_mod, parts):
    """One mask_mod of both, either of which may be None; None if both are. parts: of a block mask,
    see parts_of()."""
    if parts is None:
        return mask_mod
    rule = rule_of_bits(*parts) if len(parts) == 2 else rule_of_states(*parts)
    if mask_mod is None:
        return rule
    return lambda *place: seen_of(mask_mod(*place)) & rule(*place)


def with_mask(score_mod, mask):
    """One score function of both, score_mod may be None."""

    def masked(score, b, h, q_idx, kv_idx):
        new = score if score_mod is None else score_mod(score, b, h, q_idx, kv_idx)
        return torch.where(seen_of(mask(b, h, q_idx, kv_idx)), new, float("-inf"))

    return masked


def seen_of(seen):
    """What a mask_mod returned, as a boolean of torch."""
    if isinstance(seen, bool):
        return torch.tensor(seen)
    if isinstance(seen, torch.Tensor) and seen.dtype == torch.bool:
        return seen
    got = f"a tensor of {seen.dtype}" if isinstance(seen, torch.Tensor) else repr(seen)
    raise InvalidArgument(
        f"mask_mod: expected a boolean, True where the query sees the key, got {got}"
    )


def parts_of(block_mask):
    """What a block mask says, as what its mask_mod captures: (blocks, bits) of fa3's, (states, rows
    and columns of a block, mask_mod) of torch's."""
    if isinstance(block_mask, BlockMask):
        return (*block_mask,)
    for name in ("kv_num_blocks", "kv_indices", "mask_mod", "BLOCK_SIZE"):
        if not hasattr(block_mask, name):
            raise InvalidArgument(
                "block_mask: expected fa3.masks.BlockMask, or a BlockMask of"
                f" torch.nn.attention.flex_attention, which has {name}; got"
                f" {type(block_mask).__name__}; fa3.masks.from_dense makes one of booleans"
            )
    return states_of(block_mask), *block_mask.BLOCK_SIZE, block_mask.mask_mod


# A rule names nothing but its own variables: functions.py then knows it again.


def rule_of_states(states, rows, columns, mask_mod):
    by_batch, by_head = (extent > 1 for extent in states.shape[:2])
    some, all_of_it, as_boolean = SOME, ALL, seen_of

    def rule(b, h, q_idx, kv_idx):
        state = states[b if by_batch else 0, h if by_head else 0, q_idx // rows, kv_idx // columns]
        seen = as_boolean(mask_mod(b, h, q_idx, kv_idx))
        return (state == all_of_it) | ((state == some) & seen)

    return rule


def rule_of_bits(blocks, bits):
    by_batch, by_head = (extent > 1 for extent in blocks.shape[:2])
    size, width, full = BLOCK, WORD, FULL
    count = 0 if bits is None else bits.shape[0]

    def rule(b, h, q_idx, kv_idx):
        entry = blocks[b if by_batch else 0, h if by_head else 0, q_idx // size, kv_idx // size]
        if count == 0:
            return entry == full
        word = bits[torch.clamp(entry - 1, 0, count - 1), q_idx % size, kv_idx % size // width]
        bit = (word >> (kv_idx % width)) & 1
        # An entry that names no bits hides its block, as in the engines.
        some = (entry > 0) & (entry <= count)
        return (entry == full) | (some & (bit == 1))

    return rule


def states_of(block_mask):
    """(batch, heads, query blocks, key blocks) of 0, SOME or ALL, kept with a BlockMask."""
    return kept_of(block_mask, "_fa3_states", new_states)


def new_states(block_mask):
    states = marked(block_mask.kv_num_blocks, block_mask.kv_indices, SOME)
    if block_mask.full_kv_num_blocks is None:
        return states
    full = marked(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, ALL)
    return torch.maximum(states, full)


def marked(counts, indices, state):
    blocks = indices.shape[-1]
    listed = torch.arange(blocks, device=indices.device) < counts[..., None]
    marks = torch.where(listed, state, 0).to(torch.int32)
    # Entries behind the count may name any block again: the larger mark stays.
    return torch.zeros_like(marks).scatter_reduce(-1, indices.long(), marks, "amax")

# SPDX-License-Identifier: Apache-2.0
"""Masks as functions: mask_mod, and torch's BlockMask, become a part of the score function.

A score that they hide is -inf. A BlockMask says of each block of keys whether a block of queries
sees none, some (mask_mod says which) or all of it: a captured tensor of numbers 0, 1 and 2.
"""

import torch

from fa3.errors import InvalidArgument

SOME, ALL = 1, 2


def with_masks(score_mod, mask_mod, block_mask):
    """One score function of all three, any of which may be None; None if all are."""
    masks = []
    if mask_mod is not None:
        masks.append(mask_mod)
    if block_mask is not None:
        masks.append(block_rule(block_mask))
    if not masks:
        return score_mod

    def masked(score, b, h, q_idx, kv_idx):
        new = score if score_mod is None else score_mod(score, b, h, q_idx, kv_idx)
        for mask in masks:
            new = torch.where(mask(b, h, q_idx, kv_idx), new, float("-inf"))
        return new

    return masked


def block_rule(block_mask):
    """The mask_mod that says what a BlockMask says."""
    for name in ("kv_num_blocks", "kv_indices", "mask_mod", "BLOCK_SIZE"):
        if not hasattr(block_mask, name):
            raise InvalidArgument(
                f"block_mask: expected a BlockMask of torch.nn.attention.flex_attention, which has"
                f" {name}; got {type(block_mask).__name__}"
            )
    states = states_of(block_mask)
    rows, columns = block_mask.BLOCK_SIZE

    def rule(b, h, q_idx, kv_idx):
        state = states[b, h, q_idx // rows, kv_idx // columns]
        seen = block_mask.mask_mod(b, h, q_idx, kv_idx)
        return (state == ALL) | ((state == SOME) & seen)

    return rule


def states_of(block_mask):
    """(batch, heads, query blocks, key blocks) of 0, SOME or ALL, made once for a BlockMask."""
    states = getattr(block_mask, "_fa3_states", None)
    if states is None:
        states = marked(block_mask.kv_num_blocks, block_mask.kv_indices, SOME)
        if block_mask.full_kv_num_blocks is not None:
            full = marked(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, ALL)
            states = torch.maximum(states, full)
        block_mask._fa3_states = states
    return states


def marked(counts, indices, state):
    blocks = indices.shape[-1]
    listed = torch.arange(blocks, device=indices.device) < counts[..., None]
    marks = torch.where(listed, state, 0).to(torch.int32)
    # Entries behind the count may name any block again: the larger mark stays.
    return torch.zeros_like(marks).scatter_reduce(-1, indices.long(), marks, "amax")

# SPDX-License-Identifier: Apache-2.0
"""flash_attn.bert_padding: between padded batches and packed sequences, with gradients.

A padded batch is (batch, seqlen, ...) with a mask (batch, seqlen) of what is valid; a packed one is
(total, ...), the valid rows of all sequences one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = [
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "rearrange",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def __dir__():
    return __all__


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Rows `indices` (n) of input (rows, ...) -> (n, ...)."""
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """values (n, ...) as rows `indices` of zeros (first_axis_dim, ...)."""
    zeros = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return zeros.index_copy(0, indices.long(), values)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """(index_first_axis(input, indices), input)."""
    return index_first_axis(input, indices), input


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Packs the valid rows of a padded batch.

    Args:
        hidden_states: (batch, seqlen, ...).
        attention_mask: (batch, seqlen), bool or int: 1 is valid.
        unused_mask: the same, of rows that are kept though they are not valid.

    Returns:
        The rows (total, ...); their places among batch * seqlen (total); cu_seqlens (batch + 1),
        int32; the longest sequence, an int; valid rows of each sequence (batch), int32.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    return *packed(hidden_states, kept, kept.sum(dim=-1, dtype=torch.int32)), used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Packs rows of a padded batch whose sequences hold several short ones.

    attention_mask_in_length (batch, seqlen), int: the lengths of the short sequences of each
    sequence, then zeros. Returns what unpad_input does, without the last.
    """
    places = torch.arange(attention_mask_in_length.shape[1], device=hidden_states.device)
    kept = places < attention_mask_in_length.sum(dim=-1, keepdim=True)
    lengths = attention_mask_in_length[attention_mask_in_length > 0]
    return packed(hidden_states, kept, lengths)


def packed(hidden_states, kept, lengths):
    indices = kept.flatten().nonzero().flatten()
    cu_seqlens = pad(lengths.cumsum(dim=0, dtype=torch.int32), (1, 0))
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, cu_seqlens, lengths.max().item()


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Packed rows (total, ...) back to (batch, seqlen, ...), zeros elsewhere."""
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.unflatten(0, (batch, seqlen))


def rearrange(tensor: Tensor, pattern: str, **sizes: int) -> Tensor:
    """einops.rearrange, which programs import from here; needs einops."""
    from einops import rearrange

    return rearrange(tensor, pattern, **sizes)

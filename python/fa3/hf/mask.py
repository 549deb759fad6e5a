# SPDX-License-Identifier: Apache-2.0
"""The mask that Transformers asks for: who sees whom as a few numbers, never (queries, keys) bits.

Transformers describes a mask by a function of (batch, head, query, key) that is put together from
named parts. The parts are read here; one without a meaning in fa3 raises fa3.Unsupported. Eager
attention obeys its mask and nothing else, so the layers obey this one (attention.py), whatever
their own `is_causal` and `sliding_window` say.
"""

from typing import NamedTuple

import torch

from fa3.errors import Unsupported


class Pattern(NamedTuple):
    """Who sees whom, besides padding. Query i stands at key position keys - queries + i."""

    queries: int
    length: int  # of the keys and values that the layer will hand over
    keys: int  # those of them that exist: a static cache is longer than what it holds
    causal: bool = False
    window: tuple = (-1, -1)
    chunk: int = 0
    sequences: "torch.Tensor | None" = None  # (batch, queries): packed sequences, by number

    def depends_on_position(self):
        return self.causal or self.window != (-1, -1) or self.chunk > 0


class Mask(torch.Tensor):
    """(batch, keys) bool, False where there is padding, with its pattern.

    A mask that a model computed from this one has no pattern, and no layer will take it.
    """

    pattern: Pattern | None = None
    is_padded: bool = True

    @staticmethod
    def of(tensor, pattern, is_padded):
        mask = tensor.as_subclass(Mask)
        mask.pattern, mask.is_padded = pattern, is_padded
        return mask

    @classmethod
    def __torch_function__(cls, function, types, args=(), keywords=None):
        try:
            return super().__torch_function__(function, types, args, keywords)
        except (IndexError, RuntimeError) as error:  # as for a mask of shape (batch, 1, rows, keys)
            raise Unsupported(
                f"attention_mask: the model computes with its mask ({error}), and fa3's has the "
                'shape (batch, keys); attn_implementation="eager" runs this model'
            ) from error

    def to(self, *args, **keywords):
        """Models that are spread over several devices move their masks."""
        return Mask.of(super().to(*args, **keywords), self.pattern, self.is_padded)


def attention_mask(
    batch_size,
    q_length,
    kv_length,
    q_offset=0,
    kv_offset=0,
    mask_function=None,
    attention_mask=None,
    device=None,
    **others,
):
    """The mask function that Transformers calls; arguments as in transformers.masking_utils.

    Args:
        q_offset, kv_offset: positions of the first query and of the first key.
        attention_mask: None; or (batch, keys) bool, False where there is padding; or a mask that
            was made here before, for an outer model.
        others: hints for other implementations (dtype, config, use_vmap, `allow_*`).

    Raises:
        fa3.Unsupported: a part of mask_function that fa3 has no option for.
    """
    if isinstance(attention_mask, Mask):
        return attention_mask
    parts = describe(mask_function, kv_length)
    keys = kv_length
    if parts.get("causal"):
        keys = min(kv_length, int(q_offset) + q_length - kv_offset)
    pattern = Pattern(q_length, kv_length, keys, **parts)
    if pattern.depends_on_position() and int(q_offset) + q_length != kv_offset + keys:
        raise Unsupported(
            f"attention_mask: expected {q_length} queries that end where the {keys} keys end, got "
            f"queries from position {int(q_offset)} and keys from {kv_offset}; "
            'attn_implementation="sdpa" takes any mask'
        )
    if pattern.chunk and kv_offset:
        raise Unsupported(
            f"attention_mask: expected chunks to be counted from the first of the keys, got keys "
            f'from {kv_offset}; attn_implementation="sdpa" takes any mask'
        )
    if attention_mask is None:
        nothing_hidden = torch.ones((), dtype=torch.bool, device=device)
        return Mask.of(nothing_hidden.expand(batch_size, keys), pattern, is_padded=False)
    padding = attention_mask[:, kv_offset : kv_offset + keys].bool()
    if missing := keys - padding.shape[1]:
        padding = torch.nn.functional.pad(padding, (0, missing))
    return Mask.of(padding, pattern, is_padded=not padding.all())


def describe(mask_function, kv_length):
    """The fields of a Pattern that a mask function of Transformers stands for."""
    kind = mask_function.__qualname__.split(".")[0]
    cells = mask_function.__closure__ or ()
    names = mask_function.__code__.co_freevars
    held = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
    if kind == "bidirectional_mask_function":
        return {}
    if kind == "causal_mask_function":
        return {"causal": True}
    if kind == "sliding_window_overlay":
        return {"window": (held["sliding_window"] - 1, -1)}
    if kind == "sliding_window_bidirectional_overlay":
        return {"window": (held["sliding_window"], held["sliding_window"])}
    if kind == "chunked_overlay":
        return {"chunk": held["chunk_size"]} if kv_length > held["chunk_size"] else {}
    if kind == "packed_sequence_mask_function":
        return {"sequences": held["packed_sequence_mask"]}
    if kind == "remap_positions_for_packed_sequence":  # counted from the sequence's own beginning
        return describe(held["mask_function"], kv_length)
    if kind == "and_masks":
        parts = [describe(part, kv_length) for part in held["mask_functions"]]
        named = [name for part in parts for name in part]
        if len(set(named)) == len(named):
            return {name: value for part in parts for name, value in part.items()}
    raise Unsupported(
        f"attention_mask: expected a causal, bidirectional, sliding window or packed mask, got "
        f'{mask_function.__qualname__} of the model; attn_implementation="sdpa" takes any mask'
    )

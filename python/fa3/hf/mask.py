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
    unseen: int = 0  # of these the first ones, which no query reaches
    causal: bool = False
    window: tuple = (-1, -1)
    chunk: int = 0  # keys a chunk, counted from the first key that is seen and no padding
    sequences: "torch.Tensor | None" = None  # (batch, queries): packed sequences, by number

    def depends_on_position(self):
        return self.causal or self.window != (-1, -1) or self.chunk > 0


# What changes no element of a mask; the shape is compared (Mask.__torch_function__).
KEEPS_ELEMENTS = {"bool", "clone", "contiguous", "detach", "reshape", "to", "view"}


class Mask(torch.Tensor):
    """(batch, keys) bool, False where there is padding, with its pattern.

    Models move and copy their masks. A mask that a model computed from this one has no pattern,
    and no layer will take it.
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
            made = super().__torch_function__(function, types, args, keywords)
        except (IndexError, RuntimeError) as error:  # as for a mask of shape (batch, 1, rows, keys)
            raise Unsupported(
                f"attention_mask: the model computes with its mask ({error}), and fa3's has the "
                'shape (batch, keys); attn_implementation="eager" runs this model'
            ) from error
        if isinstance(made, Mask) and getattr(function, "__name__", "") in KEEPS_ELEMENTS:
            source = args[0]
            if made.dtype == source.dtype and made.shape == source.shape:
                made.pattern, made.is_padded = source.pattern, source.is_padded
        return made


def attention_mask(
    batch_size,
    q_length=None,
    kv_length=None,
    q_offset=0,
    kv_offset=0,
    mask_function=None,
    attention_mask=None,
    device=None,
    cache_position=None,
    **others,
):
    """The mask function that Transformers calls; arguments as in transformers.masking_utils.

    Args:
        q_offset, kv_offset: positions of the first query and of the first key.
        cache_position: (q_length,), the positions of the queries: Transformers before 5.5 gives
            them in place of q_length, q_offset and device.
        attention_mask: None; or (batch, keys) bool, False where there is padding; or a mask that
            was made here before, for an outer model or by generate().
        others: hints for other implementations (dtype, config, use_vmap, `allow_*`).

    Raises:
        fa3.Unsupported: a part of mask_function that fa3 has no option for, or padding between
            tokens that see each other by their distance.
    """
    if isinstance(attention_mask, Mask):
        return attention_mask
    if cache_position is not None:
        q_length, device = cache_position.shape[0], cache_position.device
        q_offset = cache_position[0]
    pattern, chunk_starts = pattern_of(mask_function, q_length, kv_length, int(q_offset), kv_offset)
    if attention_mask is None:
        pattern = without_unseen(pattern, first_seen(pattern, kv_offset, 0))
        nothing_hidden = torch.ones((), dtype=torch.bool, device=device)
        shape = batch_size, pattern.keys - pattern.unseen
        return Mask.of(nothing_hidden.expand(shape), pattern, is_padded=False)
    padding = attention_mask[:, kv_offset : kv_offset + pattern.keys].bool()
    if missing := pattern.keys - padding.shape[1]:
        padding = torch.nn.functional.pad(padding, (0, missing))
    first = first_seen(pattern, kv_offset, chunk_starts)
    if pattern.chunk:  # rows that are padded on the left start their chunks there
        padding = padding & (torch.arange(pattern.keys, device=first.device) >= first[:, None])
        first = int(first.min())
    pattern = without_unseen(pattern, first)
    padding = padding[:, pattern.unseen :]
    is_padded = not padding.all()
    if is_padded:
        refuse_holes(padding, pattern, kv_offset, chunk_starts)
    return Mask.of(padding, pattern, is_padded)


def pattern_of(mask_function, q_length, kv_length, q_offset, kv_offset):
    """The pattern over all keys, and the position where each row's first chunk starts."""
    parts = describe(mask_function)
    chunk_starts, restarts = parts.pop("left_padding", None), parts.pop("restarts", False)
    keys = kv_length
    if parts.get("causal"):
        keys = min(kv_length, q_offset + q_length - kv_offset)
    pattern = Pattern(q_length, kv_length, keys, **parts)
    if pattern.depends_on_position() and q_offset + q_length != kv_offset + keys:
        raise Unsupported(
            f"attention_mask: expected {q_length} queries that end where the {keys} keys end, got "
            f"queries from position {q_offset} and keys from {kv_offset}; "
            'attn_implementation="sdpa" takes any mask'
        )
    if pattern.chunk and pattern.sequences is not None and not restarts:  # Transformers 4
        raise Unsupported(
            "attention_mask: expected chunks that every packed sequence counts anew, got some that "
            'go on from one to the next; attn_implementation="sdpa" takes any mask'
        )
    return pattern, chunk_starts


def first_seen(pattern, kv_offset, chunk_starts):
    """The first key that the first query sees; no later query sees an earlier one.

    chunk_starts: the position from which chunks are counted, or (batch,) of them.
    """
    own = pattern.keys - pattern.queries  # the first query's own key
    if pattern.chunk:
        return own - (own + kv_offset - chunk_starts) % pattern.chunk
    return own - pattern.window[0] if pattern.window[0] >= 0 else 0


def without_unseen(pattern, first):
    """The pattern of the keys from `first` on. A single query sees them all, so that no padding
    between them, as after prompts that were padded on the right, can change what it sees."""
    pattern = pattern._replace(unseen=max(first, 0))
    if pattern.queries == 1 and pattern.causal:
        pattern = pattern._replace(window=(-1, -1), chunk=0)
    return pattern


def refuse_holes(padding, pattern, kv_offset, chunk_starts):
    """Padding is taken out, so that what follows it moves up: windows would reach too far, and
    chunks end too late."""
    if pattern.window == (-1, -1) and not pattern.chunk:
        return
    begins = padding[:, 1:] & ~padding[:, :-1]
    moves = begins.sum(dim=1) + padding[:, 0] > 1
    if pattern.chunk:
        begin = padding.int().argmax(dim=1) + pattern.unseen + kv_offset
        moves |= padding.any(dim=1) & ((begin - chunk_starts) % pattern.chunk != 0)
    if moves.any():
        raise Unsupported(
            "attention_mask: expected no padding between the tokens of a sequence where a sliding "
            'window or chunks count them; pad on the left, or use attn_implementation="sdpa"'
        )


def describe(mask_function):
    """The fields of a Pattern that a mask function of Transformers stands for. Beside a chunk also
    `left_padding` (batch,), the position where the first one starts; and `restarts` where every
    packed sequence counts from its own beginning."""
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
        return {"chunk": held["chunk_size"], "left_padding": held["left_padding"]}
    if kind == "packed_sequence_mask_function":
        numbers = held["packed_sequence_mask"]  # of a single sequence too in Transformers 4
        return {"sequences": numbers} if (numbers[:, -1] != numbers[:, 0]).any() else {}
    if kind == "remap_positions_for_packed_sequence":
        return {**describe(held["mask_function"]), "restarts": True}
    if kind == "and_masks":
        parts = [describe(part) for part in held["mask_functions"]]
        named = [name for part in parts for name in part]
        if len(set(named)) == len(named):
            return {name: value for part in parts for name, value in part.items()}
    raise Unsupported(
        f"attention_mask: expected a causal, bidirectional, sliding window or packed mask, got "
        f'{mask_function.__qualname__} of the model; attn_implementation="sdpa" takes any mask'
    )

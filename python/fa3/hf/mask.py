# SPDX-License-Identifier: Apache-2.0
"""The mask that Transformers asks for: who sees whom as a few numbers, never (queries, keys) bits.

Transformers describes a mask by a function of (batch, head, query, key) that is put together from
named parts. `describe` reads the parts; one without a meaning in fa3 raises fa3.Unsupported. Eager
attention obeys its mask and nothing else, so the layers obey this one (attention.py), whatever
their own `is_causal` and `sliding_window` say.

A Mask is made once a model call and serves every layer. The device is asked for numbers only while
one is made; in torch.compile, torch.export and CUDA graphs never.
"""

from typing import NamedTuple

import torch
from transformers import masking_utils

from fa3.errors import InvalidArgument, Unsupported
from fa3.torch import onnx

CAUSAL = masking_utils.causal_mask_function
BIDIRECTIONAL = getattr(masking_utils, "bidirectional_mask_function", None)  # not in 4.57


class Pattern(NamedTuple):
    """Who sees whom, besides padding. Query i stands at key position keys - queries + i."""

    queries: int
    length: int  # of the keys and values that the layer will hand over
    keys: int  # those of them that exist, as far as the host knows: a static cache is longer
    causal: bool = False
    window: tuple = (-1, -1)
    chunk: int = 0  # keys a chunk, counted from the first key that a row may see

    def depends_on_position(self):
        return self.causal or self.window != (-1, -1) or self.chunk > 0


class Rows(NamedTuple):
    """The rows [begin[n], end[n]) of each sequence count; every one where both are None.

    order (batch, rows): the rows that count moved to the front, where padding lies between them.
    """

    begin: "torch.Tensor | None" = None  # (batch,) int32, as `end`
    end: "torch.Tensor | None" = None
    order: "torch.Tensor | None" = None

    def ordered(self, tensor):
        """tensor: (batch, rows, heads, d)"""
        if self.order is None:
            return tensor
        return tensor.take_along_dim(self.order[..., None, None], 1)

    def restored(self, tensor):
        if self.order is None:
            return tensor
        return tensor.take_along_dim(self.order.argsort(1)[..., None, None], 1)


class Mask:
    """What attention_mask() makes and a layer reads.

    No tensor: Dynamo cannot trace tensors of a class with fields. Models move masks and pass them
    on, as they do torch's BlockMask; a model that computes with one is refused.
    """

    ndim, dtype = 2, torch.bool

    def __init__(self, pattern, batch, queries=None, keys=None, packed=None):
        self.pattern = pattern
        self.shape = (batch, pattern.length)
        self.queries, self.keys = queries or Rows(), keys or Rows()
        self.packed = packed  # lengths of packed sequences over all rows, in place of both

    def to(self, *how, device=None, dtype=None, **_):
        for x in how:
            device, dtype = (device, x) if isinstance(x, torch.dtype) else (x, dtype)
        if dtype not in (None, self.dtype):
            return self.written(f"to({dtype})").to(device, dtype)
        return self if device is None else self.on(device)

    def on(self, device):
        queries, keys = (Rows(*moved(rows, device)) for rows in (self.queries, self.keys))
        packed = self.packed and dict(
            zip(self.packed, moved(self.packed.values(), device), strict=True)
        )
        return Mask(self.pattern, self.shape[0], queries, keys, packed)

    def bool(self):
        return self.to(torch.bool)

    def unchanged(self, *_, **__):
        return self

    clone = contiguous = detach = unchanged

    def dim(self):
        return self.ndim

    def view(self, *shape):
        if shape in (self.shape, (self.shape[0], -1)):
            return self
        return self.written(f"view{shape}").view(*shape)

    def written(self, how):
        """The tensor that eager attention has in its place; how: what the model does with it."""
        raise Unsupported(
            f"attention_mask: the model computes with its mask ({how}), and fa3 writes none out; "
            'attn_implementation="fa3_flex" does'
        )

    def __getattr__(self, name):
        if name.startswith("__") or not hasattr(torch.Tensor, name):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self.written(name), name)

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        how = function.__name__
        arguments, keywords = with_masks_written((arguments, keywords or {}), how)
        return function(*arguments, **keywords)


def moved(values, device):
    return [x.to(device) if isinstance(x, torch.Tensor) else x for x in values]


def with_masks_written(value, how):
    """Arguments of a function of torch."""
    if isinstance(value, Mask):
        return value.written(how)
    if isinstance(value, (list, tuple)):
        return type(value)(with_masks_written(item, how) for item in value)
    if isinstance(value, dict):
        return {name: with_masks_written(item, how) for name, item in value.items()}
    return value


def computed(operator):
    def compute(self, *others):
        return getattr(self.written(operator), operator)(*others)

    return compute


for _name in "add radd sub rsub mul rmul getitem eq ne lt le gt ge invert neg and or".split():
    setattr(Mask, f"__{_name}__", computed(f"__{_name}__"))


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
        q_offset, kv_offset: positions of the first query and of the first key. q_offset is a tensor
            where the cache is static.
        cache_position: (q_length,), the positions of the queries: Transformers before 5.5 gives
            them in place of q_length, q_offset and device.
        attention_mask: None; or (batch | 1, keys) bool, False where there is padding; or a mask
            that was made here before, for an outer model or by generate().
        others: hints for other implementations (dtype, config, use_vmap, `allow_*`).

    Raises:
        fa3.InvalidArgument: attention_mask has another shape.
        fa3.Unsupported: a part of mask_function that fa3 has no option for, or padding between
            tokens that see each other by their distance.
    """
    if isinstance(attention_mask, Mask):
        return attention_mask
    if onnx.is_exporting():
        sizes = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length}
        offsets = {"q_offset": q_offset, "kv_offset": kv_offset}
        masks = {"mask_function": mask_function, "attention_mask": attention_mask}
        return booleans(**sizes, **offsets, **masks, device=device, **others)
    attention_mask = of_whole_batch(attention_mask, batch_size)
    if cache_position is not None:
        q_length, device = cache_position.shape[0], cache_position.device
        q_offset = cache_position[0] if is_tracing() else int(cache_position[0])
    pattern, packed, positions, chunk_starts = described(mask_function, q_length, kv_length)
    if packed is not None:
        numbers = [packed.expand(batch_size, -1)]
        if pattern.chunk and positions is not None:  # no query sees over a chunk's edge
            numbers.append(positions.expand(batch_size, -1) // pattern.chunk)
        lengths = lengths_of_sequences(numbers, pattern.chunk)
        if lengths is not None:
            refuse_other_packing(pattern, packed, positions, attention_mask)
            refuse_shared_chunks(pattern, positions)
            return Mask(pattern, batch_size, packed=lengths)
    place = Place.of(pattern, q_offset, kv_offset)
    if not isinstance(place.keys, torch.Tensor):
        pattern = pattern._replace(keys=place.keys)
    if attention_mask is None:
        return without_padding(pattern, place, batch_size, device)
    return with_padding(pattern, place, attention_mask.bool(), chunk_starts)


def of_whole_batch(attention_mask, batch):
    """(batch, positions), or None; of one row for all, too."""
    if attention_mask is None or attention_mask.shape[:-1] == (batch,):
        return attention_mask
    if attention_mask.shape[:-1] != (1,):
        raise InvalidArgument(
            f"attention_mask: expected shape ({batch}, positions), False where there is padding, "
            f'got {tuple(attention_mask.shape)}; attn_implementation="fa3_flex" takes masks of 4 '
            "dimensions, too"
        )
    return attention_mask.expand(batch, -1)


def booleans(**given):
    """(batch, 1, queries, keys): True where a query sees a key. What Transformers makes for
    scaled_dot_product_attention, always as a tensor."""
    given |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return masking_utils.sdpa_mask(**given)


def is_tracing():
    """Whether nobody may ask the device: for torch.compile, torch.export and CUDA graphs."""
    return torch.compiler.is_compiling() or (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    )


class Place(NamedTuple):
    """Where the queries stand among the keys: numbers, or tensors of one over a static cache."""

    own: "int | torch.Tensor"  # the first query's key
    keys: "int | torch.Tensor"  # that exist
    kv_offset: int  # the position of the first key

    @staticmethod
    def of(pattern, q_offset, kv_offset):
        own = q_offset - kv_offset
        keys = own + pattern.queries if pattern.causal else pattern.length
        if not pattern.depends_on_position():
            return Place(own, keys, kv_offset)
        if isinstance(own, torch.Tensor):
            if not pattern.causal and pattern.queries != pattern.length:
                raise Unsupported(
                    f"attention_mask: expected {pattern.queries} queries that end where the "
                    f"{pattern.length} keys of a static cache end, since a window without a causal "
                    'mask sees later keys, too; attn_implementation="fa3_flex" takes any mask'
                )
            return Place(own, keys, kv_offset)
        if own + pattern.queries != keys or keys > pattern.length:
            raise Unsupported(
                f"attention_mask: expected {pattern.queries} queries that end where the "
                f"{pattern.length} keys end, got queries from position {q_offset} and keys from "
                f'{kv_offset}; attn_implementation="fa3_flex" takes any mask'
            )
        return Place(own, keys, kv_offset)

    def first_seen(self, pattern, chunk_starts):
        """The first key that the first query sees; no later query sees an earlier one.

        chunk_starts: the position from which chunks are counted, or (batch,) of them.
        """
        if pattern.chunk:
            return self.own - (self.own + self.kv_offset - chunk_starts) % pattern.chunk
        return self.own - pattern.window[0] if pattern.window[0] >= 0 else 0


def without_padding(pattern, place, batch, device):
    begin = place.first_seen(pattern, 0) if pattern.chunk else 0
    if not isinstance(place.own, torch.Tensor) and begin == 0:
        return Mask(pattern, batch)
    begin, end = (
        x.expand(batch) if isinstance(x, torch.Tensor) else torch.full((batch,), x, device=device)
        for x in (begin, place.keys)
    )
    return between(pattern, place, begin, end)


def with_padding(pattern, place, tokens, chunk_starts):
    """tokens: (batch, positions), False where there is padding."""
    before, tokens = tokens.tensor_split([place.kv_offset], dim=1)
    tokens = tokens[:, : pattern.length]
    if missing := pattern.length - tokens.shape[1]:
        tokens = torch.nn.functional.pad(tokens, (0, missing))
    key = torch.arange(pattern.length, device=tokens.device)
    first = place.first_seen(pattern, chunk_starts)
    first = first.reshape(-1, 1) if isinstance(first, torch.Tensor) else first
    seen = tokens & (key < place.keys) & (key >= first)
    end = (key + 1).mul(seen).amax(1)
    begin = torch.minimum(seen.int().argmax(1), end)
    has_holes = (end - begin != seen.sum(1)).any()
    if pattern.chunk:  # fa3 counts chunks from `begin`
        offset = begin - first.flatten() if isinstance(first, torch.Tensor) else begin - first
        has_holes |= ((offset % pattern.chunk != 0) & (end - begin > pattern.chunk - offset)).any()
    if is_tracing():
        torch._assert_async(~has_holes, HOLES_IN_A_GRAPH)
        return between(pattern, place, begin, end)
    is_full = (tokens | (key >= place.keys)).all() & before.all()
    has_holes, is_full = torch.stack((has_holes, is_full)).tolist()
    if is_full:
        return without_padding(pattern, place, len(tokens), tokens.device)
    return with_holes(pattern, place, seen) if has_holes else between(pattern, place, begin, end)


HOLES_IN_A_GRAPH = (
    "fa3: attention_mask: expected padding only before and after the tokens of a sequence in "
    "torch.compile; move it there, or run the model without torch.compile"
)


def between(pattern, place, begin, end):
    """The mask of rows that see their keys begin to end - 1. Where positions matter, queries and
    keys are the same tokens."""
    queries = Rows()
    if pattern.depends_on_position():
        queries = Rows(*((x - place.own).clamp(0, pattern.queries).int() for x in (begin, end)))
    return Mask(pattern, len(begin), queries, Rows(begin.int(), end.int()))


def with_holes(pattern, place, seen):
    """The mask of tokens with padding between them, which moves up to the tokens before it."""
    if pattern.queries == 1 and pattern.causal:  # sees them all
        pattern = pattern._replace(window=(-1, -1), chunk=0)
    if pattern.window != (-1, -1) or pattern.chunk:
        raise Unsupported(
            "attention_mask: expected no padding between the tokens of a sequence where a sliding "
            'window or chunks count them; pad on the left, or use attn_implementation="fa3_flex"'
        )
    queries = Rows()
    if pattern.causal and pattern.queries > 1:
        own = place.own + torch.arange(pattern.queries, device=seen.device)
        queries = moved_up(seen[:, own])
    return Mask(pattern, len(seen), queries, moved_up(seen))


def moved_up(seen):
    order = seen.logical_not().byte().argsort(dim=1, stable=True)
    end = seen.sum(1, dtype=torch.int32)
    return Rows(torch.zeros_like(end), end, order)


def lengths_of_sequences(numbers, chunk):
    """Arguments of fa3.attention for sequences that are packed; None where each row is one.

    numbers: each (batch, rows), one of which changes where the next sequence, or the next chunk of
        a sequence, begins.
    """
    begins = torch.ones_like(numbers[0], dtype=torch.bool)
    changes = [number.diff() != 0 for number in numbers]
    begins[:, 1:] = changes[0] if len(changes) == 1 else changes[0] | changes[1]
    batch, rows = begins.shape
    if is_tracing():
        ends, longest = ends_without_asking(begins, chunk), rows
    else:
        starts = begins.flatten().nonzero().flatten()
        if len(starts) == batch:
            return None
        ends = torch.nn.functional.pad(starts, (0, 1), value=begins.numel()).int()
        longest = int(ends.diff().max())
    return packed_lengths(ends, ends, longest, longest)


def ends_without_asking(begins, chunk):
    """cu_seqlens with room for sequences of 16 tokens on average, and for their chunks, the last
    ones empty."""
    batch, rows = begins.shape
    total = begins.numel()
    most = max(8, rows // 16)
    most = min(total, batch * (2 * most + rows // chunk if chunk else most))
    place = torch.arange(total, dtype=torch.int32, device=begins.device)
    starts = torch.where(begins.flatten(), place, total).sort().values
    torch._assert_async(begins.sum() <= most, SHORT_SEQUENCES_IN_A_GRAPH)
    return torch.nn.functional.pad(starts[:most], (0, 1), value=total)


SHORT_SEQUENCES_IN_A_GRAPH = (
    "fa3: position_ids: expected packed sequences of 16 tokens on average in torch.compile; pass "
    "cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k"
)


def packed_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
    }


def refuse_other_packing(pattern, packed, positions, attention_mask):
    """Packing that find_packed_sequence_indices() of Transformers never describes, but a program
    can: by `and_mask_function=packed_sequence_mask_function(numbers)`."""
    how = None
    if not packed.shape[-1] == pattern.queries == pattern.length:
        how = f"{pattern.queries} queries among {pattern.length} keys"
    elif attention_mask is not None and has_padding(attention_mask, pattern.length):
        how = "padding besides"
    elif positions is None:  # those that Transformers finds go up from 0
        changes, kinds = ((x.diff() != 0).sum(1) for x in (packed, packed.sort(1).values))
        if is_tracing():
            torch._assert_async((changes == kinds).all(), SEQUENCES_IN_PARTS)
        elif not torch.equal(changes, kinds):
            how = "sequences in several parts"
    if how:
        raise Unsupported(
            "attention_mask: expected packed sequences of the queries themselves, each in one part "
            f'and without padding, got {how}; attn_implementation="fa3_flex" takes any mask'
        )


def has_padding(tokens, length):
    """tokens: (batch, positions); where nobody may ask, they might."""
    return is_tracing() or tokens.shape[-1] < length or not tokens.all()


SEQUENCES_IN_PARTS = (
    "fa3: attention_mask: expected packed sequences that each lie in one part in torch.compile"
)


def refuse_shared_chunks(pattern, positions):
    if pattern.chunk and positions is None:  # Transformers 4
        raise Unsupported(
            "attention_mask: expected chunks that every packed sequence counts anew, got some that "
            'go on from one to the next; attn_implementation="fa3_flex" takes any mask'
        )


def described(mask_function, queries, keys):
    """The pattern over all keys; the numbers of packed sequences (batch | 1, queries), or None, and
    the positions that each counts for itself; where each row's first chunk starts."""
    parts = describe(mask_function)
    chunk_starts, positions = parts.pop("left_padding", 0), parts.pop("positions", None)
    packed = parts.pop("packed", None)
    return Pattern(queries, keys, keys, **parts), packed, positions, chunk_starts


def describe(mask_function):
    """The fields of a Pattern that a mask function of Transformers stands for. Beside a chunk also
    `left_padding` (batch,), the position where the first one starts; of packed sequences `packed`,
    their numbers, and `positions` where each counts them for itself."""
    # By identity, as torch 2.11 can trace; it knows neither names nor closures of functions.
    if mask_function is CAUSAL:
        return {"causal": True}
    if mask_function is BIDIRECTIONAL:
        return {}
    kind = mask_function.__qualname__.split(".")[0]
    cells = mask_function.__closure__ or ()
    names = mask_function.__code__.co_freevars
    held = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
    if kind == "sliding_window_overlay":
        return {"window": (held["sliding_window"] - 1, -1)}
    if kind == "sliding_window_bidirectional_overlay":
        return {"window": (held["sliding_window"], held["sliding_window"])}
    if kind == "chunked_overlay":
        return {"chunk": held["chunk_size"], "left_padding": held["left_padding"]}
    if kind == "packed_sequence_mask_function":
        return {"packed": held["packed_sequence_mask"]}
    if kind == "remap_positions_for_packed_sequence":
        return {**describe(held["mask_function"]), "positions": held["position_ids"]}
    if kind == "and_masks":
        parts = [describe(part) for part in held["mask_functions"]]
        named = [name for part in parts for name in part]
        if len(set(named)) == len(named):
            return {name: value for part in parts for name, value in part.items()}
    raise Unsupported(
        f"attention_mask: expected a causal, bidirectional, sliding window or packed mask, got "
        f'{mask_function.__qualname__} of the model; attn_implementation="fa3_flex" takes any mask'
    )

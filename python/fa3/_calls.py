# SPDX-License-Identifier: Apache-2.0
"""merge, quantize and append for arrays of any kind, without autograd: fa3.torch builds upon it."""

import re
from typing import Any, NamedTuple

from fa3 import _native
from fa3._arrays import empty, is_torch, lender, optional_view, output_view, shape_of, view
from fa3.errors import InvalidArgument, Unsupported

DESCALE_ROWS = 64  # FA3_DESCALE_ROWS
TRANSPOSED_KEYS = 16  # FA3_TRANSPOSED_KEYS


def merge(o_partial, lse_partial, num_threads):
    """out and lse of fa3.merge, newly allocated."""
    views = view(o_partial, "o_partial"), view(lse_partial, "lse_partial")
    out = empty(shape_of(o_partial, "o_partial")[1:], like=o_partial)
    lse = empty(shape_of(lse_partial, "lse_partial")[1:], like=lse_partial)
    _native.merge(*views, view(out, "out"), view(lse, "lse"), num_threads)
    return out, lse


def quantize(x, *arguments):
    """Writes y, descale and mean (or None), which follow x."""
    try:
        _native.quantize(lender(x), *quantize_arguments("x", x, *arguments))
    except InvalidArgument as error:
        raise InvalidArgument(about_max_seqlen(str(error), "max_seqlen")) from None


def about_max_seqlen(sentence, name):
    """A sentence about too few scales: their number follows from max_seqlen, which was given."""
    expected = rf"{name}: expected at least \1, the length of a sequence, or 0; its scales need"
    return re.sub(r"^descale: expected (?=.* for (\d+) rows)", expected + " ", sentence)


def quantize_together(calls):
    """quantize() of several tensors of one device: their arguments by the name of x."""
    flat = [x for name, call in calls.items() for x in quantize_arguments(name, *call)]
    try:
        _native.quantize_together(lender(next(iter(calls.values()))[0]), *flat)
    except (InvalidArgument, Unsupported) as error:
        found = re.match(r"params\[(\d)]\.(x\b|cu_seqlens\b|seqused\b|max_seqlen\b)?", str(error))
        if found is None:
            raise
        at, word = int(found[1]), found[2] or ""
        of_lengths = word + ("_k" if at > 0 else "_q") if word else ""
        name = list(calls)[at] if word == "x" else of_lengths
        sentence, side = name + str(error)[found.end() :], "k" if at > 0 else "q"
        raise type(error)(about_max_seqlen(sentence, f"max_seqlen_{side}")) from None


def dequantize_together(calls):
    """Writes each x as the numbers that y, descale and mean stand for; calls: as above."""
    flat = [x for name, call in calls.items() for x in quantize_arguments(name, *call)]
    _native.dequantize_together(*flat)


def quantize_arguments(
    name, x, y, descale, mean, cos, sin, interleaved, hadamard, seed, cu, used, *rest
):
    """rest: max_seqlen, transposed, ..."""
    return (
        view(x, name),
        view(y, "y"),
        view(descale, "descale"),
        optional_view(mean, "mean"),
        optional_view(cos, "rotary"),
        optional_view(sin, "rotary"),
        interleaved,
        hadamard,
        seed,
        optional_view(cu, "cu_seqlens"),
        optional_view(used, "seqused"),
        *rest,
    )


def new_quantized(x, scaling, center, cu_seqlens, max_seqlen, transposed):
    """y, descale and mean, unwritten. An x of wrong rank is left to the library to refuse."""
    shape = tuple(shape_of(x, "x"))
    rows, heads, dim = shape[-3:] if len(shape) >= 3 else (0, 0, 0)
    if cu_seqlens is None:
        batch = shape[0] if shape else 0
    else:
        batch = max(shape_of(cu_seqlens, "cu_seqlens")[0], 1) - 1
        rows = max_seqlen or rows
    blocks = -(-rows // DESCALE_ROWS)
    scales = {"block": (batch, heads, blocks), "head": (batch, heads), "tensor": (1,)}
    new_numbers = new_transposed if transposed and len(shape) == 4 else empty
    y = new_numbers(shape, like=x, dtype="float8_e4m3fn")
    descale = empty(scales[scaling], like=x, dtype="float32")
    return y, descale, empty((batch, heads, dim), like=x, dtype="float32") if center else None


def new_transposed(shape, like, dtype):
    """An array of this shape, (b, s, h, d), with rows side by side: as if (b, h, d, s)."""
    batch, rows, heads, dim = shape
    places = -(-rows // TRANSPOSED_KEYS) * TRANSPOSED_KEYS
    memory = empty((batch, heads, dim, places), like, dtype)
    turn = memory.permute if is_torch(memory) else memory.transpose
    return turn(0, 3, 1, 2)[:, :rows]


class Append(NamedTuple):
    """The arguments of fa3.append, in the order of torch.ops.fa3.append."""

    k_cache: Any
    v_cache: Any
    k: Any
    v: Any
    cu_seqlens_new: Any
    seqused: Any
    page_table: Any
    batch_index: Any
    rotary_cos: Any
    rotary_sin: Any
    first_position: Any
    q: Any
    cu_seqlens_q: Any
    k_descale: Any
    v_descale: Any
    rotary_interleaved: bool
    queries_share_position: bool
    num_threads: int


def append(call):
    """Writes the caches; returns q, turned, or None without q. call: an Append."""
    rotated = None if call.q is None else empty(shape_of(call.q, "q"), like=call.q)
    _native.append(
        output_view(call.k_cache, "k_cache"),
        output_view(call.v_cache, "v_cache"),
        view(call.k, "k"),
        view(call.v, "v"),
        optional_view(call.cu_seqlens_new, "cu_seqlens_new"),
        view(call.seqused, "seqused"),
        optional_view(call.page_table, "page_table"),
        optional_view(call.batch_index, "batch_index"),
        optional_view(call.rotary_cos, "rotary_cos"),
        optional_view(call.rotary_sin, "rotary_sin"),
        optional_view(call.first_position, "first_position"),
        optional_view(call.q, "q"),
        optional_view(rotated, "q_rotated"),
        optional_view(call.cu_seqlens_q, "cu_seqlens_q"),
        optional_view(call.k_descale, "k_descale"),
        optional_view(call.v_descale, "v_descale"),
        call.rotary_interleaved,
        call.queries_share_position,
        call.num_threads,
    )
    return rotated

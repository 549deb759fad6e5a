# SPDX-License-Identifier: Apache-2.0
"""Calls of fa3.mla for arrays of any kind, without autograd: fa3.torch.mla builds upon it.

The fields of Forward, Append and Gather are in the order of python/native/mla.h.
"""

from typing import Any, NamedTuple

from fa3 import _native
from fa3._arrays import empty, is_torch, lender, optional_view, output_view, shape_of, view

VALUE_DIM, ROPE_DIM = 512, 64
ROWS = {"auto": 0, "latent": 1, "group128": 2, "v4": 3, "tensor": 4, "token": 5}  # fa3_mla_rows


class Forward(NamedTuple):
    q: Any
    q_rope: Any
    cache: Any
    rope: Any
    descale: Any
    rows: int
    page_table: Any
    seqused_k: Any
    cu_seqlens_q: Any
    indices: Any
    index_count: Any
    extra_cache: Any
    extra_rope: Any
    extra_descale: Any
    extra_rows: int
    extra_indices: Any
    extra_index_count: Any
    sink: Any
    max_seqlen_q: int
    scale: float | None
    causal: bool
    lse_with_sink: bool
    empty_lse: bool
    num_splits: int
    batch_invariant: bool
    engine: int
    num_threads: int


class Append(NamedTuple):
    cache: Any
    rope: Any
    descale: Any
    rows: int
    c_kv: Any
    k_pe: Any
    slots: Any
    rotary_cos: Any
    rotary_sin: Any
    positions: Any
    q_pe: Any
    rotary_interleaved: bool
    scaling: int
    num_threads: int


class Gather(NamedTuple):
    cache: Any
    rope: Any
    descale: Any
    rows: int
    slots: Any
    dtype: str
    dim: int
    num_threads: int


NUMBERS = (
    *("max_seqlen_q", "scale", "causal", "lse_with_sink", "empty_lse", "num_splits", "engine"),
    *("batch_invariant", "num_threads", "rows", "extra_rows", "scaling", "rotary_interleaved"),
)
CACHES = ("cache", "rope", "extra_cache", "extra_rope")


def as_bytes(array, name, look=view):
    """A view for the library, which takes bytes for float8_e4m3: rows may hold anything."""
    if is_torch(array) and str(array.dtype) in ("torch.uint8", "torch.int8"):
        import torch

        array = array.view(torch.float8_e4m3fn)
    seen = look(array, name)
    if isinstance(seen, tuple) and seen[1] in ("uint8", "int8"):
        return (seen[0], "float8_e4m3fn", *seen[2:])
    return seen


def views(call, cache_look=view):
    """The fields of a call as the compiled module takes them."""
    for name, value in call._asdict().items():
        if name in NUMBERS:
            yield value
        elif value is None:
            yield None
        elif name in CACHES:
            yield as_bytes(value, name, cache_look)
        else:
            yield view(value, name)


def new_results(call, returns_lse, returns_max):
    """out, lse and max, unwritten; the last two may be None."""
    *batch, rows, heads, _ = [*shape_of(call.q, "q"), 0, 0, 0][: max(len(call.q.shape), 3)]
    out = empty((*call.q.shape[:-1], VALUE_DIM), like=call.q)
    wanted = (returns_lse, returns_max)
    lse, largest = (
        empty((*batch, heads, rows), like=call.q, dtype="float32") if wants else None
        for wants in wanted
    )
    return out, lse, largest


def forward(call, out, lse, largest, is_new=False):
    """Writes out and, unless they are None, lse and largest, which new_results() made. is_new: it
    made out, too."""
    new_out = view(out, "out") if is_new else output_view(out, "out")
    others = optional_view(lse, "lse"), optional_view(largest, "max")
    _native.mla_forward(lender(call.q), *views(call), new_out, *others)


def plan(call):
    out, lse, _ = new_results(call, True, False)
    return _native.mla_plan(*views(call), view(out, "out"), view(lse, "lse"), None)


def append(call):
    """Writes the cache; returns the rotated q_pe, or None."""
    rotated = None if call.q_pe is None else empty(shape_of(call.q_pe, "q_pe"), like=call.q_pe)
    *given, interleaved, scaling, num_threads = views(call, output_view)
    _native.mla_append(
        *given, optional_view(rotated, "q_pe_rotated"), interleaved, scaling, num_threads
    )
    return rotated


def gather(call):
    """The rows of the slots, newly allocated."""
    rows = shape_of(call.slots, "slots")[0]
    out = empty((rows, call.dim), like=call.slots, dtype=call.dtype)
    *given, num_threads = views(call._replace(dtype=None, dim=None))
    _native.mla_gather(*given[:-2], view(out, "out"), num_threads)
    return out

# SPDX-License-Identifier: Apache-2.0
"""merge and quantize for arrays of any kind, without autograd: what fa3.torch builds upon."""

from fa3 import _native
from fa3._arrays import empty, lender, optional_view, output_view, shape_of, view

DESCALE_ROWS = 64  # FA3_DESCALE_ROWS


def merge(o_partial, lse_partial, num_threads):
    """out and lse of fa3.merge, newly allocated."""
    views = view(o_partial, "o_partial"), view(lse_partial, "lse_partial")
    out = empty(shape_of(o_partial, "o_partial")[1:], like=o_partial)
    lse = empty(shape_of(lse_partial, "lse_partial")[1:], like=lse_partial)
    _native.merge(*views, output_view(out, "out"), output_view(lse, "lse"), num_threads)
    return out, lse


def quantize(x, y, descale, mean, cos, sin, interleaved, hadamard, seed, cu, used, *rest):
    """Writes y, descale and mean (or None). rest: max_seqlen, the engine's id, num_threads."""
    _native.quantize(
        lender(x),
        view(x, "x"),
        output_view(y, "y"),
        output_view(descale, "descale"),
        None if mean is None else output_view(mean, "mean"),
        optional_view(cos, "rotary"),
        optional_view(sin, "rotary"),
        interleaved,
        hadamard,
        seed,
        optional_view(cu, "cu_seqlens"),
        optional_view(used, "seqused"),
        *rest,
    )


def new_quantized(x, scaling, center, cu_seqlens, max_seqlen):
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
    y = empty(shape, like=x, dtype="float8_e4m3fn")
    descale = empty(scales[scaling], like=x, dtype="float32")
    return y, descale, empty((batch, heads, dim), like=x, dtype="float32") if center else None

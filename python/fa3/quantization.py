# SPDX-License-Identifier: Apache-2.0
"""fa3.quantize: what attention takes as float8_e4m3fn, from wider numbers."""

from typing import NamedTuple

import numpy as np

from fa3 import _native
from fa3._arrays import empty, is_torch, lender, optional_view, output_view, shape_of, view
from fa3._options import engine_id
from fa3.errors import InvalidArgument

ROWS = 64  # FA3_DESCALE_ROWS
SCALINGS = ("block", "head", "tensor")

# fa3.torch puts its function here when it is imported, so that this module never imports torch.
quantize_torch = None


class Quantized(NamedTuple):
    """Numbers that stand for x * descale + mean. mean is None without center."""

    x: object
    descale: object
    mean: object


def quantize(
    x,
    *,
    scaling="block",
    center=False,
    hadamard=False,
    seed=0,
    rotary=None,
    interleaved=False,
    cu_seqlens=None,
    seqused=None,
    max_seqlen=0,
    engine="auto",
    num_threads=0,
):
    """x as float8_e4m3fn, with float32 scales, for fa3.attention::

        q8, k8 = (fa3.quantize(a, hadamard=True) for a in (q, k))
        v8 = fa3.quantize(v, center=True)
        out = fa3.attention(
            q8.x, k8.x, v8.x, q_descale=q8.descale, k_descale=k8.descale, v_descale=v8.descale,
            v_mean=v8.mean)

    Block quantization and incoherent processing are those of FlashAttention-3 (section 3.3). All
    engines give the same bits; docs/numerics.md has every rounding.

    Args:
        x: (b, s, h, d), or packed (total, h, d); float32, float16 or bfloat16.
        scaling: who shares a scale: a "block" of 64 rows of a head, a "head" of a sequence, or
            the whole "tensor".
        center: subtract the mean of each channel over the sequence's rows. For k and v: attention
            gets it back as k_mean and v_mean.
        hadamard: incoherent processing: random signs and a Hadamard matrix along d, which spread
            outliers over all channels. For q and k, both with the same seed.
        seed: chooses the signs; an integer of 64 bits.
        rotary: (cos, sin), each (positions >= s, r) float32: rotates the first 2 r channels of row
            i by row i of the tables, before all else.
        interleaved: rotary pairs are channels (2 c, 2 c + 1), else (c, c + r).
        cu_seqlens, seqused, max_seqlen: as those of attention(). max_seqlen also says for how many
            blocks there are scales; 0 is the longest sequence, or total where that is on a GPU.
        engine, num_threads: as those of attention().

    Returns:
        Quantized(x, descale, mean). x is float8_e4m3fn in the argument's shape; descale float32
        (b, h, blocks), (b, h) or (1,); mean float32 (b, h, d) or None. Not differentiable.

    Raises what attention() raises.
    """
    if scaling not in SCALINGS:
        raise InvalidArgument(f"scaling: expected one of {', '.join(SCALINGS)}, got {scaling!r}")
    if rotary is None:
        cos = sin = None
    else:
        try:
            cos, sin = rotary
        except (TypeError, ValueError):
            raise InvalidArgument(f"rotary: expected (cos, sin), got {rotary!r}") from None
    if max_seqlen == 0 and cu_seqlens is not None:
        max_seqlen = longest(cu_seqlens)
    options = (cos, sin, interleaved, hadamard, seed, cu_seqlens, seqused, max_seqlen)
    options += (engine_id(engine), num_threads)
    if is_torch(x):
        if quantize_torch is None:
            import fa3.torch  # noqa: F401  fills quantize_torch
        y, descale, mean = quantize_torch(x, scaling, center, *options)
    else:
        y, descale, mean = new_outputs(x, scaling, center, cu_seqlens, max_seqlen)
        run(x, y, descale, mean, *options)
    return Quantized(y, descale, mean)


def run(x, y, descale, mean, cos, sin, interleaved, hadamard, seed, cu_seqlens, seqused, *rest):
    """Writes y, descale and, unless it is None, mean."""
    _native.quantize(
        view(x, "x"),
        output_view(y, "y"),
        output_view(descale, "descale"),
        None if mean is None else output_view(mean, "mean"),
        optional_view(cos, "rotary"),
        optional_view(sin, "rotary"),
        interleaved,
        hadamard,
        seed,
        optional_view(cu_seqlens, "cu_seqlens"),
        optional_view(seqused, "seqused"),
        *rest,
        lender(x),
    )


def new_outputs(x, scaling, center, cu_seqlens, max_seqlen):
    """y, descale and mean; the library refuses x first when its rank is wrong."""
    shape = tuple(shape_of(x, "x"))
    rows, heads, dim = shape[-3:] if len(shape) >= 3 else (0, 0, 0)
    if cu_seqlens is None:
        batch = shape[0] if shape else 0
    else:
        batch = max(shape_of(cu_seqlens, "cu_seqlens")[0], 1) - 1
        rows = max_seqlen or rows
    scales = {"block": (batch, heads, -(-rows // ROWS)), "head": (batch, heads), "tensor": (1,)}
    y = empty(shape, like=x, dtype="float8_e4m3fn")
    descale = empty(scales[scaling], like=x, dtype="float32")
    return y, descale, empty((batch, heads, dim), like=x, dtype="float32") if center else None


def longest(cu_seqlens):
    """Rows of the longest sequence where the host can read it; 0 where it cannot."""
    readable = isinstance(cu_seqlens, np.ndarray) or (is_torch(cu_seqlens) and cu_seqlens.is_cpu)
    if not readable or len(cu_seqlens) < 2:
        return 0
    return max(int((cu_seqlens[1:] - cu_seqlens[:-1]).max()), 0)

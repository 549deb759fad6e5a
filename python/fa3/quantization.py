# SPDX-License-Identifier: Apache-2.0
"""fa3.quantize: float8_e4m3fn and its scales from wider numbers, for attention."""

import sys
from typing import NamedTuple

import numpy as np

from fa3 import _calls
from fa3._arrays import in_int32, is_of_jax, is_torch
from fa3._options import engine_id
from fa3.errors import InvalidArgument, Unsupported
from fa3.ops import torch_backend

SCALINGS = ("block", "head", "tensor")


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
    transposed=False,
    engine="auto",
    num_threads=0,
):
    """Quantizes x to float8_e4m3fn with float32 scales, for fa3.attention::

        q8, k8 = (fa3.quantize(a, hadamard=True) for a in (q, k))
        v8 = fa3.quantize(v, center=True)
        out = fa3.attention(
            q8.x, k8.x, v8.x, q_descale=q8.descale, k_descale=k8.descale, v_descale=v8.descale,
            v_mean=v8.mean)

    Block quantization and incoherent processing are those of FlashAttention-3 (section 3.3). All
    engines give the same bits; docs/numerics.md has every rounding.

    Args:
        x: (b, s, h, d), or packed (total, h, d); float32, float16 or bfloat16.
        scaling: what shares a scale: a "block" of 64 rows of a head, a "head" of a sequence, or
            the whole "tensor".
        center: subtract the mean of each channel over the sequence's rows. For k and v; pass the
            mean to attention as k_mean and v_mean.
        hadamard: incoherent processing: random signs and a Hadamard matrix along d, which spread
            outliers over all channels. For q and k, both with the same seed.
        seed: chooses the signs; an integer of 64 bits.
        rotary: (cos, sin), each (positions >= s, r) float32: rotates the first 2 r channels of row
            i by row i of the tables, before all else.
        interleaved: rotary pairs are channels (2 c, 2 c + 1), else (c, c + r).
        cu_seqlens, seqused, max_seqlen: as those of attention(). max_seqlen also sets the number of
            blocks with scales; 0 is the longest sequence, or total if the lengths are on a GPU.
        transposed: for v: write it transposed in memory, keys side by side, in the order that FP8
            tensor cores read, for attention(v_transposed=True). The shape stays (b, s, h, d). Not
            with cu_seqlens and seqused.
        engine, num_threads: as those of attention().

    Returns:
        Quantized(x, descale, mean). x is float8_e4m3fn in the argument's shape; descale float32
        (b, h, blocks), (b, h) or (1,); mean float32 (b, h, d) or None. Not differentiable.

    Raises what attention() raises.
    """
    refuse_other_scaling(scaling)
    if rotary is None:
        cos = sin = None
    else:
        try:
            cos, sin = rotary
        except (TypeError, ValueError):
            raise InvalidArgument(f"rotary: expected (cos, sin), got {rotary!r}") from None
    seed = signed(seed)
    if transposed and is_of_jax(x):
        raise Unsupported("transposed: expected False with arrays of JAX, which have no strides")
    if max_seqlen == 0 and cu_seqlens is not None:
        max_seqlen = longest(cu_seqlens)
    cu_seqlens, seqused = in_int32(cu_seqlens), in_int32(seqused)
    options = (cos, sin, interleaved, hadamard, seed, cu_seqlens, seqused, max_seqlen)
    options += (transposed, engine_id(engine), num_threads)
    if is_torch(x):
        y, descale, mean = torch_backend().quantize(x, scaling, center, *options)
    else:
        y, descale, mean = _calls.new_quantized(
            x, scaling, center, cu_seqlens, max_seqlen, transposed
        )
        _calls.quantize(x, y, descale, mean, *options)
    return Quantized(y, descale, mean)


def quantize_together(
    q, k, v, *, scaling, center, hadamard, seed, lengths, transposed, engine="auto", num_threads=0
):
    """quantize() of q, k and v for attention: q and k with `hadamard`, k and v with `center`.

    Args:
        lengths: cu_seqlens, seqused and max_seqlen of "q" and of "k", by name.
        transposed: as quantize() takes it, for v.

    Returns:
        A Quantized of each. On a GPU numbers with a Hadamard matrix may be the next ones to those
        of quantize() (docs/numerics.md).
    """
    turned = {"hadamard": hadamard, "seed": seed}
    common = {"scaling": scaling, "engine": engine, "num_threads": num_threads}
    of_q, of_k = lengths["q"], lengths["k"]
    if not all(map(is_torch, (q, k, v))):
        return (
            named("q", quantize, q, **common, **turned, **of_q),
            named("k", quantize, k, center=center, **common, **turned, **of_k),
            named("v", quantize, v, center=center, transposed=transposed, **common, **of_k),
        )
    sides = []
    for each in (of_q, of_k):
        cu_seqlens, longest_of = each["cu_seqlens"], each["max_seqlen"]
        if longest_of == 0 and cu_seqlens is not None:
            longest_of = longest(cu_seqlens)
        sides.append((in_int32(cu_seqlens), in_int32(each["seqused"]), longest_of))
    options = scaling, center, hadamard, seed, *sides, transposed, engine_id(engine), num_threads
    found = torch_backend().quantize_together(q, k, v, *options)
    return tuple(Quantized(*each) for each in found)


def refuse_other_scaling(scaling):
    if scaling not in SCALINGS:
        raise InvalidArgument(f"scaling: expected one of {', '.join(SCALINGS)}, got {scaling!r}")


def named(name, call, x, **options):
    """call(x), which calls x by the name that it has here."""
    try:
        return call(x, **options)
    except (InvalidArgument, TypeError) as error:
        if str(error).startswith("x: "):
            raise type(error)(name + str(error)[1:]) from None
        raise


def signed(seed):
    """An integer of 64 bits, as the operators take it."""
    if not hasattr(seed, "__index__"):
        raise TypeError(f"seed: expected an integer, got {seed!r}")
    if not -(2**63) <= seed < 2**64:
        raise InvalidArgument(f"seed: expected an integer of 64 bits, got {seed}")
    return seed if seed < 2**63 else seed - 2**64


def longest(cu_seqlens):
    """Rows of the longest sequence where the host can read it; 0 where it cannot."""
    readable = isinstance(cu_seqlens, np.ndarray)
    if is_torch(cu_seqlens):
        readable = cu_seqlens.is_cpu and not sys.modules["torch"].compiler.is_compiling()
    if not readable or len(cu_seqlens) < 2:
        return 0
    return max(int((cu_seqlens[1:] - cu_seqlens[:-1]).max()), 0)

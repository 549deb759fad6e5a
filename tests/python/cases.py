# SPDX-License-Identifier: Apache-2.0
"""Attention problems as data, with ids: what the Python tests share."""

from typing import NamedTuple

import numpy as np


class Case(NamedTuple):
    shape: tuple  # b, sq, sk, hq, hk, d, dv
    options: dict  # keywords of oracle.forward; sink=True asks for random logits


class Inputs(NamedTuple):
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray
    options: dict


CASES = {
    "plain": Case((2, 17, 33, 2, 2, 16, 16), {}),
    "one": Case((1, 1, 1, 1, 1, 1, 1), {}),
    "tile_and_one": Case((1, 65, 129, 2, 2, 64, 64), {}),
    "scale": Case((1, 9, 21, 2, 2, 24, 24), {"scale": 0.3}),
    "gqa": Case((2, 20, 31, 6, 2, 32, 32), {}),
    "mqa_decode": Case((3, 1, 97, 8, 1, 64, 64), {"causal": True}),
    "wide_v": Case((1, 19, 40, 4, 2, 24, 56), {}),
    "narrow_v": Case((1, 19, 40, 4, 4, 40, 8), {"causal": True}),
    "odd_dims": Case((2, 23, 29, 3, 1, 7, 13), {"causal": True}),
    "causal": Case((2, 64, 64, 2, 2, 32, 32), {"causal": True}),
    "causal_more_keys": Case((1, 40, 101, 4, 2, 64, 64), {"causal": True}),
    "causal_empty_rows": Case((1, 50, 17, 4, 2, 32, 32), {"causal": True}),
    "window": Case((1, 70, 70, 2, 2, 32, 32), {"window": (10, 5)}),
    "window_diagonal": Case((1, 33, 33, 1, 1, 16, 16), {"window": (0, 0)}),
    "window_left": Case((1, 20, 75, 2, 1, 16, 16), {"window": (9, -1)}),
    "window_right": Case((1, 75, 20, 2, 1, 16, 16), {"window": (-1, 4)}),
    "window_causal": Case((2, 40, 66, 4, 2, 32, 32), {"window": (12, 7), "causal": True}),
    "earlier": Case((2, 70, 70, 4, 2, 32, 32), {"window": (-1, 0), "window_shift": -1}),
    "later": Case((1, 70, 90, 2, 1, 32, 32), {"window": (0, -1), "window_shift": 1}),
    "band_before": Case((1, 40, 60, 2, 2, 16, 16), {"window": (9, 0), "window_shift": -12}),
    "band_behind": Case(
        (1, 60, 40, 2, 2, 16, 16), {"window": (0, 5), "window_shift": 3, "sink": True}
    ),
    "band_cut": Case(
        (1, 40, 40, 2, 1, 16, 16), {"window": (4, 9), "window_shift": 2, "causal": True}
    ),
    "band_of_nothing": Case(
        (1, 20, 20, 2, 1, 16, 16), {"window": (1, 2), "window_shift": 9, "causal": True}
    ),
    "chunk": Case((1, 70, 70, 2, 2, 32, 32), {"attention_chunk": 16}),
    "chunk_causal": Case((2, 50, 90, 4, 2, 16, 16), {"attention_chunk": 33, "causal": True}),
    "chunk_empty_rows": Case((1, 60, 20, 2, 1, 16, 16), {"attention_chunk": 7, "window": (3, -1)}),
    "softcap": Case((1, 18, 37, 2, 2, 32, 32), {"softcap": 2.0}),
    "sink": Case((2, 21, 34, 4, 2, 32, 32), {"sink": True}),
    "sink_empty_rows": Case((1, 40, 12, 4, 2, 16, 16), {"sink": True, "causal": True}),
    "no_keys": Case((1, 5, 0, 2, 1, 16, 16), {"sink": True}),
    "no_queries": Case((2, 0, 7, 2, 1, 16, 16), {}),
    "everything": Case(
        (2, 33, 65, 6, 2, 40, 24),
        {"causal": True, "window": (20, 3), "softcap": 3.0, "scale": 0.4, "sink": True},
    ),
    "dim_128": Case((1, 30, 66, 2, 1, 128, 128), {"causal": True}),
    "dim_256": Case((1, 12, 34, 2, 2, 256, 256), {}),
}


def rounded(x, dtype):
    """The values of x that `dtype` holds, nearest even, back in float64."""
    return from_bits(to_bits(x, dtype), dtype)


def to_bits(x, dtype):
    """x in `dtype`; bfloat16, which numpy lacks, as uint16."""
    if dtype != "bfloat16":
        return np.asarray(x).astype(dtype)
    bits = np.asarray(x, np.float32).view(np.uint32)
    nearest_even = bits + 0x7FFF + ((bits >> 16) & 1)
    nan = np.isnan(bits.view(np.float32))
    return np.where(nan, np.uint32(0x7FC0), nearest_even >> 16).astype(np.uint16)


def from_bits(bits, dtype):
    if dtype == "bfloat16":
        bits = (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float64)


def inputs_for(name, dtype):
    """The case's inputs as float64 values that `dtype` holds exactly. Same name, same numbers."""
    (b, sq, sk, hq, hk, d, dv), options = CASES[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    shapes = (b, sq, hq, d), (b, sk, hk, d), (b, sk, hk, dv), (b, sq, hq, dv)
    arrays = (rounded(rng.standard_normal(shape), dtype) for shape in shapes)
    options = dict(options)
    if options.get("sink"):
        options["sink"] = rng.standard_normal(hq).astype(np.float32).astype(np.float64)
    return Inputs(*arrays, options)

# SPDX-License-Identifier: Apache-2.0
"""What both generations of flash_attn share: arguments that fa3 lacks, and their conventions."""

import torch

from fa3._options import window_ends
from fa3.errors import Unsupported


def unsupported(**reasons):
    """reasons: name -> (given, off, why). Raises for the first argument that is not off."""
    for name, (given, off, why) in reasons.items():
        if given is not off and (isinstance(given, torch.Tensor) or given != off):
            raise Unsupported(f"{name}: expected {off}, got {described(given)}; {why}")


def described(value):
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def length(value):
    """A maximal length may come as an int, a 0-d tensor, or None."""
    return 0 if value is None else int(value)


def options(softmax_scale, causal, window_size, softcap, deterministic=False, attention_chunk=0):
    """The options of fa3.attention from theirs.

    window_size: None, a side of None and everything below 0 are unbounded. softcap,
    attention_chunk: None and everything below 0 are off.
    """
    left, right = window_ends(window_size, "window_size")
    return {
        "scale": softmax_scale,
        "causal": causal,
        "window": (reach(left), reach(right)),
        "attention_chunk": max(int(attention_chunk or 0), 0),
        "softcap": max(float(softcap or 0), 0.0),
        "deterministic": deterministic,
    }


def reach(side):
    return -1 if side is None or side < 0 else int(side)

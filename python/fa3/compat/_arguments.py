# SPDX-License-Identifier: Apache-2.0
"""What both generations of flash_attn share: arguments that fa3 lacks, and their conventions."""

import torch

from fa3._options import window_ends
from fa3.errors import Unsupported
from fa3.torch.autograd import FLOAT8


def unsupported(**reasons):
    """reasons: name -> (given, off, why). Raises for the first argument that is not off."""
    for name, (given, off, why) in reasons.items():
        if given is not off and (isinstance(given, torch.Tensor) or given != off):
            raise Unsupported(f"{name}: expected {off}, got {described(given)}; {why}")


def described(value):
    if isinstance(value, list | tuple) and any(isinstance(x, torch.Tensor) for x in value):
        return f"a {type(value).__name__} of tensors"
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def length(value):
    """A maximal length may come as an int, a 0-d tensor, or None."""
    return 0 if value is None else int(value)


def options(
    softmax_scale,
    causal,
    window_size,
    softcap,
    deterministic=False,
    attention_chunk=0,
    sm_margin=0,
    dropout_p=0.0,
):
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
        "sm_margin": int(sm_margin),
        "dropout_p": dropout_p,
    }


def reach(side):
    return -1 if side < 0 else int(side)


def int32(integers):
    """Lengths and tables of 64 bits, or with gaps in their rows, as the int32 that fa3 reads.

    Converted on their device, in stream order: no call waits for it.
    """
    if not isinstance(integers, torch.Tensor):
        return integers
    integers = integers.to(torch.int32)
    return integers if integers.stride()[-1:] == (1,) else integers.contiguous()


def float32(numbers):
    return None if numbers is None else numbers.float()


def rows_of_stride_1(tensor):
    """A copy where the last dimension has another stride, as the originals make one."""
    return tensor if tensor is None or tensor.stride(-1) == 1 else tensor.contiguous()


def factors(q, k, v, q_descale, k_descale, v_descale):
    """The options of factors of float8 tensors; beside others they are ignored."""
    given = {"q_descale": (q, q_descale), "k_descale": (k, k_descale), "v_descale": (v, v_descale)}
    return {name: x if of.dtype in FLOAT8 else None for name, (of, x) in given.items()}

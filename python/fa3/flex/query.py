# SPDX-License-Identifier: Apache-2.0
"""What the library says of a call, before anything is made for it.

Masks may be lists of blocks, or a part of the score function: the library says what it has kernels
for. Next: attention.py, device.py.
"""

from typing import NamedTuple

import torch

from fa3.errors import InvalidArgument, Unsupported
from fa3.masks import BLOCK
from fa3.torch import operators
from fa3.torch.nvrtc import nvrtc_path


class Answer(NamedTuple):
    """An fa3_answer."""

    supported: bool
    engine: int
    first_engine: bool  # no better engine of this device refused the call
    kernel: str
    reason: str


def ask(question, function, max_rows, tensors, q, k, v, options, further=()):
    """question: _native.forward_query or backward_query. function: None, or the trace.Function that
    captures these tensors. further: what a backward pass has behind them (native/score.h)."""
    score, options = None, operators.with_seed_viewed(options)
    try:
        if not operators.have_memory(q, k, v, *tensors):
            q, k, v, *options = (without_memory(x) for x in (q, k, v, *options))
        elif function is not None:
            score = *kernel_text_of(function, max_rows), (*tensors,), *further
        return Answer(*question(score, q, k, v, *options))
    except (InvalidArgument, Unsupported) as why:  # of arguments that no engine is asked about
        return Answer(False, 0, True, "", str(why))


def lists_win(of_lists, of_function):
    """Whether lists are walked. of_function(): the Answer of the masks as a part of the function.

    Another engine's lists are slower than a function of the device's best one, unless they hide
    most of the keys.
    """
    return of_lists.supported and (of_lists.first_engine or not of_function().supported)


def kernel_text_of(function, max_rows):
    """What the compiled module reads of a function beside its tensors, made once."""
    head = function.kernel_texts.get(max_rows)
    if head is None:
        head = function.pieces(max_rows), function.may_hide, nvrtc_path()
        function.kernel_texts[max_rows] = head
    return head


def with_map(options, extents, q):
    """These Options beside a map of blocks that is not made yet, as the compiled module takes
    them."""
    blocks = [-(-rows // BLOCK) for rows in extents[1:]]
    map_of_blocks = described(q.device, "int32", (1, 1, *blocks))
    bits = described(q.device, "int32", (1, BLOCK, 4))
    return options._replace(block_mask=map_of_blocks, block_mask_bits=bits).given()


def without_memory(value):
    if not isinstance(value, torch.Tensor):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    return described(value.device, dtype, tuple(value.shape), tuple(value.stride()))


def described(device, dtype, shape, strides=None):
    """A tensor as the compiled module takes it: an address, a type, where it is, and its form."""
    if strides is None:
        strides, step = [], 1
        for extent in reversed(shape):
            strides.insert(0, step)
            step *= extent
    place = {"cpu": 1, "cuda": 2}.get(device.type, 0), device.index or 0
    return 0, dtype, *place, tuple(map(int, shape)), tuple(map(int, strides))

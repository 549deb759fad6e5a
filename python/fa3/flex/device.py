# SPDX-License-Identifier: Apache-2.0
"""Both passes on a GPU: the score function as CUDA, compiled into the library's own kernels.

What no kernel does is computed by tiles.py there, with one warning that says why.
"""

import contextlib
import functools
import threading
import warnings
from typing import NamedTuple

import torch

from fa3 import _native
from fa3.errors import InvalidArgument, Unsupported
from fa3.flex.call import deterministic
from fa3.flex.function.pieces import NO_GRADIENTS
from fa3.flex.function.text import NARROW
from fa3.flex.query import ask, head_of, lists_win
from fa3.flex.stored import stored_of
from fa3.torch import operators

_mode = threading.local()


class SlowScores(UserWarning):
    """A score function is computed by torch operations, because no kernel does it here."""


def forward(call, q, k, v, tensors, blocks, return_lse, out=None):
    """(out, lse), or (out, None) unless return_lse; or None, where tiles.py is to compute them.
    blocks: the lists of call.listed."""
    if not call.has_kernels:
        if not q.is_cuda:
            return None
        return refused(f"{q.dtype} is not among the kernels' element types (float16, bfloat16)")
    if out is None:
        out = operators.new_out_like(q) if call.is_out_like else operators.new_out(q, v)
    lse = operators.new_lse(q) if return_lse else None
    captured = (*tensors,) if call.captured_on_device else on_device_of(q, tensors)
    function, options = call.function, call.options
    if call.listed is not None:
        function, options = call.listed.function, call.listed.options_with(blocks)
    score = *head_of(function, call.max_rows), captured[: len(function.types)]
    if is_only_compiling():
        score = *score, NO_GRADIENTS, (None,) * len(function.types), True
    try:
        _native.forward_with_score(operators.lend, score, q, k, v, out, lse, *options)
    except Unsupported as reason:
        return no_kernel(call, reason)
    return out, lse


@contextlib.contextmanager
def only_compiling():
    """Calls of this thread make their kernels, and compute nothing."""
    _mode.only_compiles = True
    try:
        yield
    finally:
        _mode.only_compiles = False


def is_only_compiling():
    return getattr(_mode, "only_compiles", False)


def no_kernel(call, reason):
    """For tiles.py, unless that is ruled out."""
    if call.only_kernels:
        raise reason
    return refused(str(reason))


class BackwardWay(NamedTuple):
    """How a kernel has a backward pass."""

    function: object
    options: list
    stored: int | None  # the captured tensor whose gradient is stored (stored.py)


def backward_way(call, wanted, saved, tensors, blocks):
    """The BackwardWay; None: tiles.py computes it. wanted: numbers of the captured tensors whose
    gradients are asked for. saved: q, k, v, out, lse. blocks: the lists of call.listed."""
    q, k, v = saved[:3]
    if not q.is_cuda or q.dtype not in NARROW:
        return None
    repeats = torch.are_deterministic_algorithms_enabled()
    decided = (call.backward_ways or {}).get((wanted, repeats))
    if decided is None:
        decided = decide_backward(call, wanted, (q, k, v), tensors, blocks, repeats)
        if call.backward_ways is not None:
            call.backward_ways[wanted, repeats] = decided
    listed, stored, answer = decided
    if not answer.supported:
        refused(answer.reason)
        return None
    function, options = way_of(call, listed, blocks, repeats)
    return BackwardWay(function, options, stored)


def way_of(call, listed, blocks, repeats):
    """(function, options)"""
    function, options = call.function, call.options
    if listed:
        function, options = call.listed.function, call.listed.options_with(blocks)
    return function, deterministic(options) if repeats else options


def decide_backward(call, wanted, qkv, tensors, blocks, repeats):
    """(whether lists are walked, the tensor whose gradient is stored, the Answer)"""
    captured = on_device_of(qkv[0], tensors)
    stored = stored_of(call, wanted, *qkv[:2], tensors) if wanted else None

    def answer(listed, stored):
        function, options = way_of(call, listed, blocks, repeats)
        count = len(function.types)
        texts = texts_of(function, wanted, call.max_rows, stored)
        # A tensor stands for its gradient, which is not made yet.
        sums = (*((captured[n], n == stored) if n in wanted else None for n in range(count)),)
        given = function, call.max_rows, captured[:count], *qkv, options, (texts, sums, False)
        return ask(_native.backward_query, *given)

    for number in (None,) if stored is None else (stored, None):
        whole = functools.cache(lambda number=number: answer(False, number))
        if call.listed is not None:
            of_lists = answer(True, number)
            if lists_win(of_lists, whole):
                return True, number, of_lists
        if whole().supported:
            return False, number, whole()
    return False, None, whole()


def texts_of(function, wanted, max_rows, stored):
    """The GradientTexts of a function, of the wanted tensors that it captures."""
    added = tuple(n for n in wanted if n < len(function.types) and n != stored)
    texts = function.gradient_texts(added, max_rows)
    is_empty = stored is not None and texts.gradients is None
    return texts._replace(gradients="") if is_empty else texts


def backward(call, way, saved, tensors, do, dlse, totals):
    """(dq, dk, dv); or None, where no kernel could be made. way: a BackwardWay. saved: q, k, v,
    out, lse. totals: zeros of the wanted tensors' shapes by number, to which their gradients are
    added; that of way.stored is written."""
    q, k, v, out, lse = saved
    *gradients, _ = operators.new_gradients(q, k, v, None)
    function, options, stored = way
    count = len(function.types)
    captured = on_device_of(q, tensors)[:count]
    texts = texts_of(function, (*totals,), call.max_rows, stored)
    sums = (*((totals[n], n == stored) if n in totals else None for n in range(count)),)
    score = *head_of(function, call.max_rows), captured, texts, sums, is_only_compiling()
    given = operators.readable_by_tma(do), q, k, v, out, lse, dlse, *gradients, None
    try:
        _native.backward_with_score(operators.lend, score, *given, *options)
    except Unsupported as reason:
        refused(str(reason))
        return None
    return tuple(gradients)


def refused(reason):
    text = f"fa3.flex_attention: computed by torch operations, which is slow: {reason}"
    warnings.warn(text, SlowScores, stacklevel=5)


def on_device_of(q, tensors):
    """The captured tensors, in a tuple. Numbers in host memory are brought to the device."""
    for number, tensor in enumerate(tensors):
        if tensor.device != q.device:
            if tensor.ndim > 0:
                raise InvalidArgument(
                    f"score_mod: expected captured tensors on {q.device} as q, got one of shape"
                    f" {tuple(tensor.shape)} on {tensor.device}"
                )
            tensors[number] = tensor.to(q.device)
    return (*tensors,)

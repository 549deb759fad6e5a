# SPDX-License-Identifier: Apache-2.0
"""Both passes on a GPU: the score function as CUDA, compiled into the library's own kernels.

What no kernel does is computed by tiles.py there, with one warning that says why.
"""

import contextlib
import functools
import threading
import warnings
from typing import Any, NamedTuple

import torch

from fa3 import _native
from fa3._options import Options
from fa3.errors import InvalidArgument, Unsupported
from fa3.flex import tiles
from fa3.flex.call import check_shapes
from fa3.flex.function.pieces import NO_GRADIENTS
from fa3.flex.function.text import NARROW
from fa3.flex.query import ask, kernel_text_of, lists_win
from fa3.flex.stored import stored_of
from fa3.torch import operators
from fa3.torch.library import written


class Mode(threading.local):
    only_compiles = False  # calls of this thread make their kernels, and compute nothing


mode = Mode()


class SlowScores(UserWarning):
    """A score function is computed by torch operations, because no kernel does it here."""


def forward(call, q, k, v, tensors, blocks, return_lse, out=None):
    """(out, lse); lse may be None unless return_lse.

    call: a Decision. tensors: captured; those that are moved to q's device are replaced. blocks:
    the lists of call.listed. out: written instead of a new tensor.
    """
    if not call.has_kernels:
        if q.is_cuda:
            refused(f"{q.dtype} is not among the kernels' element types (float16, bfloat16)")
        return forward_by_torch(call, q, k, v, tensors, out)
    result = out
    if result is None and call.is_out_like:
        result = torch.empty_like(q, memory_format=torch.contiguous_format)
    elif result is None:
        result = operators.new_out(q, v)
    lse = operators.new_lse(q) if return_lse else None
    captured = (*tensors,) if call.captured_on_device else on_device_of(q, tensors)
    function, options = call.function, call.options
    if call.listed is not None:
        function, options = call.listed.score_only, call.listed.options_with(blocks)
    head = function.kernel_texts.get(call.max_rows) or kernel_text_of(function, call.max_rows)
    score = *head, captured[: len(function.types)]
    if mode.only_compiles:
        score = *score, NO_GRADIENTS, (None,) * len(function.types), True
    try:
        if len(options) > operators.DROPOUT_SEED:  # else spared: host time
            options = operators.with_seed_viewed(options)
        _native.forward_with_score(operators.lend, score, q, k, v, result, lse, *options)
    except Unsupported as reason:
        if call.only_kernels:
            raise
        refused(str(reason))
        return forward_by_torch(call, q, k, v, tensors, out)
    if out is not None:
        written(out)
    return result, lse


def forward_by_torch(call, q, k, v, tensors, out):
    """(out, lse)"""
    check_shapes(q, k, v, call.lengths)
    *before, heads, _ = q.shape
    shape = *before, heads, v.shape[-1]
    if out is None:
        out = q.new_empty(shape)
    elif tuple(out.shape) != shape or out.device != q.device:
        raise InvalidArgument(f"out: expected {shape} on {q.device}, got {tuple(out.shape)}")
    lse = q.new_empty((*before[:-1], heads, before[-1]), dtype=tiles.wide(q.dtype))
    if not mode.only_compiles:
        tiles.forward(call, q, k, v, tensors, out, lse)
    return out, lse


@contextlib.contextmanager
def only_compiling():
    """Calls of this thread make their kernels, and compute nothing."""
    mode.only_compiles = True
    try:
        yield
    finally:
        mode.only_compiles = False


class BackwardPlan(NamedTuple):
    """How a kernel has a backward pass."""

    has_lists: bool
    stored: int | None  # the captured tensor whose gradient is stored (stored.py)
    answer: Any  # query.Answer; not supported: tiles.py computes it


def backward(call, wanted, saved, tensors, blocks, do, dlse):
    """(dq, dk, dv), and by number the gradients of the captured tensors that are wanted.

    saved: q, k, v, out, lse. blocks: as of forward().
    """
    q = saved[0]

    def zeros(number, dtype):
        return torch.zeros(tensors[number].shape, dtype=dtype, device=q.device)

    wide = tiles.wide(q.dtype)
    plan = backward_plan(call, wanted, saved, tensors, blocks)
    if plan is not None:
        totals = {n: zeros(n, q.dtype if n == plan.stored else wide) for n in wanted}
        gradients = backward_by_kernel(call, plan, saved, tensors, blocks, do, dlse, totals)
        if gradients is not None:
            return gradients, totals
    if mode.only_compiles:
        return (None, None, None), {}
    totals = {n: zeros(n, wide) for n in wanted}
    gradient = call.function.gradient(wanted)
    return tiles.backward(call, gradient, *saved, tensors, do, dlse, totals), totals


def backward_plan(call, wanted, saved, tensors, blocks):
    """The BackwardPlan; None: tiles.py computes it. wanted: numbers of the captured tensors whose
    gradients are asked for. saved: q, k, v, out, lse. blocks: the lists of call.listed."""
    q, k, v = saved[:3]
    if not q.is_cuda or q.dtype not in NARROW:
        return None
    key = wanted, torch.are_deterministic_algorithms_enabled()
    plan = (call.backward_plans or {}).get(key)
    if plan is None:
        plan = plan_backward(call, wanted, (q, k, v), tensors, blocks)
        if call.backward_plans is not None:
            call.backward_plans[key] = plan
    if not plan.answer.supported:
        refused(plan.answer.reason)
        return None
    return plan


def function_and_options(call, has_lists, blocks):
    """What a backward kernel computes with, beside tensors."""
    function, options = call.function, call.options
    if has_lists:
        function, options = call.listed.score_only, call.listed.options_with(blocks)
    if torch.are_deterministic_algorithms_enabled():
        options = Options(*options)._replace(deterministic=True).given()
    return function, options


def plan_backward(call, wanted, qkv, tensors, blocks):
    captured = on_device_of(qkv[0], tensors)
    stored = stored_of(call, wanted, *qkv[:2], tensors) if wanted else None

    def answer(has_lists, stored):
        function, options = function_and_options(call, has_lists, blocks)
        count = len(function.types)
        texts = texts_of(function, wanted, call.max_rows, stored)
        # A tensor stands for its gradient, which is not made yet.
        sums = (*((captured[n], n == stored) if n in wanted else None for n in range(count)),)
        given = function, call.max_rows, captured[:count], *qkv, options, (texts, sums, False)
        return ask(_native.backward_query, *given)

    for number in (None,) if stored is None else (stored, None):
        of_function = functools.cache(lambda number=number: answer(False, number))
        if call.listed is not None:
            of_lists = answer(True, number)
            if lists_win(of_lists, of_function):
                return BackwardPlan(True, number, of_lists)
        if of_function().supported:
            return BackwardPlan(False, number, of_function())
    return BackwardPlan(False, None, of_function())


def texts_of(function, wanted, max_rows, stored):
    """The GradientTexts of a function, of the wanted tensors that it captures."""
    added = tuple(n for n in wanted if n < len(function.types) and n != stored)
    texts = function.gradient_texts(added, max_rows)
    is_empty = stored is not None and texts.gradients is None
    return texts._replace(gradients="") if is_empty else texts


def backward_by_kernel(call, plan, saved, tensors, blocks, do, dlse, totals):
    """(dq, dk, dv); or None, where no kernel could be made. saved: q, k, v, out, lse. totals: zeros
    of the wanted tensors' shapes by number, to which their gradients are added; that of plan.stored
    is written."""
    q, k, v, out, lse = saved
    gradients = operators.new_gradients(q, k, v, None)[:3]
    function, options = function_and_options(call, plan.has_lists, blocks)
    count = len(function.types)
    captured = on_device_of(q, tensors)[:count]
    texts = texts_of(function, (*totals,), call.max_rows, plan.stored)
    sums = (*((totals[n], n == plan.stored) if n in totals else None for n in range(count)),)
    score = *kernel_text_of(function, call.max_rows), captured, texts, sums, mode.only_compiles
    given = operators.readable_by_tma(do), q, k, v, out, lse, dlse, *gradients, None
    try:
        options = operators.with_seed_viewed(options)
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

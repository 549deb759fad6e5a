# SPDX-License-Identifier: Apache-2.0
"""Both passes on a GPU: the score function as CUDA, compiled into the library's own kernels.

What no kernel does is computed by tiles.py there, with one warning that says why.
"""

import contextlib
import functools
import importlib.util
import threading
import warnings
from pathlib import Path

import torch

from fa3 import _native
from fa3.errors import InvalidArgument, Unsupported
from fa3.flex.call import deterministic
from fa3.flex.function.pieces import NO_GRADIENTS
from fa3.flex.function.text import NARROW
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
    captured = (*tensors,) if call.are_there else on_device_of(q, tensors)
    if (
        call.listed is None and not is_only_compiling()
    ):  # the one way of by_a_kernel(), for most calls
        try:
            score = *head_of(call.function, call.longest), captured
            _native.forward_with_score(operators.lend, score, q, k, v, out, lse, *call.options)
        except Unsupported as reason:
            return no_kernel(call, reason)
        return out, lse

    def run(function, options):
        score = *head_of(function, call.longest), captured[: len(function.types)]
        if is_only_compiling():
            score = *score, NO_GRADIENTS, (None,) * len(function.types), True
        _native.forward_with_score(operators.lend, score, q, k, v, out, lse, *options)

    return (out, lse) if by_a_kernel(call, blocks, run) else None


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


def head_of(function, longest):
    """What the compiled module reads of a function beside its tensors, made once."""
    head = function.heads.get(longest)
    if head is None:
        head = function.pieces(longest), function.may_hide, nvrtc_path()
        function.heads[longest] = head
    return head


def by_a_kernel(call, blocks, run, is_last=True):
    """Whether some kernel has run(function, options): one that walks lists, or else any.

    is_last: none is asked in another way behind that.
    """
    ways = ((call.function, call.options),)
    if call.listed is not None:
        ways = (call.listed.function, call.listed.options_with(blocks)), *ways
    for function, options in ways:
        try:
            run(function, options)
            return True
        except Unsupported as reason:
            why = reason
    if call.only_kernels:
        raise why
    if is_last:
        refused(str(why))
    return False


def backward(call, wanted, saved, tensors, blocks, do, dlse, totals, stored=None):
    """(dq, dk, dv); or None, where tiles.py is to compute them. saved: q, k, v, out, lse. blocks:
    the lists of call.listed.

    wanted: numbers of the captured tensors whose gradients are asked for; they are added to
    totals[number], which has zeros, but that of number `stored` is stored there (stored.py). None,
    too, where no kernel does that.
    """
    q, k, v, out, lse = saved
    if not q.is_cuda or q.dtype not in NARROW:
        return None
    *gradients, _ = operators.new_gradients(q, k, v, None)
    captured, most = on_device_of(q, tensors), call.longest

    def run(function, options):
        for total in totals.values():  # of an attempt before
            total.zero_()
        count = len(function.types)
        added = tuple(n for n in wanted if n < count and n != stored)
        texts = function.gradient_texts(added, most)
        if stored is not None and texts.gradients is None:
            texts = texts._replace(gradients="")
        sums = (*((totals[n], n == stored) if n in totals else None for n in range(count)),)
        score = *head_of(function, most), captured[:count], texts, sums, is_only_compiling()
        if torch.are_deterministic_algorithms_enabled():
            options = deterministic(options)
        given = operators.readable_by_tma(do), q, k, v, out, lse, dlse, *gradients, None
        _native.backward_with_score(operators.lend, score, *given, *options)

    # The forward has run: what only kernels may compute is not refused any more.
    if by_a_kernel(call._replace(only_kernels=False), blocks, run, is_last=stored is None):
        return tuple(gradients)
    for total in totals.values():
        total.zero_()
    return None


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


@functools.cache
def nvrtc_path():
    """libnvrtc of the package that torch brings; None: the library looks for one itself."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        found = sorted(Path(folder).glob("*/lib/libnvrtc.so.1*"))
        if found:
            return str(found[-1])
    return None

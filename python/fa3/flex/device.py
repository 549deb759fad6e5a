# SPDX-License-Identifier: Apache-2.0
"""Both passes on a GPU: the score function as CUDA, compiled into the library's own kernels.

What no kernel does is computed by tiles.py there, with one warning that says why.
"""

import functools
import importlib.util
import warnings
from pathlib import Path

import torch

from fa3 import _native
from fa3._options import in_order
from fa3.errors import InvalidArgument, Unsupported
from fa3.flex.caches import most_keys
from fa3.flex.text import LONGEST
from fa3.torch import operators


class SlowScores(UserWarning):
    """A score function is computed by torch operations, because no kernel does it here."""


def forward(call, q, k, v, tensors, return_lse):
    """(out, lse), or (out, None) unless return_lse; or None, where tiles.py is to compute them."""
    if not q.is_cuda:
        return None
    if q.dtype not in (torch.float16, torch.bfloat16):
        return refused(f"{q.dtype} is not among the kernels' element types (float16, bfloat16)")
    out = operators.new_out_quickly(q, v) if call.out is None else call.out
    lse = operators.new_lse(q) if return_lse else None
    most = longest(q, k, call.options)

    def run(function, options):
        text = function.text(most)
        described = captured(q, tensors, {})[: len(function.tensors)]
        score = text, function.may_hide, nvrtc_path(), described
        options = in_order("attention", options)
        lend = operators.lend_like(q)
        _native.forward_with_score(lend, score, q, k, v, out, lse, *options)

    return (out, lse) if by_a_kernel(call, run) else None


def by_a_kernel(call, run, is_last=True):
    """Whether some kernel has run(function, options): one that walks lists, or else any.

    is_last: none is asked in another way behind that.
    """
    ways = [(call.function, call.options)]
    if call.listed is not None:
        ways.insert(0, call.listed)
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


def backward(call, wanted, saved, tensors, do, dlse, totals, stored=None):
    """(dq, dk, dv); or None, where tiles.py is to compute them. saved: q, k, v, out, lse.

    wanted: numbers of the captured tensors whose gradients are asked for; they are added to
    totals[number], which has zeros, but that of number `stored` is stored there (stored.py). None,
    too, where no kernel does that.
    """
    q, k, v, out, lse = saved
    if not q.is_cuda or q.dtype not in (torch.float16, torch.bfloat16):
        return None
    *gradients, _ = operators.new_gradients(q, k, v, None)
    most = longest(q, k, call.options)

    def run(function, options):
        for total in totals.values():  # of an attempt before
            total.zero_()
        count = len(function.tensors)
        added = tuple(n for n in wanted if n < count and n != stored)
        slope, gradients_text = function.gradient_texts(added, most)
        texts = slope, "" if stored is not None and gradients_text is None else gradients_text
        described = captured(q, tensors, totals, stored)[:count]
        score = function.text(most), function.may_hide, nvrtc_path(), described, *texts
        if torch.are_deterministic_algorithms_enabled():
            options = {**options, "deterministic": True}
        options = in_order("attention", options)
        lend, readable = operators.lend_like(q), operators.readable_by_tma(do)
        given = readable, q, k, v, out, lse, dlse, *gradients, None
        _native.backward_with_score(lend, score, *given, *options)

    # The forward has run: what only kernels may compute is not refused any more.
    if by_a_kernel(call._replace(only_kernels=False), run, is_last=stored is None):
        return tuple(gradients)
    for total in totals.values():
        total.zero_()
    return None


def longest(q, k, options):
    """What bounds indices in the text: most calls share one bound, and with that one kernel."""
    keys = max(k.shape) if "page_table" not in options else most_keys(k, options)
    return LONGEST if max(*q.shape, keys) <= LONGEST else 2**31


def refused(reason):
    text = f"fa3.flex_attention: computed by torch operations, which is slow: {reason}"
    warnings.warn(text, SlowScores, stacklevel=5)


def captured(q, tensors, totals, stored=None):
    """(address, shape, strides, address of the gradient, whether it is stored) of each captured
    tensor.

    Numbers in host memory are brought to the device. totals: number -> gradient, float32.
    """
    described = []
    for number, tensor in enumerate(tensors):
        if tensor.device != q.device:
            if tensor.ndim > 0:
                raise InvalidArgument(
                    f"score_mod: expected captured tensors on {q.device} as q, got one of shape"
                    f" {tuple(tensor.shape)} on {tensor.device}"
                )
            tensors[number] = tensor = tensor.to(q.device)
        gradient = totals[number].data_ptr() if number in totals else 0
        shape = tuple(tensor.shape)
        # That of one element is never gone along, and may be larger than the library takes.
        strides = tuple(s if n > 1 else 0 for s, n in zip(tensor.stride(), shape, strict=True))
        described.append((tensor.data_ptr(), shape, strides, gradient, number == stored))
    return tuple(described)


@functools.cache
def nvrtc_path():
    """libnvrtc of the package that torch brings; None: the library looks for one itself."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        found = sorted(Path(folder).glob("*/lib/libnvrtc.so.1*"))
        if found:
            return str(found[-1])
    return None

# SPDX-License-Identifier: Apache-2.0
"""What is decided of a call, kept for calls that are alike.

A call's signature (python/native/signature.h) has all that the decisions follow from: shapes, types
and devices, options, functions and what they capture, whether gradients are recorded, autocast. So
a warm call is one signature, one look into a table, and the kernel. What no signature shows is
looked at beside it: that captured tensors are those of then and, where lists were made of them,
that they hold what they held. A call that something watches is decided anew.
"""

from typing import NamedTuple

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad

from fa3 import _native
from fa3._options import TYPES
from fa3.flex import caches, lists
from fa3.flex.call import NO_LENGTHS, Call, Listed, Window, in_order, up_to_lists
from fa3.flex.function.text import LONGEST, NARROW
from fa3.flex.known_functions import References, names_of, remember
from fa3.torch import operators
from fa3.torch.library import needs_gradient

NUMBERS = int, float, str, type(None)
_kept: dict[bytes, tuple] = {}  # signature -> (Prepared, References)


class Prepared(NamedTuple):
    function: object  # trace.Function of scores and masks; None: masks alone, as lists
    scale: float | None
    window: Window
    recorded: bool = False  # by autograd; of masks alone: or else seen by torch's dispatcher
    score_only: object = None  # the function without masks, beside lists
    window_beside_lists: Window | None = None  # None: no lists
    place: object = None  # of the lists in lists.py; None: the call brings them
    max_rows: int = LONGEST  # as of Call, like the next five
    is_out_like: bool = False
    has_kernels: bool = False
    captured_on_device: bool = True
    only_kernels: bool = False
    backward_ways: dict | None = None
    call: Call | None = None  # where nothing of it changes
    bias: object = None  # bias.Captured


OF_CALL = {*Prepared._fields} & {*Call._fields}


def key_of(seen, captured, q, *others):
    """The signature of a call; None: it is to be decided anew, for something watches it, or it
    cannot be told from others. seen, captured: as of signature()."""
    if not operators.CAN_SEE_WATCHERS or operators._are_functorch_transforms_active():
        return None
    if forward_ad._current_level >= 0:
        return None
    # Where autocast casts, masks are no lists (lists.extents_to_walk).
    casts = operators.is_any_autocast_enabled() and torch.is_autocast_enabled(device_type(q))
    state = is_grad_enabled(), casts
    return _native.signature(names_of, operators.HAVE_MEMORY, seen, captured, q, *others, state)


def device_type(q):
    return q.device.type if isinstance(q, Tensor) else "cpu"


def find(key):
    """(Prepared, captured tensors, the BlockMask of its lists) of a call that was kept; or None."""
    found = _kept.get(key)
    if found is None:
        return None
    prepared, references = found
    tensors = references.captured()
    if tensors is None:
        return None
    blocks = None
    if prepared.place is not None and (blocks := lists.fresh(prepared.place)) is None:
        return None
    return prepared, tensors, blocks


def keep(key, found, seen, numbers, options):
    """found: as of find(). seen: the tensors that the signature has of functions. numbers, and the
    options by name that are no tensors: what decisions read; the value of a tensor that stands for
    a number is not in the signature."""
    prepared, tensors, blocks = found
    if key is None or not is_seen(prepared, tensors, seen):
        return
    if blocks is not None and prepared.place is None:
        return  # lists for this call alone
    for name, value in options.items():
        if TYPES.get(name) != "Tensor?":
            numbers = *numbers, *(value if isinstance(value, tuple) else (value,))
    if all(isinstance(number, NUMBERS) for number in numbers):
        remember(_kept, key, (prepared, References(tensors, seen)))


def is_seen(prepared, tensors, seen):
    """Whether the signature has what the function does, and what it captures."""
    if prepared.function is None or prepared.bias is not None:
        return True
    return prepared.function.is_known and all(any(t is s for s in seen) for t in tensors)


def of_function(function, tensors, q, k, v, window, scale, lengths, **others):
    """The Prepared of a traced function. others: by name."""
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    learns = needs_gradient(q, k, v, *tensors)
    if learns:
        caches.refuse_gradients(k, lengths)
    recorded = learns or not operators.have_memory(q, k, v)
    there = all(t.device == q.device for t in tensors)
    others |= {"recorded": recorded, "captured_on_device": there}
    return with_call(Prepared(function, scale, window, **others), q, k, v, lengths)


def of_masks(blocks, q, k, v, window, scale, lengths, **others):
    """The Prepared of masks alone. blocks: their lists, where the call brings them."""
    beside = [x for x in (*lengths.values(), *(blocks or ())) if isinstance(x, Tensor)]
    recorded = needs_gradient(q, k, v) or not operators.are_plain((q, k, v, *beside))
    return with_call(Prepared(None, scale, window, recorded, **others), q, k, v, lengths)


def with_call(prepared, q, k, v, lengths):
    alike = operators.is_out_like(q, v)
    has_kernels = q.is_cuda and q.dtype in NARROW
    prepared = prepared._replace(
        max_rows=max_rows(q, k, lengths),
        is_out_like=alike,
        has_kernels=has_kernels,
        backward_ways={},
    )
    if lengths is not NO_LENGTHS:
        return prepared
    return prepared._replace(call=call_of(prepared, lengths))


def call_of(prepared, lengths):
    """The Call of these lengths."""
    listed = None
    if prepared.window_beside_lists is not None:
        options = in_order(prepared.scale, prepared.window_beside_lists, lengths)
        listed = Listed(prepared.score_only, up_to_lists(options))
    options = in_order(prepared.scale, prepared.window, lengths)
    alike = {name: getattr(prepared, name) for name in OF_CALL}
    return Call(lengths=lengths, options=options, listed=listed, **alike)


def max_rows(q, k, lengths):
    """What bounds indices in the text: most calls share one bound, and with that one kernel."""
    of_k = (caches.most_keys(k, lengths),) if "page_table" in lengths else k.shape
    return LONGEST if max(0, *q.shape, *of_k) <= LONGEST else 2**31

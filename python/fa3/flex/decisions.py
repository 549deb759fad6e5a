# SPDX-License-Identifier: Apache-2.0
"""What is decided of a call, kept for calls that are alike.

A call's signature (python/native/signature.h) has all that the decisions follow from: shapes, types
and devices, options, functions and what they capture, whether gradients are recorded, autocast. So
a warm call is one signature, one look into a table, and the kernel. What no signature shows is
looked at beside it: that captured tensors are those of then and, where lists were made of them,
that they hold what they held. A call that something watches is decided anew. Next: kept.py.
"""

from typing import Any, NamedTuple

from torch import Tensor, is_autocast_enabled, is_grad_enabled
from torch.autograd import forward_ad

from fa3 import _native
from fa3._options import TYPES
from fa3.flex import caches, lists
from fa3.flex.call import NO_LENGTHS, Window, options_of
from fa3.flex.function.text import MOST_ROWS, NARROW
from fa3.flex.kept import names_of, table
from fa3.torch import operators
from fa3.torch.library import needs_gradient

NUMBERS = int, float, str, type(None)


class Listed(NamedTuple):
    """What a kernel gets that walks lists of the masks' blocks."""

    score_only: Any  # the function without masks, which captures the call's first tensors; or None
    window: Window  # that is not in the lists
    map_key: Any = None  # of the block map in the table; None: the call brings it
    before_map: tuple = ()  # options
    behind_map: tuple = ()

    def options_with(self, block_mask):
        return *self.before_map, *block_mask, *self.behind_map


class Decision(NamedTuple):
    """What both passes need beside tensors."""

    function: Any  # trace.Function of scores and masks; None: masks alone, as lists
    scale: float | None  # None: d ** -0.5, of masks alone
    window: Window
    max_rows: int  # upper bound of indices that the text relies on (function/text.py)
    is_out_like: bool  # operators.is_out_like(q, v)
    has_kernels: bool  # of 16 bits, on a GPU
    recorded: bool = False  # by autograd; of masks alone: or else seen by torch's dispatcher
    captured_on_device: bool = True  # the captured tensors are on q's
    only_kernels: bool = False  # refused where no kernel has it, instead of computed slowly
    listed: Listed | None = None
    bias: Any = None  # bias.Captured
    backward_plans: dict | None = None  # device.py: what is decided of a backward pass
    lengths: dict = NO_LENGTHS  # of sequences, by name; also other options
    options: tuple = ()  # of fa3.attention, in order

    def of_lengths(self, lengths):
        """The same, with the options of a call of these lengths."""
        listed = self.listed
        if listed is not None:
            of_lists = options_of(self.scale, listed.window, lengths)
            before_map, behind_map = of_lists.around_block_mask()
            listed = listed._replace(before_map=before_map, behind_map=behind_map)
        options = options_of(self.scale, self.window, lengths).given()
        return self._replace(lengths=lengths, options=options, listed=listed)


def key_of(seen, captured, q, *others):
    """The signature of a call; None: it is to be decided anew, for something watches it, or it
    cannot be told from others. captured: functions, and tensors that count by identity. seen: as
    of signature()."""
    if not operators.CAN_SEE_WATCHERS or operators._are_functorch_transforms_active():
        return None
    if forward_ad._current_level >= 0:
        return None
    # Where autocast casts, masks are no lists (lists.extents_of_lists).
    casts = operators.is_any_autocast_enabled() and is_autocast_enabled(device_type(q))
    state = is_grad_enabled(), casts
    return _native.signature(names_of, operators.HAVE_MEMORY, seen, captured, q, *others, state)


def device_type(q):
    return q.device.type if isinstance(q, Tensor) else "cpu"


def find(key):
    """(Decision, captured tensors, the BlockMask of its lists) of a call that was kept; or None."""
    found = table.find(key)
    if found is None:
        return None
    decision, tensors = found
    if decision.listed is None or decision.listed.map_key is None:
        return decision, tensors, None
    blocks = lists.find(decision.listed.map_key)
    return None if blocks is None else (decision, tensors, blocks)


def keep(key, decision, tensors, seen, numbers, options):
    """tensors: that the function captures. seen: those that the signature has of functions.
    numbers, and the options by name that are no tensors: what decisions read; the value of a tensor
    that stands for a number is not in the signature."""
    function, has_bias = decision.function, decision.bias is not None
    for name, value in options.items():
        if TYPES.get(name) != "Tensor?":
            numbers = *numbers, *(value if isinstance(value, tuple) else (value,))
    if not all(isinstance(number, NUMBERS) for number in numbers):
        return
    # The signature must have what the function does, and what it captures.
    is_seen = function is None or has_bias or function.is_known
    if is_seen and all(any(t is other for other in seen) for t in tensors):
        table.keep(key, decision, tensors, seen)


def decided(function, tensors, q, k, v, window, scale, lengths, block_mask=(), **others):
    """The Decision about a traced function that captures these tensors; None: about masks alone, as
    lists. block_mask: the lists, where the call brings them. others: fields by name."""
    recorded = needs_gradient(q, k, v, *tensors)
    if function is None:
        given = [x for x in (*lengths.values(), *block_mask) if isinstance(x, Tensor)]
        recorded = recorded or not operators.are_plain((q, k, v, *given))
    else:
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        if recorded:
            caches.refuse_gradients(k, lengths)
        recorded = recorded or not operators.have_memory(q, k, v)
    decision = Decision(
        function,
        scale,
        window,
        max_rows(q, k, lengths),
        is_out_like=operators.is_out_like(q, v),
        has_kernels=q.is_cuda and q.dtype in NARROW,
        recorded=recorded,
        captured_on_device=all(t.device == q.device for t in tensors),
        backward_plans={},
        **others,
    )
    return decision.of_lengths(lengths) if lengths is NO_LENGTHS else decision


def max_rows(q, k, lengths):
    """What bounds indices in the text: most calls share one bound, and with that one kernel."""
    of_k = (caches.most_keys(k, lengths),) if "page_table" in lengths else k.shape
    return MOST_ROWS if max(0, *q.shape, *of_k) <= MOST_ROWS else 2**31

# SPDX-License-Identifier: Apache-2.0
"""What a call with a score function is, beside its tensors.

Of one that has no lengths and no lists it stays with the function for the next call. Next:
device.py and tiles.py, which compute it.
"""

from typing import NamedTuple

import torch

from fa3._options import DEFAULTS, IN_ORDER
from fa3.flex import caches

MOST = 64  # calls of a function that are remembered
NO_LENGTHS = {
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")),
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), 0),
}
NO_TENSORS = (None,) * 6  # before the block mask: sink, lengths, dropout's seed
DETERMINISTIC = list(DEFAULTS).index("deterministic")
IN_CACHE = {name: list(DEFAULTS).index(name) for name in caches.NAMES}


class Window(NamedTuple):
    """Keys that a query sees, counted from its diagonal; None is unbounded."""

    left: int | None
    right: int | None

    def range(self, first, count, sequence):
        """The keys [begin, end) that some of these queries may see."""
        diagonal = first + sequence.keys - sequence.queries
        begin = 0 if self.left is None else max(0, diagonal - self.left)
        end = sequence.keys
        if self.right is not None:
            end = min(end, diagonal + count - 1 + self.right + 1)
        return begin, end

    def is_open(self):
        return self.left is None and self.right is None

    def hides(self, query, key, sequence):
        return self.hides_at(query, key, sequence.keys - sequence.queries)

    def hides_at(self, query, key, shift):
        """shift: keys less queries."""
        distance = key - query - shift
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if self.left is not None:
            hidden |= distance < -self.left
        if self.right is not None:
            hidden |= distance > self.right
        return hidden


EVERY_KEY, NO_LATER_KEY = Window(None, None), Window(None, 0)


class Listed(NamedTuple):
    """The same call for kernels that walk lists: what hides keys is in them."""

    function: object  # without masks; it captures the first of the call's tensors
    options: list


class Call(NamedTuple):
    """What both passes need beside tensors."""

    function: object  # trace.Function, with the masks
    scale: float
    window: Window
    lengths: dict  # of sequences, by name; also deterministic, and the options of caches
    options: list  # those of fa3.attention, in order
    listed: Listed | None = None
    only_kernels: bool = False  # refused where no kernel has it, instead of computed slowly
    out: "torch.Tensor | None" = None  # written instead of a new one


def call_of(function, scale, window, lengths, listed=None, only_kernels=False, out=None):
    if lengths is not NO_LENGTHS or listed is not None or out is not None:
        options = in_order(scale, window, lengths)
        return Call(function, scale, window, lengths, options, listed, only_kernels, out)
    key = scale, window, only_kernels
    found = function.calls.get(key)
    if found is None:
        if len(function.calls) >= MOST:
            function.calls.clear()
        options = in_order(scale, window, lengths)
        found = Call(function, scale, window, lengths, options, None, only_kernels)
        function.calls[key] = found
    return found


def in_order(scale, window, lengths, blocks=(None, None), engine=0):
    """Options of fa3.attention in the order of the table in fa3/_options.py (a test holds them to
    it). blocks: a fa3.masks.BlockMask."""
    left, right = window
    options = [False, -1 if left is None else left, -1 if right is None else right, 0.0, scale]
    sink = seed = None
    if lengths is NO_LENGTHS:
        return options if blocks[0] is None else [*options, *NO_TENSORS, *blocks]
    options += sink, lengths["cu_seqlens_q"], lengths["cu_seqlens_k"]
    options += lengths["seqused_q"], lengths["seqused_k"], seed, *blocks
    options += lengths["max_seqlen_q"], lengths["max_seqlen_k"]
    options += lengths.get("deterministic", False), engine
    of_cache = caches.given(lengths)
    if of_cache:
        options += IN_ORDER[len(options) :]
        for name, value in of_cache.items():
            options[IN_CACHE[name]] = value
    return options


def deterministic(options):
    """The same with that option set."""
    missing = IN_ORDER[len(options) : DETERMINISTIC + 1]
    options = [*options, *missing]
    options[DETERMINISTIC] = True
    return options

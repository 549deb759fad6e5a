# SPDX-License-Identifier: Apache-2.0
"""What a call with a score function is, beside its tensors.

Next: device.py and tiles.py, which compute it.
"""

from typing import NamedTuple

import torch

from fa3._options import DEFAULTS, IN_ORDER, SCORES

NO_LENGTHS = {
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")),
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), 0),
}
PLACES = {name: place for place, name in enumerate(DEFAULTS)}
DETERMINISTIC, ENGINE, BLOCKS = (PLACES[n] for n in ("deterministic", "engine", "block_mask"))
UP_TO_ENGINE = IN_ORDER[len(SCORES) : ENGINE + 1]


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
    """The same call for kernels that walk lists, which come beside it: they hide keys."""

    function: object  # without masks, it captures the first of the call's tensors; or None
    options: list  # as of up_to_lists()

    def options_with(self, blocks):
        """blocks: a fa3.masks.BlockMask."""
        options = self.options.copy()
        options[BLOCKS : BLOCKS + 2] = blocks
        return options


class Call(NamedTuple):
    """What both passes need beside tensors."""

    function: object  # trace.Function, with the masks; None: masks alone, as lists
    scale: float | None  # None: d ** -0.5, of masks alone
    window: Window
    lengths: dict  # of sequences, by name; also deterministic, and the options of caches
    options: list  # those of fa3.attention, in order
    max_rows: int  # of a sequence: a bound that the text relies on (function/text.py)
    is_out_like: bool  # operators.is_out_like(q, v)
    has_kernels: bool  # of 16 bits, on a GPU
    captured_on_device: bool  # the captured tensors are on q's
    only_kernels: bool = False  # refused where no kernel has it, instead of computed slowly
    listed: Listed | None = None
    backward_ways: dict | None = None  # device.py: what is decided of a backward pass


def in_order(scale, window, lengths):
    """Options of fa3.attention in the order of the table in fa3/_options.py (a test holds them to
    it)."""
    left, right = window
    options = [False, -1 if left is None else left, -1 if right is None else right, 0.0, scale]
    if lengths is not NO_LENGTHS:
        options += UP_TO_ENGINE
        for name, value in lengths.items():
            if value is not None:
                place = PLACES[name]
                if place > ENGINE and place >= len(options):
                    options += IN_ORDER[len(options) :]
                options[place] = value
    return options


def up_to_lists(options):
    """The same, at least as far as the lists."""
    return [*options, *IN_ORDER[len(options) : BLOCKS]]


def deterministic(options):
    """The same with that option set."""
    missing = IN_ORDER[len(options) : DETERMINISTIC + 1]
    options = [*options, *missing]
    options[DETERMINISTIC] = True
    return options

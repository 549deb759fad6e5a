# SPDX-License-Identifier: Apache-2.0
"""Windows, lengths, shapes and options of a call, as fa3.flex passes them. Next: decisions.py."""

from typing import NamedTuple

import torch

from fa3._dropout import refuse_other_than_probability
from fa3._options import Options
from fa3.errors import InvalidArgument, Unsupported
from fa3.flex import caches
from fa3.torch.autograd import FLOAT8
from fa3.torch.dropout import given_or_drawn, refuse_sharded

NO_LENGTHS = {
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")),
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), 0),
}


def seeded(options, q):
    """Options, by name, with the seed of their dropout_p as a tensor; drawn where none is given."""
    p = options["dropout_p"]
    refuse_sharded(q)
    refuse_other_than_probability(p)
    if names := caches.given(options):
        raise Unsupported(f"dropout_p: expected 0 beside {', '.join(names)}, got {p}")
    seed = given_or_drawn(options.get("dropout_seed"), q.device)
    return options | {"dropout_seed": seed}


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


def options_of(scale, window, lengths):
    """The Options of fa3.attention. lengths: by name, also other options."""
    left, right = (-1 if side is None else side for side in window)
    given = {} if lengths is NO_LENGTHS else {n: x for n, x in lengths.items() if x is not None}
    return Options(window_left=left, window_right=right, scale=scale, **given)


def check_shapes(q, k, v, lengths):
    cu_seqlens_q, cu_seqlens_k = lengths["cu_seqlens_q"], lengths["cu_seqlens_k"]
    for name, x, packed in (
        ("q", q, cu_seqlens_q is not None),
        ("k", k, cu_seqlens_k is not None),
        ("v", v, cu_seqlens_k is not None),
    ):
        shape = "(total, heads, dim)" if packed else "(b, s, heads, dim)"
        of_lengths = f"cu_seqlens_{'q' if name == 'q' else 'k'}"
        if x.ndim != (3 if packed else 4):
            more = "" if packed or x.ndim != 3 else f"; packed rows come with {of_lengths}"
            raise InvalidArgument(f"{name}: expected {shape}, got shape {tuple(x.shape)}{more}")
        if x is not q and x.dtype in FLOAT8 and x.device == q.device:
            continue
        if not x.is_floating_point() or x.dtype.itemsize < 2:
            raise InvalidArgument(f"{name}: expected 16-, 32- or 64-bit floats, got {x.dtype}")
        if x.dtype != q.dtype or x.device != q.device:
            raise InvalidArgument(
                f"{name}: expected {q.dtype} on {q.device} as q, got {x.dtype} on {x.device}"
            )
    if cu_seqlens_k is not None and caches.has_places(lengths):
        raise InvalidArgument("cu_seqlens_k: expected seqused_k for keys in a cache")
    if k.dtype != v.dtype:
        raise InvalidArgument(f"v: expected {k.dtype} as k, got {v.dtype}")
    if k.shape[:-1] != v.shape[:-1] or k.shape[-1] != q.shape[-1]:
        raise InvalidArgument(
            f"k, v: expected (b, sk, hk, {q.shape[-1]}) and (b, sk, hk, dv), got {tuple(k.shape)}"
            f" and {tuple(v.shape)}"
        )
    if q.ndim == k.ndim == 4 and not caches.has_places(lengths) and q.shape[0] != k.shape[0]:
        raise InvalidArgument(f"k: expected batch {q.shape[0]}, got {k.shape[0]}")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise InvalidArgument(
            f"q: expected heads that are a multiple of k's {k.shape[-2]}, got {q.shape[-2]}"
        )

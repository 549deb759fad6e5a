# SPDX-License-Identifier: Apache-2.0
"""What a rank does, as data: stages, each of keys to fetch and local calls over them.

Nothing here knows torch. A stage's keys come from one rank (ring) or from all (all_gather); its
calls are rectangles of the global mask, local query rows against fetched keys. Any rectangle of a
causal or windowed mask is a band about a diagonal, which a call's window and window_shift express.
cover.py finds the rectangles of a document; run.py executes a schedule.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from fa3.distributed.cover import Call, Mask, calls_of, rectangles
from fa3.distributed.layout import Piece, count, pieces, stream_rows

Range = tuple[int, int]


class Fetch(NamedTuple):
    """Rows of a rank's keys, and where in the stage's keys they go."""

    source: int
    rows: tuple[Range, ...]
    places: tuple[Range, ...]


class Stage(NamedTuple):
    num_keys: int
    fetches: tuple[Fetch, ...]
    calls: tuple[Call, ...]


class Schedule:
    """The stages of every rank for one mask, one layout and the documents of one batch.

    method: "ring", a stage for each rank's keys, its own first; or "all_gather", one stage with all
    the keys that the rank's rows see. joins: a call may have several sequences, as packed tensors
    do and batches do not.
    """

    def __init__(
        self,
        method: str,
        layout: str,
        lengths: Sequence[int],
        mask: Mask,
        world: int,
        joins: bool = True,
    ) -> None:
        self.method, self.layout, self.lengths = method, layout, tuple(lengths)
        self.mask, self.world, self.joins = mask, world, joins
        self.num_stages = world if method == "ring" else 1
        # A bound method would keep the schedule alive in a cache of the class.
        self.stage = functools.cache(self._stage)
        self.pieces = functools.cache(self._pieces)

    def _pieces(self, rank: int) -> list[Piece]:
        return pieces(self.layout, self.lengths, self.world, rank)

    def num_rows(self, rank: int) -> int:
        return count(self.pieces(rank))

    def receivers(self, rank: int, index: int) -> list[int]:
        """The other ranks that may fetch keys of `rank` in their stage `index`."""
        if self.method == "ring":
            return [(rank + index) % self.world] if index else []
        return [other for other in range(self.world) if other != rank]

    def sends(self, rank: int, index: int) -> list[tuple[int, tuple[Range, ...]]]:
        """(receiver, rows of this rank's keys) for the stage `index` of all the others."""
        return [
            (receiver, fetch.rows)
            for receiver in self.receivers(rank, index)
            for fetch in self.stage(receiver, index).fetches
            if fetch.source == rank
        ]

    def _stage(self, rank: int, index: int) -> Stage:
        queries = self.pieces(rank)
        if self.method == "ring":
            source = (rank - index) % self.world
            found = rectangles(queries, self.pieces(source), self.mask)
            own = source == rank
            rows = [(0, self.num_rows(rank))] if own else joined(r.keys for r in found)
            fetches = [(source, [(a, b, a) for a, b in rows])]
        else:
            whole = [Piece(n, 0, length) for n, length in enumerate(self.lengths) if length]
            found = rectangles(queries, whole, self.mask)
            rows = joined(r.keys for r in found)
            fetches = [(s, self.held(s, rows)) for s in range(self.world)]
        place = packed_places(rows)
        return Stage(
            num_keys=sum(end - begin for begin, end in rows),
            fetches=tuple(
                Fetch(
                    source,
                    tuple((a, b) for a, b, _ in of),
                    tuple((place(at), place(at) + b - a) for a, b, at in of),
                )
                for source, of in fetches
                if of
            ),
            calls=calls_of([r.moved(place(r.keys[0])) for r in found], self.joins),
        )

    def held(self, rank: int, wanted: list[Range]) -> list[tuple[int, int, int]]:
        """Of rows of the stream: (begin, end) among the rank's own rows, begin in the stream."""
        found, local = [], 0
        for begin, end in stream_rows(self.pieces(rank), self.lengths):
            for first, last in wanted:
                a, b = max(begin, first), min(end, last)
                if a < b:
                    found.append((local + a - begin, local + b - begin, a))
            local += end - begin
        return found


def joined(ranges) -> list[Range]:
    """Half-open ranges in order, those that touch as one."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            begin, end = found[-1][0], max(end, found[-1][1])
            found.pop()
        found.append((begin, end))
    return found


def packed_places(rows: list[Range]):
    """row -> its place where the ranges lie one after the other."""
    starts, total = [], 0
    for begin, end in rows:
        starts.append((begin, end, total))
        total += end - begin

    def place(row: int) -> int:
        return next((at + row - begin for begin, end, at in starts if begin <= row < end), 0)

    return place

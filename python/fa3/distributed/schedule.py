# SPDX-License-Identifier: Apache-2.0
"""What a rank does, as data: stages, each of keys to fetch and local calls over them.

Nothing here knows torch. A stage's keys come from some ranks; its calls are rectangles of the
global mask, local query rows against fetched keys. Any rectangle of a causal or windowed mask is a
band about a diagonal, which a call's window and window_shift express. cover.py finds the
rectangles of a document; run.py executes a schedule.
"""

import functools
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fa3.distributed.cover import (
    APART,
    IN_ORDER,
    TOUCHING,
    WHOLE,
    Call,
    Mask,
    Rectangle,
    by_document,
    calls_of,
    rectangles,
    with_itself,
)
from fa3.distributed.layout import Piece, count, joined_pieces, pieces

Range = tuple[int, int]

HALF_STEP = 128  # rows, a multiple of every kernel's tile
# Bytes of gradients that are on their way for so long that two calls instead of one pay. Measured
# on two H100s: of 33, 67, 134 and 268 MB, the last alone did (docs/lab/context-parallel.md).
WORTH_HIDING = 192 << 20


class Fetch(NamedTuple):
    """Rows of a rank's keys, and where in the stage's keys they go."""

    source: int
    rows: tuple[Range, ...]
    places: tuple[Range, ...]


class Stage(NamedTuple):
    num_keys: int
    fetches: tuple[Fetch, ...]
    calls: tuple[Call, ...]


class Run(NamedTuple):
    """Keys begin .. end - 1 of a stage are a rank's, from its row on."""

    begin: int
    end: int
    rank: int
    row: int


class Schedule:
    """The stages of every rank for one mask, one layout and the documents of one batch.

    sizes: of how many ranks the keys of each stage are, the rank's own first, then those of the
    ranks before it. (1, 1, 1, 1) is a ring, (4,) gathers all keys at once; of packed documents in
    two stages: first those whose keys are all here, while what the others want arrives. A row is in
    one call then; in another it may be a row without keys, which the later one overwrites.
    joins: a call may have several sequences, as packed tensors do and batches do not.
    team: how many neighbours of the group are one rank of the schedule: they trade heads.
    step: if not 0, a call has neighbouring rows and neighbouring keys of one document, which begin
    at multiples of it if the pieces do: what dropout needs to know its place.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        layout: str,
        lengths: Sequence[int],
        mask: Mask,
        joins: bool = True,
        step: int = 0,
        team: int = 1,
    ) -> None:
        starts = tuple(itertools.accumulate(sizes, initial=0))
        self.world = starts[-1]
        self.stages = [range(a, b) for a, b in itertools.pairwise(starts)]
        self.layout, self.lengths, self.team = layout, tuple(lengths), team
        self.mask, self.joins, self.step = mask, joins and not step, step
        # Caches of methods would keep schedules alive.
        self.stage = functools.cache(self._stage)
        self.pieces = functools.cache(self._pieces)
        self.keys_of = functools.cache(self._keys_of)
        self.found_of = functools.cache(self._found_of)
        self.last_rows = functools.cache(self._last_rows)
        self.is_apart = self.joins and len(sizes) == 1 and self.can_be_apart()
        if self.is_apart:
            self.stages = [range(1), range(self.world)]
        self.num_stages = len(self.stages)

    def num_rows(self, rank: int) -> int:
        return count(self.pieces(rank))

    def distances(self, index: int) -> range:
        """How far before a rank those are whose keys its stage has."""
        return self.stages[index]

    def is_local(self, index: int) -> bool:
        """Whether each rank has its own keys in that stage, and no rank others'."""
        return self.distances(index) == range(1)

    def sends(self, rank: int, index: int) -> list[tuple[int, tuple[Range, ...]]]:
        """(receiver, rows of this rank's keys) for the stage `index` of all the others."""
        receivers = [(rank + by) % self.world for by in self.distances(index) if by]
        return [
            (receiver, fetch.rows)
            for receiver in receivers
            for fetch in self.stage(receiver, index).fetches
            if fetch.source == rank
        ]

    def held_back(self, rank: int, row_bytes: int) -> tuple[Call, Call] | None:
        """A rank's causal call with its own keys as two, of the upper half of its rows, with three
        quarters of the work, and of the lower one with its keys.

        A backward pass has the second one run last, while the last gradients of keys come home.
        row_bytes: of a row's. None where they are too few for every rank, or the call is another:
        a rank that has few sends its own to one that has many.
        """
        if row_bytes * self.last_rows() < WORTH_HIDING:
            return None
        first = self.stage(rank, 0)
        if self.num_stages == 1 or not self.is_local(0) or len(first.calls) != 1:
            return None
        (call,) = first.calls
        rows = call.rows[1] // 2 // HALF_STEP * HALF_STEP
        is_causal = (call.window, call.shift, call.cu_rows) == ((-1, 0), 0, ())
        if not is_causal or not rows or not call.rows == call.keys == (0, call.rows[1]):
            return None
        origin = call.origin._replace(query=call.origin.query + rows)
        upper = call._replace(rows=(rows, call.rows[1]), origin=origin)
        return upper, call._replace(rows=(0, rows), keys=(0, rows))

    def _last_rows(self) -> int:
        """Largest number of a rank's keys whose gradients others compute in the last stage."""
        last = self.num_stages - 1
        sent = (self.sends(rank, last) for rank in range(self.world))
        return max(sum(b - a for _, rows in of for a, b in rows) for of in sent)

    def _pieces(self, rank: int) -> list[Piece]:
        members = range(rank * self.team, (rank + 1) * self.team)
        of = [pieces(self.layout, self.lengths, self.world * self.team, one) for one in members]
        return joined_pieces(itertools.chain(*of))

    def can_be_apart(self) -> bool:
        """Whether most rows are of documents that one rank has."""
        several = self.world > 1 and len(self.lengths) > 1
        return several and 2 * self.whole_rows() > sum(self.lengths)

    def whole_rows(self) -> int:
        """Rows of the documents that one rank has."""
        held = (piece for rank in range(self.world) for piece in self.pieces(rank))
        return sum(of.end for of in held if (of.begin, of.end) == (0, self.lengths[of.document]))

    def _found_of(self, rank: int) -> tuple[list[Rectangle], list[Rectangle]]:
        """Rectangles of documents that need no other rank's keys, and of all other documents."""
        keys, runs = self.keys_of(tuple(range(self.world)))
        begins = [run.begin for run in runs]

        def is_here(keys: Range) -> bool:
            first, last = bisect_right(begins, keys[0]) - 1, bisect_right(begins, keys[1] - 1)
            return all(run.rank == rank for run in runs[first:last])

        held = by_document(self.pieces(rank))
        found = rectangles(self.pieces(rank), keys, self.mask)
        apart = {one.origin.document for one in found if not is_here(one.keys)}
        apart |= {document for document, of in held.items() if len(of) > 1}
        whole = [of[0] for document, of in held.items() if document not in apart]
        return (
            [with_itself(row, piece, self.mask) for row, piece in whole],
            [one for one in found if one.origin.document in apart],
        )

    def whole(self, rank: int) -> Stage:
        """The stage of the documents that need no other rank, one call with the rank's own keys."""
        _, runs = self.keys_of((rank,))
        rows = self.num_rows(rank)
        found = self.found_of(rank)[0]
        return Stage(rows, fetches_of([(0, rows)], runs), calls_of(found, WHOLE))

    def _stage(self, rank: int, index: int) -> Stage:
        if self.is_apart and index == 0:
            return self.whole(rank)
        sources = tuple(sorted((rank - by) % self.world for by in self.distances(index)))
        keys, runs = self.keys_of(sources)
        if self.is_apart:
            found = self.found_of(rank)[1]
        else:
            found = rectangles(self.pieces(rank), keys, self.mask, self.step)
        own = sources == (rank,)
        wanted = [(0, self.num_rows(rank))] if own else joined(r.keys for r in found)
        starts = [0, *itertools.accumulate(end - begin for begin, end in wanted)]
        begins = [begin for begin, _ in wanted]

        def place(key: int) -> int:
            at = bisect_right(begins, key) - 1
            return starts[at] + key - begins[at]

        moved = [one.moved(place(one.keys[0])) for one in found]
        join = APART if not self.joins else TOUCHING if self.is_apart else IN_ORDER
        calls = calls_of(moved, join)
        return Stage(starts[-1], fetches_of(wanted, runs), calls)

    def _keys_of(self, ranks: tuple[int, ...]) -> tuple[list[Piece], list[Run]]:
        """The keys of some ranks, in the order of the stream: whole pieces, and whose they are."""
        parts = []
        for rank in ranks:
            row = 0
            for piece in self.pieces(rank):
                parts.append((piece, rank, row))
                row += piece.end - piece.begin
        whole: list[Piece] = []
        runs: list[Run] = []
        for piece, rank, row in sorted(parts):
            begin = runs[-1].end if runs else 0
            runs.append(Run(begin, begin + piece.end - piece.begin, rank, row))
            if whole and whole[-1][::2] == (piece.document, piece.begin):
                piece = whole.pop()._replace(end=piece.end)
            whole.append(piece)
        return whole, runs


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Half-open ranges in order, those that touch as one."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            begin, end = found[-1][0], max(end, found[-1][1])
            found.pop()
        found.append((begin, end))
    return found


def fetches_of(wanted: list[Range], runs: list[Run]) -> tuple[Fetch, ...]:
    """Who has the wanted keys, and where they go: one range after the other."""
    found: dict[int, list[tuple[Range, Range]]] = {}
    place, at = 0, 0
    for first, last in wanted:
        while at < len(runs) and runs[at].end <= first:
            at += 1
        for run in itertools.takewhile(lambda one: one.begin < last, runs[at:]):  # noqa: B023
            a, b = max(run.begin, first), min(run.end, last)
            row, to, of = run.row + a - run.begin, place + a - first, found.setdefault(run.rank, [])
            if of and of[-1][0][1] == row and of[-1][1][1] == to:
                (before, _), (to_before, _) = of.pop()
                of.append(((before, row + b - a), (to_before, to + b - a)))
            else:
                of.append(((row, row + b - a), (to, to + b - a)))
        place += last - first
    return tuple(
        Fetch(rank, tuple(rows for rows, _ in of), tuple(places for _, places in of))
        for rank, of in sorted(found.items())
    )

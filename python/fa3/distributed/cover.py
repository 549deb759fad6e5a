# SPDX-License-Identifier: Apache-2.0
"""Rectangles of a mask, and the calls that compute them, by src/ring/schedule/cover.h.

A query at position i of its document sees the key at position j if low <= j - i <= high. Rows and
keys that a rank holds are pieces of documents, so between the index of a row and the index of a key
the same rule holds, piece by piece, with bounds moved.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fa3 import _native
from fa3.distributed.layout import Piece

Range = tuple[int, int]
FAR = 1 << 60  # a bound that bounds nothing
APART, IN_ORDER, TOUCHING, WHOLE = range(4)  # fa3_ring_join


class Mask(NamedTuple):
    """Keys to the left and to the right of its own position that a query sees; None: all."""

    left: int | None = None
    right: int | None = None


class Band(NamedTuple):
    """low <= key - query <= high."""

    low: int = -FAR
    high: int = FAR


class Origin(NamedTuple):
    """What the first query and the first key are: a document and positions in it."""

    document: int
    query: int
    key: int


class Rectangle(NamedTuple):
    """Query rows and keys, half-open ranges of indices, and the band of what is seen."""

    rows: Range
    keys: Range
    band: Band
    origin: Origin

    def moved(self, begin: int) -> "Rectangle":
        """This rectangle with its keys at `begin`."""
        by = begin - self.keys[0]
        band = (side if abs(side) == FAR else side + by for side in self.band)
        return self._replace(keys=(begin, self.keys[1] + by), band=Band(*band))


class Call(NamedTuple):
    """One call of attention: query rows, keys, the mask, and the lengths of several sequences.

    cu_rows and cu_keys are () for one sequence, else cumulative lengths from 0. The origin is that
    of the first sequence.
    """

    rows: Range
    keys: Range
    window: tuple[int, int]  # -1: unbounded
    shift: int
    origin: Origin
    cu_rows: tuple[int, ...] = ()
    cu_keys: tuple[int, ...] = ()

    def sequences(self) -> Iterator[tuple[Range, Range]]:
        """Query rows and keys of each sequence."""
        if not self.cu_rows:
            yield self.rows, self.keys
        bounds = zip(self.cu_rows, self.cu_rows[1:], self.cu_keys, self.cu_keys[1:], strict=False)
        for a, b, c, d in bounds:
            yield (
                (self.rows[0] + a, self.rows[0] + b),
                (self.keys[0] + c, self.keys[0] + d),
            )


def rectangles(
    queries: Sequence[Piece], keys: Sequence[Piece], mask: Mask, step: int = 0
) -> list[Rectangle]:
    """What of the mask lies between two lists of pieces, in indices of rows of these lists.

    With a step, rows and keys of a rectangle are neighbours in their document, and begin a multiple
    of it behind the beginning of their piece.
    """
    left, right = (-1 if side is None else min(side, FAR) for side in mask)
    found = _native.ring_rectangles(list(queries), list(keys), left, right, step)
    return [Rectangle(a, b, Band(*band), Origin(*origin)) for a, b, band, origin in found]


def by_document(of: Sequence[Piece]) -> dict[int, list[tuple[int, Piece]]]:
    """The pieces of each document, with the index of their first row."""
    found: dict[int, list[tuple[int, Piece]]] = {}
    index = 0
    for piece in of:
        found.setdefault(piece.document, []).append((index, piece))
        index += piece.end - piece.begin
    return found


def with_itself(row: int, piece: Piece, mask: Mask) -> Rectangle:
    """A piece's rows and its own keys, under a mask whose bounds may exclude nothing."""
    low = -FAR if mask.left is None else -mask.left
    high = FAR if mask.right is None else mask.right
    rows = row, row + piece.end - piece.begin
    return Rectangle(rows, rows, Band(low, high), Origin(*piece[:2], piece.begin))


def calls_of(found: Sequence[Rectangle], join: int) -> tuple[Call, ...]:
    """The calls that compute the rectangles of all documents."""
    return tuple(
        Call(rows, keys, window, shift, Origin(*origin), *lengths)
        for rows, keys, window, shift, origin, *lengths in _native.ring_calls(list(found), join)
    )

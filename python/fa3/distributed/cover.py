# SPDX-License-Identifier: Apache-2.0
"""Rectangles of a mask, and the calls that compute them: as few as the mask allows.

A query at position i of its document sees the key at position j if low <= j - i <= high. Rows and
keys that a rank holds are pieces of documents, so between the index of a row and the index of a key
the same rule holds, piece by piece, with bounds moved. Two pieces need only one call where one band
says the same for both.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fa3.distributed.layout import Piece

Range = tuple[int, int]
FAR = 1 << 62  # a bound that bounds nothing


class Mask(NamedTuple):
    """Keys to the left and to the right of its own position that a query sees; None: all."""

    left: int | None = None
    right: int | None = None


class Band(NamedTuple):
    """low <= key - query <= high."""

    low: int = -FAR
    high: int = FAR


NOTHING = Band(FAR, -FAR)


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
        band = Band(self.band.low + by, self.band.high + by)
        return self._replace(keys=(begin, self.keys[1] + by), band=band)

    def normal(self) -> Band:
        """The band without bounds that exclude nothing here; NOTHING if nothing is seen."""
        nearest, farthest = self.keys[0] - self.rows[1] + 1, self.keys[1] - 1 - self.rows[0]
        low, high = self.band
        if low > min(high, farthest) or high < nearest:
            return NOTHING
        return Band(low if low > nearest else -FAR, high if high < farthest else FAR)

    def trimmed(self, step: int = 1) -> "Rectangle":
        """Without rows that see no key and keys that no row sees; whole steps at the beginnings."""
        (a, b), (c, d), (low, high), origin = self
        rows = max(0, c - high - a) // step * step
        a, b = a + rows, min(b, d - low)
        keys = max(0, a + low - c) // step * step
        origin = Origin(origin.document, origin.query + rows, origin.key + keys)
        return Rectangle((a, b), (c + keys, min(d, b + high)), self.band, origin)


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
    of_queries, of_keys = by_document(queries), by_document(keys)
    found = []
    for document in sorted(of_queries.keys() & of_keys.keys()):
        cells = [[cell(q, k, mask) for k in of_keys[document]] for q in of_queries[document]]
        found += [r.trimmed(step or 1) for r in (apart(cells) if step else cover(cells))]
    return found


def by_document(of: Sequence[Piece]) -> dict[int, list[tuple[int, Piece]]]:
    """The pieces of each document, with the index of their first row."""
    found: dict[int, list[tuple[int, Piece]]] = {}
    index = 0
    for piece in of:
        found.setdefault(piece.document, []).append((index, piece))
        index += piece.end - piece.begin
    return found


def cell(queries: tuple[int, Piece], keys: tuple[int, Piece], mask: Mask) -> Rectangle:
    (row, q), (key, k) = queries, keys
    # Positions are indices plus these.
    moved = (k.begin - key) - (q.begin - row)
    low = -FAR if mask.left is None else -mask.left - moved
    high = FAR if mask.right is None else mask.right - moved
    rows, seen = (row, row + q.end - q.begin), (key, key + k.end - k.begin)
    return Rectangle(rows, seen, Band(low, high), Origin(q.document, q.begin, k.begin))


def apart(cells: list[list[Rectangle]]) -> list[Rectangle]:
    """The cells of a grid that see anything."""
    return [one for line in cells for one in line if one.normal() != NOTHING]


def cover(cells: list[list[Rectangle]]) -> list[Rectangle]:
    """The fewest rectangles that see what a grid of neighbouring cells sees."""
    flat = [one for line in cells for one in line]
    if all(one.normal() == NOTHING for one in flat):
        return []
    rows = cells[0][0].rows[0], cells[-1][0].rows[1]
    keys = cells[0][0].keys[0], cells[0][-1].keys[1]
    for candidate in dict.fromkeys([*(one.normal() for one in flat), *(one.band for one in flat)]):
        if all(one._replace(band=candidate).normal() == one.normal() for one in flat):
            return [Rectangle(rows, keys, candidate, flat[0].origin)]
    ways = []
    if len(cells) > 1:
        ways.append([*cover(cells[:1]), *cover(cells[1:])])
    if len(cells[0]) > 1:
        first, rest = [line[:1] for line in cells], [line[1:] for line in cells]
        ways.append([*cover(first), *cover(rest)])
    return min(ways, key=len)


def calls_of(found: Sequence[Rectangle], joins: bool, touching: bool = False) -> tuple[Call, ...]:
    """Calls for the rectangles of all documents: those of one mask that follow one another join.

    A packed call wants rows and keys in order, each of one sequence. touching: it has no rows
    between those of two documents, whose results it would overwrite.
    """
    groups: list[tuple[tuple, list[Rectangle]]] = []
    for one in found:
        mask = mask_of(one.normal(), one)
        for other, members in groups:
            last = members[-1]
            if (
                joins
                and other == mask
                and (last.rows[1] == one.rows[0] or (not touching and last.rows[1] < one.rows[0]))
                and last.keys[1] <= one.keys[0]
            ):
                members.append(one)
                break
        else:
            groups.append((mask, [one]))
    return tuple(packed(members, *mask) for mask, members in groups)


def call_of_whole(found: Sequence[Rectangle]) -> tuple[Call, ...]:
    """One call, or none, for cells of one mask, which counts also where it hides no key.

    Rows between two of them are rows without keys.
    """
    return (packed(list(found), *mask_of(found[0].band, found[0])),) if found else ()


def mask_of(band: Band, one: Rectangle) -> tuple[tuple[int, int], int]:
    """window and window_shift, which count from the bottom right, for a band of a rectangle."""
    low, high = band
    corner = one.keys[1] - one.rows[1]  # key - query on the diagonal of the call
    if low == -FAR and high == FAR:
        return (-1, -1), 0
    if low == -FAR:
        return (-1, 0), high - corner
    if high == FAR:
        return (0, -1), low - corner
    return (high - low, 0), high - corner


def packed(members: list[Rectangle], window: tuple[int, int], shift: int) -> Call:
    rows = members[0].rows[0], members[-1].rows[1]
    keys = members[0].keys[0], members[-1].keys[1]
    origin = members[0].origin
    if len(members) == 1:
        return Call(rows, keys, window, shift, origin)
    cu_rows, cu_keys = [0], [0]

    def until(row: int, key: int) -> None:
        if (row, key) != (cu_rows[-1], cu_keys[-1]):
            cu_rows.append(row)
            cu_keys.append(key)

    for one in members:
        # Rows between two documents see nothing; nothing sees the keys between them.
        until(one.rows[0] - rows[0], cu_keys[-1])
        until(cu_rows[-1], one.keys[0] - keys[0])
        until(one.rows[1] - rows[0], one.keys[1] - keys[0])
    return Call(rows, keys, window, shift, origin, tuple(cu_rows), tuple(cu_keys))

# SPDX-License-Identifier: Apache-2.0
"""Which rows of the whole each rank holds. Plain numbers: no torch here. Next: schedule.py.

The whole is a stream of documents, one after the other; a tensor that is not packed is one
document. A rank holds its rows in the order of the stream.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Neighbouring rows of a document: positions begin .. end - 1 in it."""

    document: int
    begin: int
    end: int


def pieces(layout: str, lengths: Sequence[int], world: int, rank: int) -> list[Piece]:
    """The rows of a rank, in order.

    contiguous: the stream is cut into `world` parts, part r is rank r's. zigzag: each document is
    cut into 2 `world` parts, and rank r has the r-th from both ends: under a causal mask the first
    rows of a document see few keys and the last see many, so that every rank has the same work.
    by_document: each document is cut into `world` parts, part r is rank r's. Parts differ by one
    row at most where the numbers do not divide.
    """
    found = CUTS[layout](lengths, world, rank)
    return [piece for piece in found if piece.begin < piece.end]


def zigzag(lengths: Sequence[int], world: int, rank: int) -> list[Piece]:
    parts, last = 2 * world, 2 * world - 1 - rank
    found = []
    for document, length in enumerate(lengths):
        a, b, c, d = (i * length // parts for i in (rank, rank + 1, last, last + 1))
        neighbours = [(a, d)] if b == c else [(a, b), (c, d)]
        found += [Piece(document, *rows) for rows in neighbours]
    return found


def contiguous(lengths: Sequence[int], world: int, rank: int) -> list[Piece]:
    total, start, found = sum(lengths), 0, []
    begin, end = rank * total // world, (rank + 1) * total // world
    for document, length in enumerate(lengths):
        inside = max(begin - start, 0), min(end - start, length)
        found.append(Piece(document, *inside))
        start += length
    return found


def by_document(lengths: Sequence[int], world: int, rank: int) -> list[Piece]:
    return [
        Piece(document, rank * length // world, (rank + 1) * length // world)
        for document, length in enumerate(lengths)
    ]


CUTS = {"zigzag": zigzag, "contiguous": contiguous, "by_document": by_document}
LAYOUTS = tuple(CUTS)


def count(of: Sequence[Piece]) -> int:
    return sum(piece.end - piece.begin for piece in of)


def stream_rows(of: Sequence[Piece], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """The pieces as half-open ranges of rows of the stream, neighbours joined."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    found: list[tuple[int, int]] = []
    for document, begin, end in of:
        begin, end = begin + starts[document], end + starts[document]
        if found and found[-1][1] == begin:
            begin = found.pop()[0]
        found.append((begin, end))
    return found

# SPDX-License-Identifier: Apache-2.0
"""Which rows of the whole each rank holds. Plain numbers: no torch here. Next: schedule.py.

The whole is a stream of documents, one after the other; a tensor that is not packed is one
document. A rank holds its rows in the order of the stream.
"""

import functools
from collections.abc import Iterable, Sequence
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
    row at most where the numbers do not divide. balanced: as zigzag, but a short document is one
    rank's, that has the fewest rows then, so that ranks differ by a short document at most.
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


# A short document has at most 1/8 of a rank's share of all rows, and so at most 1/64 of the pairs
# of one document of that share: whose it is hardly matters to the balance.
SHORT_SHARE = 8


def balanced(lengths: Sequence[int], world: int, rank: int) -> list[Piece]:
    owners = owners_of_short(tuple(lengths), world)
    found = []
    for document, owner in enumerate(owners):
        if owner == rank:
            found.append(Piece(document, 0, lengths[document]))
        elif owner is None:
            of = zigzag(lengths[document : document + 1], world, rank)
            found += [piece._replace(document=document) for piece in of]
    return found


@functools.lru_cache(maxsize=64)
def owners_of_short(lengths: tuple[int, ...], world: int) -> list[int | None]:
    """Which rank has each document, None if it is cut. The longest ones choose first."""
    longest = sum(lengths) // (SHORT_SHARE * world)
    owners: list[int | None] = [None] * len(lengths)
    rows = [0] * world
    for document in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[document] <= longest:
            owners[document] = owner = min(range(world), key=rows.__getitem__)
            rows[owner] += lengths[document]
    return owners


CUTS = {
    "zigzag": zigzag,
    "contiguous": contiguous,
    "by_document": by_document,
    "balanced": balanced,
}
LAYOUTS = tuple(CUTS)


def joined_pieces(of: Iterable[Piece]) -> list[Piece]:
    """In the order of the stream, neighbours as one."""
    found: list[Piece] = []
    for piece in sorted(of):
        if found and (found[-1].document, found[-1].end) == piece[:2]:
            piece = piece._replace(begin=found.pop().begin)
        found.append(piece)
    return found


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

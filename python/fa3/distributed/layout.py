# SPDX-License-Identifier: Apache-2.0
"""Which rows of the whole each rank holds. Plain numbers: no torch here. Next: schedule.py.

The whole is a stream of documents, one after the other; a tensor that is not packed is one
document. A rank holds its rows in the order of the stream.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fa3 import _native

OF_THE_LIBRARY = "zigzag", "contiguous", "by_document"  # fa3_ring_layout
BALANCED = "balanced"
LAYOUTS = *OF_THE_LIBRARY, BALANCED


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
    row at most where the numbers do not divide. balanced: a document is one rank's where rows and
    work of the ranks can be balanced so, else cut as by zigzag.
    """
    if layout == BALANCED:
        return [piece for piece in shares(tuple(lengths), world)[rank] if piece.begin < piece.end]
    found = _native.ring_pieces(OF_THE_LIBRARY.index(layout), list(lengths), world, rank)
    return list(map(Piece._make, found))


# A short document has at most 1/8 of a rank's rows, and so at most 1/64 of the pairs of one of that
# many: who has it hardly matters to the balance of work, and it may be cut to that of rows.
SHORT_SHARE = 8
# How much more than its part of the work a rank may have: more calls cost about as much.
MOST_WORK = 5 / 4
MOST_ROUNDS = 4  # for the balance of work: with many ranks each takes a while


@functools.lru_cache(maxsize=64)
def shares(lengths: tuple[int, ...], world: int) -> list[list[Piece]]:
    """The balanced layout of all ranks. Documents are whole where they can be."""
    total = sum(lengths)
    cut = {document for document, length in enumerate(lengths) if length * world > total}
    for rounds in itertools.count():
        found, without_room, of_too_much = placed(lengths, world, cut)
        more = without_room or (of_too_much if rounds < MOST_ROUNDS else set())
        if not more:
            break
        cut |= more
    return [sorted(of) for of in found]


def placed(
    lengths: tuple[int, ...], world: int, cut: set[int]
) -> tuple[list[list[Piece]], set[int], set[int]]:
    """Whole documents go to ranks with room, the longest first, to who has the least work.

    And which to cut, of those that are not short: that have no room; the longest of who has too
    much work.
    """
    total = sum(lengths)
    most = MOST_WORK * sum(n * n for n in lengths) / world
    found: list[list[Piece]] = [[] for _ in range(world)]
    without_room: set[int] = set()
    of_too_much: set[int] = set()
    room = [(r + 1) * total // world - r * total // world for r in range(world)]
    work = [sum(lengths[i] ** 2 for i in cut) / world] * world
    for document in cut:
        for rank in range(world):
            parts = pieces("zigzag", lengths[document : document + 1], world, rank)
            found[rank] += [piece._replace(document=document) for piece in parts]
            room[rank] -= count(parts)
    for document in sorted(set(range(len(lengths))) - cut, key=lambda i: (-lengths[i], i)):
        length, begin = lengths[document], 0
        fitting = [rank for rank in range(world) if room[rank] >= length]
        if not fitting and length * SHORT_SHARE * world > total:
            without_room.add(document)
            continue
        while begin < length:
            if fitting:
                rank, end = min(fitting, key=work.__getitem__), length
            else:  # fills up who has the most room
                rank = max(range(world), key=room.__getitem__)
                end = min(length, begin + room[rank]) if room[rank] > 0 else length
            found[rank].append(Piece(document, begin, end))
            room[rank] -= end - begin
            work[rank] += end * end - begin * begin
            begin = end
    for rank in range(world):
        if work[rank] <= most:
            continue
        whole = {piece.document for piece in found[rank]} - cut
        longest = max(whole, key=lambda i: (lengths[i], i), default=None)
        if longest is not None and lengths[longest] * SHORT_SHARE * world > total:
            of_too_much.add(longest)
    return found, without_room, of_too_much


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

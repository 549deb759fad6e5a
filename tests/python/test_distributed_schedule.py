# SPDX-License-Identifier: Apache-2.0
"""The schedule of context parallelism is data: here every visible pair is counted once, by hand."""

import itertools
import os
import random

import numpy as np
import oracle
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.distributed import stages
from fa3.distributed.cover import Mask
from fa3.distributed.layout import LAYOUTS, count, pieces, stream_rows
from fa3.distributed.schedule import Schedule


def sizes_of(method, world):
    """Of the stages."""
    if method == "ring":
        return (1,) * world
    return (world,) if method == "all_gather" else stages.growing(world)


METHODS = "ring", "all_gather", "growing"
MASKS = [
    Mask(),
    Mask(None, 0),
    *(Mask(left, right) for left in (None, 0, 1, 5) for right in (None, 0, 2, 9)),
]
LENGTHS = [
    *((n,) for n in (*range(10), 13, 16, 31)),
    *((3, 9), (0, 5, 0, 0, 7), (1, 1, 1, 1), (8, 1, 8), (17, 4), (0,), ()),
]
QUICK = bool(os.environ.get("FA3_TEST_QUICK"))


def rows_of(layout, lengths, world, rank):
    ranges = stream_rows(pieces(layout, lengths, world, rank), lengths)
    return [row for begin, end in ranges for row in range(begin, end)]


def dense_mask(lengths, mask):
    """(total, total): what each row of the stream sees."""
    total = sum(lengths)
    seen = np.zeros((total, total), bool)
    start = 0
    window = tuple(-1 if side is None else side for side in mask)
    for n in lengths:
        seen[start : start + n, start : start + n] = oracle.visibility(n, n, window=window)
        start += n
    return seen


def keys_of(stage, rows):
    """The row of the stream that each key of a stage is, of the rows that ranks hold."""
    keys = np.full(stage.num_keys, -1)
    for source, ranges, places in stage.fetches:
        for (a, b), (c, d) in zip(ranges, places, strict=True):
            assert (keys[c:d] == -1).all()
            keys[c:d] = rows[source][a:b]
    assert (keys >= 0).all()
    return keys


def counted(schedule):
    """How often the calls of all ranks multiply each row of the stream by each key."""
    layout, lengths, world = schedule.layout, schedule.lengths, schedule.world
    rows = [rows_of(layout, lengths, world, rank) for rank in range(world)]
    times = np.zeros((sum(lengths), sum(lengths)), int)
    for rank, index in itertools.product(range(world), range(schedule.num_stages)):
        stage = schedule.stage(rank, index)
        keys = keys_of(stage, rows)
        for call in stage.calls:
            for (a, b), (c, d) in call.sequences():
                seen = oracle.visibility(b - a, d - c, window=call.window, window_shift=call.shift)
                for i, j in zip(*np.nonzero(seen), strict=True):
                    times[rows[rank][a + i], keys[c + j]] += 1
    return times


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", METHODS)
def test_every_visible_pair_is_computed_once(method, layout):
    cases = list(itertools.product(range(1, 6), LENGTHS, MASKS))
    if QUICK:
        cases = random.Random(0).sample(cases, 300)
    for world, lengths, mask in cases:
        schedule = Schedule(sizes_of(method, world), layout, lengths, mask)
        expected = dense_mask(lengths, mask)
        assert (counted(schedule) == expected).all(), (world, lengths, mask)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", METHODS)
def test_calls_that_know_their_place_do_too(method, layout):
    step = 4
    documents = [tuple(4 * step * n for n in (3, 0, 1)), (8 * step,), (step * 60,)]
    for world, lengths, mask in itertools.product((1, 2, 3), documents, MASKS):
        held = [pieces(layout, lengths, world, rank) for rank in range(world)]
        if any(piece.begin % step for of in held for piece in of):
            continue
        schedule = Schedule(sizes_of(method, world), layout, lengths, mask, step=step)
        assert (counted(schedule) == dense_mask(lengths, mask)).all(), (world, lengths, mask)
        starts = [0, *itertools.accumulate(lengths)]
        for rank, index in itertools.product(range(world), range(schedule.num_stages)):
            rows = rows_of(layout, lengths, world, rank)
            stage = schedule.stage(rank, index)
            keys = keys_of(stage, [rows_of(layout, lengths, world, r) for r in range(world)])
            for call in stage.calls:
                document, query, key = call.origin
                begins = starts[document] + query, starts[document] + key
                assert (rows[call.rows[0]], keys[call.keys[0]]) == begins
                assert query % step == 0 and key % step == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_row_is_held_by_one_rank_in_order(layout):
    for world, lengths in itertools.product(range(1, 7), LENGTHS):
        held = [rows_of(layout, lengths, world, rank) for rank in range(world)]
        assert all(rows == sorted(rows) for rows in held)
        assert sorted(itertools.chain(*held)) == list(range(sum(lengths)))


def test_short_documents_of_a_balanced_layout_stay_whole():
    lengths = (7, 300, 0, 12, 9, 700, 8, 12)
    held = [pieces("balanced", lengths, 2, rank) for rank in range(2)]
    whole = [piece for of in held for piece in of if lengths[piece.document] < 60]
    assert sorted((p.document, p.begin, p.end) for p in whole) == [
        (i, 0, n) for i, n in enumerate(lengths) if 0 < n < 60
    ]
    assert [p for p in held[0] if p.document == 5] == [(5, 0, 175), (5, 525, 700)]
    rows = [count(of) for of in held]
    assert abs(rows[0] - rows[1]) <= 12


def test_teams_hold_what_their_members_do():
    for layout, lengths in itertools.product(LAYOUTS, LENGTHS):
        schedule = Schedule((1, 1), layout, lengths, Mask(None, 0), team=2)
        for rank in range(2):
            members = [rows_of(layout, lengths, 4, 2 * rank + i) for i in range(2)]
            held = stream_rows(schedule.pieces(rank), lengths)
            assert [row for a, b in held for row in range(a, b)] == sorted(
                itertools.chain(*members)
            )


def test_what_is_sent_is_what_is_fetched():
    for method, layout, world in itertools.product(METHODS, LAYOUTS, (1, 2, 3, 5)):
        schedule = Schedule(sizes_of(method, world), layout, (7, 0, 12), Mask(4, 0))
        for index in range(schedule.num_stages):
            sent = [
                (rank, receiver, rows)
                for rank in range(world)
                for receiver, rows in schedule.sends(rank, index)
            ]
            fetched = [
                (fetch.source, rank, fetch.rows)
                for rank in range(world)
                for fetch in schedule.stage(rank, index).fetches
                if fetch.source != rank
            ]
            assert sorted(sent) == sorted(fetched)


def test_a_causal_zigzag_stage_is_one_call_and_every_rank_has_the_same_work():
    schedule = Schedule((1,) * 8, "zigzag", (4096,), Mask(None, 0))
    work = []
    for rank in range(8):
        stages = [schedule.stage(rank, index) for index in range(8)]
        assert [len(stage.calls) for stage in stages] == [1] * 8
        assert stages[0].calls[0].window == (-1, 0) and stages[0].calls[0].shift == 0
        assert all(stage.calls[0].window == (-1, -1) for stage in stages[1:])
        calls = [stage.calls[0] for stage in stages[1:]]
        work.append(sum((c.rows[1] - c.rows[0]) * (c.keys[1] - c.keys[0]) for c in calls))
    assert len(set(work)) == 1


def test_packed_documents_are_one_call_of_a_stage():
    lengths = (64, 128, 32, 256)
    ring = Schedule((1,) * 4, "zigzag", lengths, Mask(None, 0))
    assert all(len(ring.stage(rank, i).calls) == 1 for rank in range(4) for i in range(4))
    gathered = Schedule((4,), "contiguous", lengths, Mask(None, 0))
    assert all(len(gathered.stage(rank, 0).calls) == 1 for rank in range(4))


def test_a_window_fetches_its_neighbourhood_alone():
    schedule = Schedule((1,) * 8, "contiguous", (1024,), Mask(100, 0))
    for rank in range(8):
        fetched = [schedule.stage(rank, index).num_keys for index in range(1, 8)]
        assert fetched == [100 if rank else 0, 0, 0, 0, 0, 0, 0]


def test_a_causal_zigzag_ring_fetches_half_of_the_keys_of_earlier_ranks():
    schedule = Schedule((1,) * 4, "zigzag", (1600,), Mask(None, 0))
    assert [schedule.stage(2, index).num_keys for index in range(4)] == [400, 200, 200, 400]


def test_shares_differ_by_two_rows_of_a_document_at_most():
    for length, world in itertools.product(range(40), range(1, 7)):
        for layout in LAYOUTS:
            shares = [count(pieces(layout, (length,), world, rank)) for rank in range(world)]
            assert max(shares) - min(shares) <= (2 if layout in ("zigzag", "balanced") else 1)

# SPDX-License-Identifier: Apache-2.0
"""keys.py's two ways between ranks whose memory is each other's (peers.py).

A rank copies its keys to where the other's kernels read them, and gradients to where they are
added. Where things are in a rank's slot follows from the schedule, which all ranks have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from fa3.distributed.schedule import Fetch, Schedule
from fa3.distributed.transport.exchange import Range, Ring, length
from fa3.distributed.transport.keys import Part, Returned, travel_type
from fa3.distributed.transport.peers import GRADIENTS, KEYS, placed


class PeerKeys:
    """The keys and values of a stage, in this rank's slot: under way from the construction on."""

    def __init__(
        self, schedule: Schedule, ring: Ring, index: int, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        self.ring, self.own = ring, (k, v)
        self.stage = schedule.stage(ring.rank, index)
        self.is_local = schedule.is_local(index)
        if self.is_local:
            return
        most = max(schedule.stage(rank, index).num_keys for rank in range(ring.world))
        self.use = ring.peers.use(KEYS, index, placed(*sizes_of(most, k, v))[-1])
        rows = [x.contiguous() for x in (k, v)]
        letters = []
        for receiver, fetch in receivers(schedule, ring, index):
            there = self.slot_of(ring, receiver, schedule.stage(receiver, index).num_keys)
            letters.append((ring.of_group(receiver), copies(rows, there, fetch)))
        self.use.send(letters)

    def slot_of(self, ring: Ring, rank: int, num_keys: int) -> list[torch.Tensor]:
        starts = placed(*sizes_of(num_keys, *self.own))
        return [
            self.use.view(ring.of_group(rank), start, (x.shape[0], num_keys, *x.shape[2:]), x.dtype)
            for start, x in zip(starts, self.own, strict=False)
        ]

    def wait(self) -> tuple[torch.Tensor, torch.Tensor]:
        peers = self.ring.peers
        peers.release()  # the keys of the stage before have been read
        if self.is_local:
            return self.own
        for fetch in self.stage.fetches:
            self.use.wait_for(self.ring.of_group(fetch.source))
        peers.hold(self.use)
        k, v = self.slot_of(self.ring, self.ring.rank, self.stage.num_keys)
        return k, v


def receivers(schedule: Schedule, ring: Ring, index: int) -> Iterator[tuple[int, Fetch]]:
    """Who wants keys of this rank for a stage, itself included, and which."""
    for by in schedule.distances(index):
        receiver = (ring.rank + by) % ring.world
        for fetch in schedule.stage(receiver, index).fetches:
            if fetch.source == ring.rank:
                yield receiver, fetch


def sizes_of(num_keys: int, *tensors: torch.Tensor) -> list[int]:
    return [row_of(x) * num_keys * x.element_size() for x in tensors]


def row_of(tensor: torch.Tensor) -> int:
    """Elements of a row of all sequences."""
    batch, _, heads, dim = tensor.shape
    return batch * heads * dim


def copies(rows, there, fetch: Fetch):
    for own, other in zip(rows, there, strict=True):
        for (a, b), (c, d) in zip(fetch.rows, fetch.places, strict=True):
            yield own[:, a:b], other[:, c:d]


class Place(NamedTuple):
    """Where gradients of some of a rank's keys, which another rank computes, are in its slot."""

    by: int
    rows: tuple[Range, ...]
    kind: torch.dtype
    starts: tuple[int, int]  # of dK and dV


def places_of(
    schedule: Schedule, owner: int, index: int, row: tuple[int, int], kind: torch.dtype
) -> tuple[list[Place], int]:
    """The places in a rank's slot in the order of who computes what, and their bytes."""
    found, end = [], 0
    for by, rows in sorted(schedule.sends(owner, index)):
        travels = travel_type(schedule.stage(by, index), kind)
        sizes = [length(rows) * numbers * travels.itemsize for numbers in row]
        dk, dv, size = placed(*sizes)
        found.append(Place(by, rows, travels, (end + dk, end + dv)))
        end += size
    return found, end


class Written(Returned):
    """By copies into the memory of the rank whose keys they are."""

    def send(self, letters: list[tuple[int, list[torch.Tensor]]]) -> None:
        self.is_local = self.schedule.is_local(self.index)
        if self.is_local:
            return
        ring = self.ring
        of = [self.places_at(rank) for rank in range(ring.world)]
        self.use = ring.peers.use(GRADIENTS, self.index, max(size for _, size in of))
        copies = []
        for source, values in letters:
            (place,) = (place for place in of[source][0] if place.by == ring.rank)
            there = self.slot_of(source, place)
            copies.append((ring.of_group(source), zip(values, there, strict=True)))
        self.use.send(copies)
        self.places = of[ring.rank][0]

    def places_at(self, owner: int) -> tuple[list[Place], int]:
        dk, dv = self.gradients
        row = row_of(dk), row_of(dv)
        return places_of(self.schedule, owner, self.index, row, self.part_type)

    def slot_of(self, rank: int, place: Place) -> list[torch.Tensor]:
        return [
            self.use.view(
                self.ring.of_group(rank),
                start,
                (x.shape[0], length(place.rows), *x.shape[2:]),
                place.kind,
            )
            for start, x in zip(place.starts, self.gradients, strict=True)
        ]

    def arrived(self) -> list[Part]:
        parts = self.own
        if not self.is_local:
            for place in self.places:
                self.use.wait_for(self.ring.of_group(place.by))
                values = self.slot_of(self.ring.rank, place)
                parts.append(Part(place.by, place.rows, values[0], values[1], True))
        return parts

    def release(self) -> None:
        if not self.is_local:
            self.use.release()

# SPDX-License-Identifier: Apache-2.0
"""Keys and values on their way to the stages that want them, and their gradients on the way back.

exchange.py carries the messages, run.py computes with what arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from fa3.distributed.merged import Total, add_parts
from fa3.distributed.schedule import Schedule, Stage
from fa3.distributed.transport.exchange import Messages, Range, Ring, length, put, take
from fa3.torch.operators import new_rows

K, V, DK, DV = range(4)  # tags of messages


class Part(NamedTuple):
    """Gradients of some rows of a rank's keys, which the rank `by` has computed."""

    by: int
    rows: tuple[Range, ...]
    dk: torch.Tensor
    dv: torch.Tensor
    borrowed: bool  # the memory is another's soon

    def ranges(self) -> Iterator[tuple[Range, torch.Tensor, torch.Tensor]]:
        begin = 0
        for a, b in self.rows:
            end = begin + b - a
            yield (a, b), self.dk[:, begin:end], self.dv[:, begin:end]
            begin = end


class Keys:
    """The keys and values of a stage: under way from the construction on."""

    def __init__(
        self, schedule: Schedule, ring: Ring, index: int, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        self.stage = schedule.stage(ring.rank, index)
        self.arrived: list[tuple] = []
        self.messages = Messages(ring, f"the keys of stage {index} of {schedule.num_stages}")
        self.k, self.v = (self.receive(ring.rank, x, tag) for x, tag in ((k, K), (v, V)))
        for receiver, rows in schedule.sends(ring.rank, index):
            for tag, tensor in ((K, k), (V, v)):
                self.messages.send(take(tensor, rows), receiver, tag)
        self.messages.start()

    def receive(self, rank: int, own: torch.Tensor, tag: int) -> torch.Tensor:
        """The stage's keys, or values, to be: this rank's are there, others are waited for."""
        fetches = self.stage.fetches
        if [(of.source, of.rows) for of in fetches] == [(rank, ((0, own.shape[1]),))]:
            return own
        batch, _, *row = own.shape
        tensor = new_rows((batch, self.stage.num_keys, *row), own.dtype, own.device)
        for source, rows, places in fetches:
            if source == rank:
                put(tensor, places, take(own, rows))
                continue
            values = tensor[:, places[0][0] : places[0][1]]
            if len(places) > 1 or not values.is_contiguous():
                values = own.new_empty((batch, length(places), *row))
                self.arrived.append((tensor, places, values))
            self.messages.receive(values, source, tag)
        return tensor

    def wait(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.messages.wait()
        for tensor, places, values in self.arrived:
            put(tensor, places, values)
        return self.k, self.v


class Returned:
    """The gradients of a stage's keys on their way to the ranks whose keys they are.

    They travel as float32 sums, or, where one call made them, in the type that it gave. How they
    travel is a subclass's.
    """

    def __init__(
        self,
        schedule: Schedule,
        ring: Ring,
        index: int,
        dk: torch.Tensor,
        dv: torch.Tensor,
        part_type: torch.dtype,
    ) -> None:
        self.schedule, self.ring, self.index = schedule, ring, index
        self.gradients, self.part_type = (dk, dv), part_type
        self.own: list[Part] = []
        stage = schedule.stage(ring.rank, index)
        kind, letters = travel_type(stage, part_type), []
        for source, rows, places in stage.fetches:
            values = [take(x, places) for x in self.gradients]
            if source == ring.rank:
                self.own.append(Part(source, rows, values[0], values[1], False))
            else:
                letters.append((source, [x.to(kind) for x in values]))
        self.send(letters)

    def send(self, letters: list[tuple[int, list[torch.Tensor]]]) -> None:
        """To each of these ranks dK and dV of keys of its own."""
        raise NotImplementedError

    def arrived(self) -> list[Part]:
        """All of this rank's keys, in any order."""
        raise NotImplementedError

    def release(self) -> None:
        """What has arrived was read."""

    def in_order(self) -> list[Part]:
        """In that of the ranks that computed them: sums repeat bit by bit."""
        return sorted(self.arrived(), key=lambda part: part.by)


class Posted(Returned):
    """By messages of the group's backend."""

    def send(self, letters: list[tuple[int, list[torch.Tensor]]]) -> None:
        doing = f"the gradients of stage {self.index} of {self.schedule.num_stages}"
        self.messages = Messages(self.ring, doing)
        for receiver, values in letters:
            for part, tag in zip(values, (DK, DV), strict=True):
                self.messages.send(part, receiver, tag)
        for sender, rows in self.schedule.sends(self.ring.rank, self.index):
            kind = travel_type(self.schedule.stage(sender, self.index), self.part_type)
            values = [
                x.new_empty((x.shape[0], length(rows), *x.shape[2:]), dtype=kind)
                for x in self.gradients
            ]
            for part, tag in zip(values, (DK, DV), strict=True):
                self.messages.receive(part, sender, tag)
            self.own.append(Part(sender, rows, values[0], values[1], False))
        self.messages.start()

    def arrived(self) -> list[Part]:
        self.messages.wait()
        return self.own


def add_to(returned: Returned, dk: Total, dv: Total) -> None:
    """Adds what has come back."""
    for part in returned.in_order():
        add_part(part, dk, dv)
    returned.release()


def add_part(part: Part, dk: Total, dv: Total) -> None:
    for rows, of_k, of_v in part.ranges():
        dk.add(rows, of_k, part.borrowed)
        dv.add(rows, of_v, part.borrowed)


def with_last(returned: Returned, dk: Total, dv: Total) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of all, in the tensors' types."""
    parts = returned.in_order()
    if parts and dk.sum is None:
        add_part(parts.pop(0), dk, dv)
    ranges = [one for part in parts for one in part.ranges()]
    results = (
        dk.result([(rows, of_k) for rows, of_k, _ in ranges]),
        dv.result([(rows, of_v) for rows, _, of_v in ranges]),
    )
    returned.release()
    return results


def add_at_once(returned: Returned, dk: torch.Tensor, dv: torch.Tensor) -> None:
    """Adds what has come back, in one rounding of each row that anything comes back for."""
    ranges = [one for part in returned.in_order() for one in part.ranges()]
    add_parts(dk, [(rows, of_k) for rows, of_k, _ in ranges])
    add_parts(dv, [(rows, of_v) for rows, _, of_v in ranges])
    returned.release()


def travel_type(stage: Stage, part_type: torch.dtype) -> torch.dtype:
    return part_type if len(stage.calls) == 1 else torch.float32

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

    They travel as float32 sums, or, where one call made them, in the type that it gave.
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
        self.messages = Messages(ring, f"the gradients of stage {index} of {schedule.num_stages}")
        self.parts: list[Part] = []
        stage = schedule.stage(ring.rank, index)
        for source, rows, places in stage.fetches:
            values = [take(x, places) for x in (dk, dv)]
            if source == ring.rank:
                self.parts.append(Part(source, rows, values[0], values[1], False))
                continue
            for part, tag in zip(values, (DK, DV), strict=True):
                self.messages.send(part.to(travel_type(stage, part_type)), source, tag)
        for receiver, rows in schedule.sends(ring.rank, index):
            kind = travel_type(schedule.stage(receiver, index), part_type)
            values = [
                x.new_empty((x.shape[0], length(rows), *x.shape[2:]), dtype=kind) for x in (dk, dv)
            ]
            for part, tag in zip(values, (DK, DV), strict=True):
                self.messages.receive(part, receiver, tag)
            self.parts.append(Part(receiver, rows, values[0], values[1], False))
        self.messages.start()

    def arrived(self) -> list[Part]:
        self.messages.wait()
        return self.parts

    def release(self) -> None:
        """Its memory is no one else's."""


def add_to(returned, dk: Total, dv: Total, last: bool = False) -> None:
    """Adds what has come back, in the order of the ranks that computed it: sums repeat bit by bit.

    last: nothing comes behind it.
    """
    parts = sorted(returned.arrived(), key=lambda part: part.by)
    for number, part in enumerate(parts, 1):
        ends = last and number == len(parts)
        for rows, of_k, of_v in part.ranges():
            at_end = ends and rows == part.rows[-1]
            for total, values in ((dk, of_k), (dv, of_v)):
                total.add(rows, values, part.borrowed, at_end)
    returned.release()


def add_at_once(returned, dk: torch.Tensor, dv: torch.Tensor) -> None:
    """The same, in one rounding of each row that anything comes back for."""
    parts = sorted(returned.arrived(), key=lambda part: part.by)
    ranges = [one for part in parts for one in part.ranges()]
    add_parts(dk, [(rows, of_k) for rows, of_k, _ in ranges])
    add_parts(dv, [(rows, of_v) for rows, _, of_v in ranges])
    returned.release()


def travel_type(stage: Stage, part_type: torch.dtype) -> torch.dtype:
    return part_type if len(stage.calls) == 1 else torch.float32

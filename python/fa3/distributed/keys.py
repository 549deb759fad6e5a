# SPDX-License-Identifier: Apache-2.0
"""Keys and values on their way to the stages that want them, and their gradients on the way back.

exchange.py carries the messages, run.py computes with what arrives.
"""

import torch

from fa3.distributed.exchange import Messages, Ring, length, put, take
from fa3.distributed.merged import Total
from fa3.distributed.schedule import Schedule, Stage
from fa3.torch.operators import new_rows

K, V, DK, DV = range(4)  # tags of messages


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
        self.arrived: list[tuple] = []
        parts = ((dk, DK), (dv, DV))
        stage = schedule.stage(ring.rank, index)
        for source, rows, places in stage.fetches:
            for tensor, tag in parts:
                values = take(tensor, places)
                if source == ring.rank:
                    self.arrived.append((source, tag, rows, values))
                else:
                    self.messages.send(values.to(travel_type(stage, part_type)), source, tag)
        for receiver, rows in schedule.sends(ring.rank, index):
            kind = travel_type(schedule.stage(receiver, index), part_type)
            for tensor, tag in parts:
                shape = tensor.shape[0], length(rows), *tensor.shape[2:]
                values = tensor.new_empty(shape, dtype=kind)
                self.messages.receive(values, receiver, tag)
                self.arrived.append((receiver, tag, rows, values))
        self.messages.start()

    def add_to(self, dk: Total, dv: Total, last: bool = False) -> None:
        """In the order of the ranks that computed them, so that sums repeat bit by bit."""
        self.messages.wait()
        arrived = sorted(self.arrived, key=lambda one: one[:2])
        for number, (_, tag, rows, values) in enumerate(arrived, 1):
            ends = last and number > len(arrived) - 2  # dK's last part and dV's
            begin = 0
            for a, b in rows:
                part = values[:, begin : begin + b - a]
                (dk if tag == DK else dv).add((a, b), part, last=ends and (a, b) == rows[-1])
                begin += b - a


def travel_type(stage: Stage, part_type: torch.dtype) -> torch.dtype:
    return part_type if len(stage.calls) == 1 else torch.float32

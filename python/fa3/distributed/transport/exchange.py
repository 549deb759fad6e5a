# SPDX-License-Identifier: Apache-2.0
"""Keys and gradients on their way between ranks: point to point, started early, waited for late.

A message goes straight from the rank that has rows to the rank that wants them. Nothing here waits
on the host where the group's backend works on a device's stream (NCCL).
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fa3.errors import CommunicationError

Range = tuple[int, int]


class Ring(NamedTuple):
    """The ranks of a group that take part: ring rank r is rank r * stride + first of the group."""

    group: Any
    world: int
    rank: int
    stride: int = 1
    first: int = 0
    peers: Any = None  # peers.Peers, where ranks write into each other's memory

    def of_group(self, rank: int) -> int:
        return rank * self.stride + self.first

    def peer(self, rank: int) -> int:
        return dist.get_global_rank(self.group, self.of_group(rank))

    def finish(self) -> None:
        """A call has given all its work."""
        if self.peers is not None:
            self.peers.finish()


class Messages:
    """Sends and receives under way, and what to do with what has arrived."""

    def __init__(self, ring: Ring, doing: str) -> None:
        self.ring, self.doing = ring, doing
        self.operations: list[dist.P2POp] = []
        self.kept: list[torch.Tensor] = []  # until they are sent
        self.works: list[Any] = []

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        self._add(dist.isend, tensor, rank, tag)

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        self._add(dist.irecv, tensor, rank, tag)

    def _add(self, operation, tensor, rank, tag) -> None:
        if tensor.numel():
            self.kept.append(tensor)
            group, peer = self.ring.group, self.ring.peer(rank)
            self.operations.append(dist.P2POp(operation, tensor, peer, group=group, tag=tag))

    def start(self) -> None:
        if self.operations:
            with naming(self.doing):
                self.works = dist.batch_isend_irecv(self.operations)

    def wait(self) -> None:
        for work in self.works:
            with naming(self.doing):
                work.wait()
        self.kept.clear()


class naming:
    """Says what a rank was waiting for when the group failed: a peer died, or was too late."""

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind, error, trace) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, CommunicationError):
            raise CommunicationError(
                f"fa3.distributed: expected {self.doing}, but the group failed: a rank has ended, "
                f"is later than the group's timeout, or made another call ({error})"
            ) from error


def take(tensor: torch.Tensor, rows: Sequence[Range]) -> torch.Tensor:
    """Rows of (b, s, h, d), contiguous; without a copy where that can be."""
    parts = [tensor[:, a:b] for a, b in rows]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).contiguous()


def put(tensor: torch.Tensor, places: Iterable[Range], values: torch.Tensor) -> None:
    """Writes rows, one range after the other."""
    begin = 0
    for a, b in places:
        tensor[:, a:b] = values[:, begin : begin + b - a]
        begin += b - a


def length(rows: Iterable[Range]) -> int:
    return sum(b - a for a, b in rows)

# SPDX-License-Identifier: Apache-2.0
"""Ranks that write into each other's memory: DMA carries rows, and no SM waits.

A kernel that sends, as NCCL's do, wants SMs while attention has all of them: it then
starts when attention ends, and hides nothing. Here a rank copies its rows straight to where another
rank's kernels read them, and tells it by a number in a flag; waits for flags are operations of a
stream. Nothing waits on the host.

There are two kinds of memory, keys and gradients, of two slots each, which stages use in turn. All
ranks use a slot equally often: that count is the number in flags.

    full[slot][r] = n     rank r has written its rows of the slot's n-th use
    free[slot][r] = n     rank r has read all of the n-th use of its slot

So a rank that writes waits for free = n - 1. Every wait is for what stands earlier in each rank's
order of operations: ranks cannot wait for each other in a circle, even if streams share one queue.

Next: peer_keys.py, what goes into the slots; device_memory.py, the memory of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

KEYS, GRADIENTS = range(2)
SLOTS = 2  # of a kind
FULL, FREE = range(2)
ALIGNMENT = 256  # of a tensor's bytes in a slot

Copies = Iterable[tuple[torch.Tensor, torch.Tensor]]


class Memory(Protocol):
    """What all ranks of a group can write to. Ranks are the group's."""

    rank: int
    world: int

    def reserve(self, kind: int, size: int) -> None:
        """Slots of this kind have `size` bytes, at least: the same call on all ranks."""

    def view(self, rank: int, slot: int, offset: int, shape, dtype) -> torch.Tensor:
        """A tensor in a rank's slot, from a byte on."""

    def sending(self) -> AbstractContextManager[Any]:
        """What is done in it runs behind all before, beside the calls that follow."""

    def sent(self) -> Any:
        """Stands for all that was sent so far."""

    def join(self, sent: Any) -> None:
        """What follows waits for that."""

    def wait(self, what: int, slot: int, rank: int, number: int) -> None:
        """What follows waits until this rank's flag has the number."""

    def tell(self, to: int, what: int, slot: int, number: int) -> None:
        """Behind all before: a rank's flag of this one has the number."""

    def finish(self) -> None:
        """A call has given all its work."""


class Peers:
    """The slots of a group's ranks, and how often they were used."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.numbers = [0] * (2 * SLOTS)
        self.held: list[Use] = []
        self.open: list[Use] = []

    def use(self, kind: int, index: int, size: int) -> Use:
        """The slot for a stage, its next use; nobody puts more than `size` bytes into it."""
        self.memory.reserve(kind, size)
        slot = kind * SLOTS + index % SLOTS
        self.numbers[slot] += 1
        self.open = [one for one in self.open if not one.released]
        self.open.append(Use(self.memory, slot, self.numbers[slot]))
        return self.open[-1]

    def hold(self, use: Use) -> None:
        """Its rows are read by the calls that follow, until release()."""
        self.held.append(use)

    def release(self) -> None:
        for use in self.held:
            use.release()
        self.held.clear()

    def finish(self) -> None:
        """Also of a call that has failed, as it does on all ranks: none may wait for its uses."""
        self.release()
        for use in self.open:
            if not use.released:
                use.release()
        self.memory.finish()


class Use:
    """One use of a slot, by all ranks: rows go out, rows are waited for, all is released."""

    def __init__(self, memory: Memory, slot: int, number: int) -> None:
        self.memory, self.slot, self.number = memory, slot, number
        self.kept: list[torch.Tensor] = []  # until they have left
        self.sent: Any = None
        self.released = False

    def view(self, rank: int, offset: int, shape, dtype) -> torch.Tensor:
        return self.memory.view(rank, self.slot, offset, shape, dtype)

    def send(self, letters: Iterable[tuple[int, Copies]]) -> None:
        """To some ranks, each once: copies (from, to) into its slot."""
        with self.memory.sending():
            for rank, copies in letters:
                self.memory.wait(FREE, self.slot, rank, self.number - 1)
                for source, target in copies:
                    copy(source, target)
                    self.kept.append(source)
                self.memory.tell(rank, FULL, self.slot, self.number)
            self.sent = self.memory.sent()

    def wait_for(self, rank: int) -> None:
        self.memory.wait(FULL, self.slot, rank, self.number)

    def release(self) -> None:
        """This rank has read its slot, and what it sent has left."""
        for rank in range(self.memory.world):
            self.memory.tell(rank, FREE, self.slot, self.number)
        if self.sent is not None:
            self.memory.join(self.sent)
        self.kept.clear()
        self.released = True


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Batch by batch, for DMA takes neighbouring bytes only."""
    for one, other in zip(source, target, strict=True):
        other.copy_(one, non_blocking=True)


def placed(*sizes: int) -> list[int]:
    """Where tensors of these sizes in bytes begin, side by side, and where the last ends."""
    found = [0]
    for size in sizes:
        found.append(found[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return found

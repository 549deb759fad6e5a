# SPDX-License-Identifier: Apache-2.0
"""Memory that processes of a host share, with one queue: what transport/peers.py wants of GPUs.

Whatever is given is done at once, so a wait that only a later operation could end would never end.
Ranks sleep at random where they could be overtaken.
"""

import contextlib
import math
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist

from fa3.distributed.transport.peers import FULL, SLOTS

LONGEST_WAIT = 20.0  # seconds


class HostMemory:
    def __init__(self, folder: Path) -> None:
        self.folder, self.rank, self.world = folder, dist.get_rank(), dist.get_world_size()
        self.sizes, self.parts = [0, 0], [None, None]
        self.random = random.Random(self.rank)
        self.flags = [x.view(torch.int32) for x in self.shared("flags", 16 * SLOTS * self.world)]

    def shared(self, name: str, size: int) -> list[torch.Tensor]:
        """Bytes of every rank, all of them zero."""
        paths = [self.folder / f"{name}.{rank}" for rank in range(self.world)]
        paths[self.rank].write_bytes(bytes(size))
        dist.barrier()
        return [torch.from_file(str(x), True, size, dtype=torch.uint8) for x in paths]

    def reserve(self, kind: int, size: int) -> None:
        if size > self.sizes[kind]:
            dist.barrier()
            self.sizes[kind] = size
            self.parts[kind] = self.shared(f"{kind}-{size}", SLOTS * size)

    def view(self, rank, slot, offset, shape, dtype):
        kind, place = divmod(slot, SLOTS)
        begin = place * self.sizes[kind] + offset
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        assert offset + size <= self.sizes[kind], "beyond the slot"
        return self.parts[kind][rank][begin : begin + size].view(dtype).view(shape)

    @contextlib.contextmanager
    def sending(self):
        yield

    def sent(self):
        return None

    def join(self, sent) -> None:
        assert sent is None

    def flag(self, of, what, slot, by):
        return self.flags[of], (what * 2 * SLOTS + slot) * self.world + by

    def wait(self, what, slot, rank, number) -> None:
        flags, at = self.flag(self.rank, what, slot, rank)
        late = time.monotonic() + LONGEST_WAIT
        while flags[at] < number:
            assert time.monotonic() < late, "ranks wait for each other"
            time.sleep(1e-5)

    def tell(self, to, what, slot, number) -> None:
        if self.random.random() < 0.1:
            time.sleep(self.random.random() * 1e-3)
        flags, at = self.flag(to, what, slot, self.rank)
        assert flags[at] < number if what == FULL else flags[at] == number - 1
        flags[at] = number

    def finish(self) -> None:
        pass

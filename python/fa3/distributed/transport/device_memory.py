# SPDX-License-Identifier: Apache-2.0
"""The memory of GPUs of one host that reach each other, as peers.py wants it.

torch's symmetric memory maps every rank's buffer into every process. Flags are waited for and
written by a stream's memory operations (CUDA driver API, "Stream Memory Operations"), which take no
SM. What was sent before a flag is visible to whom sees the flag.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import socket
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fa3.distributed.transport.peers import SLOTS, Peers
from fa3.distributed.transport.watch import Watch
from fa3.errors import CommunicationError

FLAG_BYTES = 4
ROW_BYTES = 16
GREATER_OR_EQUAL = 0  # CU_STREAM_WAIT_VALUE_GEQ: by the sign of the difference, so numbers may wrap
SWITCH = "FA3_DISTRIBUTED_PEERS"

found: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()


def peers_of(group, k: torch.Tensor, v: torch.Tensor) -> Peers | None:
    """The group's peers, made at the first call; None where rows go through the group's backend.

    Every rank of the group calls it at the same time, and gets the same answer.
    """
    device = k.device
    if device.type != "cuda" or dist.get_world_size(group) == 1:
        return None
    if any(x.shape[-1] * x.element_size() % ROW_BYTES for x in (k, v)):
        return None  # rows lie side by side in a slot, which TMA could not read
    if torch.cuda.is_current_stream_capturing():
        return None  # numbers in flags would be those of the capture at every replay
    of_group = found.setdefault(group, {})
    if device not in of_group:
        reach = reaches_all(group, device)
        of_group[device] = Peers(DeviceMemory(group, device)) if reach else None
    return of_group[device]


def reaches_all(group, device: torch.device) -> bool:
    """Whether all ranks are on one host, and each GPU reaches each other one."""
    given: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(given, facts_of(device), group=group)
    hosts, names, able = zip(*given, strict=True)
    here = {str(torch.cuda.get_device_properties(i).uuid): i for i in range(visible())}
    reached = all(able) and len(set(hosts)) == 1 and len(set(names)) == len(names)
    reached = reached and all(
        name in here
        and (here[name] == device.index or torch.cuda.can_device_access_peer(device, here[name]))
        for name in names
    )
    answers: list[Any] = [None] * len(given)
    dist.all_gather_object(answers, reached, group=group)
    return all(answers)


def facts_of(device: torch.device) -> tuple[str, str, bool]:
    able = os.environ.get(SWITCH, "1") != "0" and symmetric_memory() is not None
    host = socket.gethostname() + Path("/proc/sys/kernel/random/boot_id").read_text()
    return host, str(torch.cuda.get_device_properties(device).uuid), able and driver() is not None


def visible() -> int:
    return torch.cuda.device_count()


def symmetric_memory():
    try:
        from torch.distributed import _symmetric_memory as module
    except ImportError:
        return None
    return module if hasattr(module, "rendezvous") else None


@functools.cache
def driver():
    try:
        library = ctypes.CDLL("libcuda.so.1")
        for name in ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"):
            function = getattr(library, name)
            function.argtypes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint
    except (OSError, AttributeError):
        return None
    return library


class DeviceMemory:
    def __init__(self, group, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.flags, self.flag_handle = self.shared(2 * 2 * SLOTS * self.world * FLAG_BYTES)
        self.sizes = [0, 0]
        self.memory: list[Any] = [None, None]
        self.watch = Watch(timeout_of(group, device))

    def shared(self, size: int):
        """Bytes of zero that every rank can write to, and the handle of all ranks' ones."""
        module = symmetric_memory()
        memory = module.empty(size, dtype=torch.uint8, device=self.device)
        memory.zero_()
        handle = module.rendezvous(memory, self.group.group_name)
        torch.cuda.synchronize(self.device)
        dist.barrier(self.group)
        return memory, handle

    def reserve(self, kind: int, size: int) -> None:
        if size > self.sizes[kind]:
            torch.cuda.synchronize(self.device)  # nobody reads what was there
            dist.barrier(self.group)
            self.memory[kind] = None
            self.sizes[kind] = size
            self.memory[kind] = self.shared(SLOTS * size)

    def view(self, rank: int, slot: int, offset: int, shape, dtype) -> torch.Tensor:
        kind, place = divmod(slot, SLOTS)
        _, handle = self.memory[kind]
        begin = place * self.sizes[kind] + offset
        if not math.prod(shape):
            return torch.empty(shape, dtype=dtype, device=self.device)
        return handle.get_buffer(rank, shape, dtype, begin // dtype.itemsize)

    @contextlib.contextmanager
    def sending(self):
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def sent(self):
        return self.stream.record_event()

    def join(self, sent) -> None:
        torch.cuda.current_stream(self.device).wait_event(sent)

    def address(self, of: int, what: int, slot: int, by: int) -> int:
        index = (what * 2 * SLOTS + slot) * self.world + by
        return self.flag_handle.buffer_ptrs[of] + FLAG_BYTES * index

    def wait(self, what: int, slot: int, rank: int, number: int) -> None:
        address = self.address(self.rank, what, slot, rank)
        self.operate("cuStreamWaitValue32_v2", address, number, GREATER_OR_EQUAL)

    def tell(self, to: int, what: int, slot: int, number: int) -> None:
        address = self.address(to, what, slot, self.rank)
        self.operate("cuStreamWriteValue32_v2", address, number, 0)

    def operate(self, name: str, address: int, number: int, flags: int) -> None:
        stream = torch.cuda.current_stream(self.device).cuda_stream
        if code := getattr(driver(), name)(stream, address, number & 0xFFFFFFFF, flags):
            raise CommunicationError(f"fa3.distributed: {name} failed with CUDA's error {code}")

    def finish(self) -> None:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        self.watch.expect(event)


def timeout_of(group, device: torch.device) -> float:
    """Seconds that the group gives a message."""
    options = getattr(group._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None) or dist.distributed_c10d.default_pg_timeout
    return timeout.total_seconds()

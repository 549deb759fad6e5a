# SPDX-License-Identifier: Apache-2.0
"""What the GPUs of a group do in one call: kernels and copies, with their begin and end.

benchmarks/context_parallel.py --timeline writes the rows, figures.py draws them.
"""

import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

LANES = {"kernel": "kernels", "gpu_memcpy": "copies", "gpu_memset": "kernels"}


def timeline(call, meet, sleep_cycles: int) -> list[dict]:
    """Rows of all ranks, in microseconds from where they have met; on every rank."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.cuda._sleep(sleep_cycles)
        meet()
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
    found: list = [None] * dist.get_world_size()
    dist.all_gather_object(found, intervals(trace))
    met = [next(end for _, name, _, end in of if is_meeting(name)) for of in found]
    rows = []
    for rank, of in enumerate(found):
        for lane, name, begin, end in of:
            if begin >= met[rank]:
                times = {"begin_us": begin - max(met), "end_us": end - max(met)}
                rows.append({"rank": rank, "lane": lane, "name": name[:80]} | times)
    return rows


def intervals(trace: dict) -> list[tuple[str, str, float, float]]:
    """(lane, name, begin, end) of what ran on the GPU, in microseconds, in order."""
    base = trace.get("baseTimeNanoseconds", 0) / 1e3
    found = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in LANES:
            begin = base + float(event["ts"])
            lane = LANES[event["cat"]]
            found.append((lane, event["name"], begin, begin + float(event["dur"])))
    return sorted(found, key=lambda one: one[2])


def is_meeting(name: str) -> bool:
    return "nccl" in name and "AllReduce" in name

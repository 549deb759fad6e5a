# SPDX-License-Identifier: Apache-2.0
"""How every benchmark times, and what stands in every row that it writes.

A contender is a callable with a name. Rounds go through all contenders in turn, in an order that
reverses from round to round, so that heat and clocks fall on all alike; on CUDA the L2 cache is
flushed before each call, and the GPU sleeps for half a millisecond, so that no contender's host
code is timed. Rows have the median and the 10th and 90th percentile, the GPU's clock,
power and temperature under that contender, and the machine, date and commit.
"""

import argparse
import ctypes
import datetime
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
FLUSH_BYTES = 256 << 20  # several times the L2 cache of an H200
SLEEP_CYCLES = 1_000_000


def parser_of(docstring: str) -> argparse.ArgumentParser:
    """A parser whose help is a benchmark's docstring, lines as they are."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def numbers(text: str) -> list[int]:
    """An option's LIST: "64,128"."""
    return [int(part) for part in text.split(",")]


def time_once(call, device: str, flush=None, sleep=SLEEP_CYCLES, meet=None) -> tuple[float, dict]:
    """Milliseconds of one call, and the GPU's state under it. meet: what goes before it."""
    if device == "cpu":
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start), {}
    if flush is not None:
        flush.zero_()
        torch.cuda._sleep(sleep)
    if meet is not None:
        meet()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    state = gpu_state()  # while the call runs
    end.synchronize()
    return begin.elapsed_time(end), state


def time_all(contenders: list, device: str, rounds: int, time_one=time_once) -> dict:
    """By name: what a row says of a contender's rounds, the first of which warms up."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device) if device == "cuda" else None
    rows = {contender.name: [] for contender in contenders}
    for index in range(rounds + 1):
        for contender in contenders if index % 2 else reversed(contenders):
            once = time_one(contender, device, flush)
            if index > 0:
                rows[contender.name].append(once)
    return {name: summary(values) for name, values in rows.items()}


def summary(once: list[tuple[float, dict]]) -> dict:
    """The columns of a row, from (milliseconds, state) of some rounds."""
    times = sorted(milliseconds for milliseconds, _ in once)
    tenth = (len(times) - 1) / 10
    found = {
        "median_ms": statistics.median(times),
        "p10_ms": times[round(tenth)],
        "p90_ms": times[round(9 * tenth)],
        "rounds": len(times),
    }
    for key in once[0][1]:
        found[key] = statistics.median(state[key] for _, state in once)
    return found


def sustained(contender, seconds: float) -> dict:
    """The columns of calls one after the other for so many seconds, with their mean power: the L2
    cache stays as it is, and the power limit sets the clock."""
    batch = max(1, round(20 / time_once(contender, "cuda")[0]))  # 20 ms, queued at once
    times, start, joules = [], time.perf_counter(), gpu_joules()
    while (gone := time.perf_counter() - start) < seconds:
        times.append(time_once(lambda: [contender() for _ in range(batch)], "cuda"))
    row = summary([(milliseconds / batch, state) for milliseconds, state in times])
    if joules is not None:
        row |= {"watts": (gpu_joules() - joules) / gone, "seconds": gone}
    return row | {"rounds": len(times) * batch}


@functools.cache
def nvml():
    """NVIDIA's management library and its handle of torch's GPU, or None where there is none."""
    try:
        library, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    except OSError:
        return None
    identity = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
    library.nvmlInit_v2()
    if library.nvmlDeviceGetHandleByUUID(identity, ctypes.byref(device)) and (
        library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    ):
        return None
    return library, device


def gpu_state() -> dict:
    if nvml() is None:
        return {}
    library, device = nvml()
    clock, milliwatts, celsius = (ctypes.c_uint() for _ in range(3))
    failed = library.nvmlDeviceGetClockInfo(device, 1, ctypes.byref(clock))  # 1: of the SMs
    failed |= library.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts))
    failed |= library.nvmlDeviceGetTemperature(device, 0, ctypes.byref(celsius))  # 0: of the chip
    if failed:
        return {}
    return {
        "sm_clock_mhz": clock.value,
        "watts": milliwatts.value / 1e3,
        "celsius": celsius.value,
    }


def gpu_joules() -> float | None:
    """Since the driver was loaded; None where the GPU does not count them."""
    millijoules = ctypes.c_ulonglong()
    if nvml() is None:
        return None
    library, device = nvml()
    if library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)):
        return None
    return millijoules.value / 1e3


@functools.cache
def machine_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs"


@functools.cache
def commit() -> str:
    """FA3_COMMIT, or what git says; 'unknown' where the tree has no history."""
    if "FA3_COMMIT" in os.environ:
        return os.environ["FA3_COMMIT"]
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run(
        [*git, *"rev-parse --short=12 HEAD".split()], capture_output=True, text=True
    )
    changed = subprocess.run(
        [*git, *"diff --quiet HEAD -- src include benchmarks".split()], capture_output=True
    )
    return found.stdout.strip() + "-dirty" * (changed.returncode == 1) or "unknown"


def command() -> str:
    """What was typed, without where the rows go."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    if "--json" in words:
        del words[(at := words.index("--json")) : at + 2]
    return " ".join(words)


def provenance(device: str, threads: int | None = None) -> dict:
    """Where and of what a row is."""
    return {
        "machine": machine_name(device),
        "threads": threads if device == "cpu" else None,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": command(),
    }


def write_rows(path: Path | None, rows: list[dict]):
    if path is None:
        return
    with path.open("a") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


def progress(cells: list):
    """The cells one by one, with a line on stderr about what is done and what is left."""
    start = time.monotonic()
    for done, cell in enumerate(cells):
        told = f"{done + 1} of {len(cells)}"
        if done:
            gone = time.monotonic() - start
            told += f", {gone:.0f} s gone, about {gone / done * (len(cells) - done):.0f} s left"
        print(f"  [{told}]", file=sys.stderr, flush=True)
        yield cell

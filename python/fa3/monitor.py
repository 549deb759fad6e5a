# SPDX-License-Identifier: Apache-2.0
"""What a program's calls of fa3 cost, while it runs::

    fa3.monitor.start()
    ...
    for row in fa3.monitor.snapshot():
        print(row.kind, row.engine, row.calls, row.seconds, row.tflops)

The library counts calls of every caller in the process: torch, JAX, NumPy, C. Calls on a GPU are
timed by events that nobody waits for. docs/monitoring.md says what is not counted.
"""

import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from fa3 import _native, fp8
from fa3.errors import InvalidArgument

__all__ = ["Calls", "log_every", "prometheus", "register", "snapshot", "start", "stop"]

SUMMED = "calls", "timed", "seconds", "flops", "bytes", "known_seconds", "least_seconds"
LARGEST = "workspace", "memory"


class Calls(NamedTuple):
    """Sums over the calls of one kind on one engine, or with `by_shape` of one shape.

    * kind: forward, decode (at most 16 queries a sequence, and more keys), fp8, backward, mla,
      mla_backward, quantize, dequantize, merge, append, mla_append or mla_gather.
    * call: the call in words, with by_shape; else "".
    * calls, timed: the number of calls, and of those whose time is known: not of calls that a GPU
      has not finished, nor of calls inside a CUDA graph.
    * seconds: the time of the timed calls.
    * flops, bytes, least_seconds: of the timed calls whose lengths are known; these took
      known_seconds. least_seconds is the shortest time that the device's limits allow.
    * workspace, memory: bytes of the largest call: its workspace; its operands and workspace.
    * fp8_error: (mean, largest, samples) of the relative difference of attention_fp8 from
      attention, if FP8 calls are sampled.
    """

    kind: str
    engine: str
    call: str
    calls: int
    timed: int
    seconds: float
    flops: float
    bytes: float
    known_seconds: float
    least_seconds: float
    workspace: int
    memory: int
    fp8_error: tuple[float, float, int] | None = None

    @property
    def tflops(self) -> float | None:
        """TFLOP/s of the matrix products over visible pairs; None: not known."""
        return self.flops / self.known_seconds / 1e12 if self.known_seconds and self.flops else None

    @property
    def gbytes(self) -> float | None:
        """GB/s of the operands, each counted once; None: not known."""
        return self.bytes / self.known_seconds / 1e9 if self.known_seconds else None

    @property
    def share(self) -> float | None:
        """The least time at the limits of the device, as a part of the time taken; None: not
        known."""
        return self.least_seconds / self.known_seconds if self.least_seconds else None


def start(*, fp8_every: int = 0) -> None:
    """Counts the process's calls from now on.

    Args:
        fp8_every: n > 0 computes every n-th attention_fp8 without quantization too, as
            FA3_MONITOR_FP8 does.
    """
    if fp8_every:
        fp8.watch(fp8_every)
    _native.monitor(True)


def stop() -> None:
    """Ends counting. The sums stay."""
    _native.monitor(False)


def snapshot(*, by_shape: bool = False) -> list[Calls]:
    """The sums since the program began. Does not wait for a GPU, except for FP8 samples.

    Args:
        by_shape: a row for each shape, with the call in words, instead of one for each kind and
            engine. Beyond 1000 shapes calls of a kind share a row.

    Returns:
        A list of Calls; the kind that took most time is first.
    """
    rows: dict[tuple[str, str, str], Calls] = {}
    for found in json.loads(_native.monitor_text()):
        is_known = found.pop("known")
        row = Calls(known_seconds=found["seconds"] if is_known else 0.0, **found)
        if not by_shape:
            row = row._replace(call="")
        key = row.kind, row.engine, row.call
        rows[key] = joined(rows[key], row) if key in rows else row
    error = fp8.sampled_error()
    if not by_shape and error is not None:
        for key, row in rows.items():
            if row.kind == "fp8":
                rows[key] = row._replace(fp8_error=error)
    return sorted(rows.values(), key=lambda row: -row.seconds)


def joined(one: Calls, other: Calls) -> Calls:
    sums = {name: getattr(one, name) + getattr(other, name) for name in SUMMED}
    largest = {name: max(getattr(one, name), getattr(other, name)) for name in LARGEST}
    return one._replace(**sums, **largest)


def since(before: list[Calls], now: list[Calls]) -> list[Calls]:
    """What the rows have beyond earlier ones, of those that have more calls."""
    earlier = {(row.kind, row.engine): row for row in before}
    rows = []
    for row in now:
        if old := earlier.get((row.kind, row.engine)):
            row = row._replace(**{name: getattr(row, name) - getattr(old, name) for name in SUMMED})
        if row.calls:
            rows.append(row)
    return rows


# Name, type, help, and the numbers of a row; None: the row has none.
METRICS: tuple[tuple[str, str, str, Callable[[Calls], float | None]], ...] = (
    ("fa3_calls", "counter", "calls", lambda row: row.calls),
    ("fa3_timed_calls", "counter", "calls whose time is known", lambda row: row.timed),
    ("fa3_seconds", "counter", "time of these calls", lambda row: row.seconds),
    ("fa3_known_seconds", "counter", "of calls whose lengths are known", lambda r: r.known_seconds),
    ("fa3_flops", "counter", "operations of matrix products of these", lambda row: row.flops),
    ("fa3_bytes", "counter", "bytes of operands of these", lambda row: row.bytes),
    ("fa3_least_seconds", "counter", "their time at the limits", lambda row: row.least_seconds),
    ("fa3_workspace_bytes", "gauge", "largest workspace", lambda row: row.workspace),
    ("fa3_memory_bytes", "gauge", "largest operands and workspace", lambda row: row.memory),
    ("fa3_fp8_error", "gauge", "mean", lambda row: row.fp8_error and row.fp8_error[0]),
    ("fa3_fp8_error_max", "gauge", "largest", lambda row: row.fp8_error and row.fp8_error[1]),
)


def prometheus() -> str:
    """snapshot() in Prometheus's text format, with the labels kind and engine."""
    rows, lines = snapshot(), []
    for name, metric, about, number in METRICS:
        name += "_total" if metric == "counter" else ""
        lines += [f"# HELP {name} fa3: {about}", f"# TYPE {name} {metric}"]
        for row in rows:
            if (value := number(row)) is not None:
                lines.append(f'{name}{{kind="{row.kind}",engine="{row.engine}"}} {value!r}')
    return "\n".join(lines) + "\n"


def register(registry: Any = None) -> None:
    """Adds snapshot() to the metrics that prometheus_client exports.

    Args:
        registry: a prometheus_client.CollectorRegistry; None is the package's default one.

    Raises:
        ImportError: prometheus_client is not installed.
    """
    core = importlib.import_module("prometheus_client.core")

    families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}

    class Collector:
        def collect(self) -> Any:
            rows = snapshot()
            for name, metric, about, number in METRICS:
                family = families[metric](name, f"fa3: {about}", labels=("kind", "engine"))
                for row in rows:
                    if (value := number(row)) is not None:
                        family.add_metric((row.kind, row.engine), value)
                yield family

    (core.REGISTRY if registry is None else registry).register(Collector())


def line_of(row: Calls) -> str:
    """A row in words."""
    text = f"{row.kind} ({row.engine}): {row.calls} calls"
    if row.timed:
        text += f", {1e3 * row.seconds / row.timed:.4g} ms each"
    if row.tflops is not None:
        large = row.tflops >= 1
        text += f", {row.tflops if large else 1e3 * row.tflops:.4g} {'T' if large else 'G'}FLOP/s"
    if row.gbytes is not None:
        text += f", {row.gbytes:.4g} GB/s"
    if row.share is not None:
        text += f", {100 * row.share:.3g}% of the limit"
    return text + f", largest workspace {row.workspace / 2**20:.4g} MiB"


def print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Interval:
    """A thread that writes lines, in a forked child too."""

    def __init__(self, seconds: float, write: Callable[[str], object]) -> None:
        self.seconds, self.write = seconds, write
        self.ended = threading.Event()
        os.register_at_fork(after_in_child=self.begin)
        self.begin()

    def begin(self) -> None:
        if not self.ended.is_set():
            self.ended = threading.Event()  # a thread that is gone may have locked the parent's
            first = snapshot()
            threading.Thread(target=self.run, args=(first,), daemon=True).start()

    def end(self) -> None:
        self.ended.set()

    def run(self, before: list[Calls]) -> None:
        while not self.ended.wait(self.seconds):
            now = snapshot()
            for row in since(before, now):
                self.write(f"fa3: last {self.seconds:g} s: {line_of(row)}")
            before = now


def log_every(seconds: float, write: Callable[[str], object] = print_line) -> Callable[[], None]:
    """Starts counting, and writes a line for each kind of call every `seconds`.

    A line has the calls since the line before.

    Args:
        seconds: > 0.
        write: gets each line, such as logging.getLogger("fa3").info; stderr by default.

    Returns:
        A function that ends the lines.

    Raises:
        fa3.InvalidArgument: seconds is no number > 0, or write cannot be called.
    """
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= threading.TIMEOUT_MAX:
        raise InvalidArgument(
            f"seconds: expected a number > 0, at most {threading.TIMEOUT_MAX:g}, got {seconds!r}"
        )
    if not callable(write):
        raise InvalidArgument(f"write: expected a function that takes a line, got {write!r}")
    start()
    return Interval(seconds, write).end


def read_environment() -> None:
    """FA3_MONITOR_EVERY=60 logs every 60 seconds."""
    text = os.environ.get("FA3_MONITOR_EVERY", "")
    if text:
        try:
            log_every(float(text))
        except ValueError:
            raise InvalidArgument(
                f"FA3_MONITOR_EVERY: expected seconds, a number > 0, got {text!r}"
            ) from None

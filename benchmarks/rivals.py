# SPDX-License-Identifier: Apache-2.0
"""Times fa3 beside its rivals in one process, on the same tensors, and writes JSON lines.

    python3 benchmarks/rivals.py --device cpu --dtype fp32 --threads 2 --json docs/results/x.jsonl
    python3 benchmarks/rivals.py --device cuda --dtype bf16 --tokens 16384 --hidden 2048
    python3 benchmarks/rivals.py --pass bwd --threads 2

Rivals: contenders.py.

Method: normal random inputs (--q-scale 4: peaked softmax, 0.02: flat); every round times each
contender once, in an order that reverses from round to round, so that heat and clocks fall on all
alike; on CUDA the L2 cache is flushed before each timing and the GPU sleeps for half a millisecond,
so that no contender's host code is timed; the median over the rounds counts. FLOPs:
2 (d + dv) b h sq sk, half if causal, 2.5 times as many backward. --deterministic: backward passes
that add to dQ in one order, of fa3 and of the libraries.
Each contender's output is compared with the first one's; a wrong result gets no time.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import torch
from contenders import DTYPES, ROOT, Case, Tensors, contenders

FLUSH_BYTES = 256 << 20  # several times the L2 cache of an H200
SLEEP_CYCLES = 1_000_000


def time_once(contender, device: str, flush) -> float:
    """Milliseconds of one call."""
    if device == "cpu":
        start = time.perf_counter()
        contender()
        return 1e3 * (time.perf_counter() - start)
    flush.zero_()
    torch.cuda._sleep(SLEEP_CYCLES)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    contender()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def time_all(ready: list, device: str, rounds: int) -> dict:
    """Median milliseconds by contender, rounds interleaved in alternating order."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device) if device == "cuda" else None
    times = {contender.name: [] for contender in ready}
    for index in range(rounds + 1):
        for contender in ready if index % 2 else reversed(ready):
            elapsed = time_once(contender, device, flush)
            if index > 0:  # the first round warms up
                times[contender.name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def gpu_state() -> dict:
    query = "--query-gpu=clocks.sm,power.draw,temperature.gpu"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "--id=0"]
    try:
        clock, watts, celsius = subprocess.check_output(command, text=True).split(",")
    except (OSError, subprocess.CalledProcessError, ValueError):
        return {}
    return {"sm_clock_mhz": float(clock), "watts": float(watts), "celsius": float(celsius)}


def machine_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def commit() -> str:
    """FA3_COMMIT, or what git says; 'unknown' where the tree has no history."""
    if "FA3_COMMIT" in os.environ:
        return os.environ["FA3_COMMIT"]
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def record(case: Case, contender, median_ms: float, arguments) -> dict:
    return {
        "engine": contender.engine,
        "kernel": contender.kernel,
        "pass": "bwd" if case.backward else "fwd",
        "dtype": case.dtype,
        "batch": case.batch,
        "heads": case.heads,
        "kv_heads": case.kv_heads,
        "seqlen_q": case.seqlen,
        "seqlen_k": case.seqlen,
        "head_dim": case.head_dim,
        "head_dim_v": case.head_dim,
        "causal": case.causal,
        "median_ms": median_ms,
        "tflops": case.flops() / median_ms / 1e9,
        "variant": "deterministic" if case.deterministic else "default",
        "layout": arguments.layout,
        "q_scale": arguments.q_scale,
        "machine": machine_name(case.device),
        "threads": arguments.threads if case.device == "cpu" else None,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        **(gpu_state() if case.device == "cuda" else {}),
    }


def parse_arguments():
    def numbers(text):
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pass", dest="direction", choices=("fwd", "bwd"), default="fwd")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128], metavar="LIST")
    parser.add_argument("--seqlen", type=numbers, default=[4096], metavar="LIST")
    parser.add_argument("--causal", type=numbers, default=[0, 1], metavar="LIST")
    parser.add_argument("--tokens", type=int, help="batch = tokens / seqlen; without it --batch")
    parser.add_argument("--hidden", type=int, help="heads = hidden / head dim; without it --heads")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, help="default: heads")
    parser.add_argument("--deterministic", action="store_true", help="the backward's variant")
    parser.add_argument(
        "--layout", choices=("bshd", "bhsd"), default="bshd", help="order of Q, K, V in memory"
    )
    parser.add_argument(
        "--q-scale", type=float, default=1.0, help="multiplies Q: 4 peaked, 0.02 flat"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rival", action="append", default=[], metavar="LIB.so")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    grid = product(arguments.head_dim, arguments.causal, arguments.seqlen)
    for head_dim, causal, seqlen in grid:
        heads = arguments.hidden // head_dim if arguments.hidden else arguments.heads
        case = Case(
            batch=max(1, arguments.tokens // seqlen) if arguments.tokens else arguments.batch,
            seqlen=seqlen,
            heads=heads,
            kv_heads=arguments.kv_heads or heads,
            head_dim=head_dim,
            causal=bool(causal),
            dtype=arguments.dtype,
            device=arguments.device,
            backward=arguments.direction == "bwd",
            deterministic=arguments.deterministic,
        )
        tensors = Tensors(case, arguments.layout, arguments.q_scale)
        ready = contenders(case, tensors, arguments)
        medians = time_all(ready, case.device, arguments.rounds)
        records = [record(case, one, medians[one.name], arguments) for one in ready]
        cells = "  ".join(f"{r['engine']} {1e3 * r['tflops']:.1f}" for r in records)
        print(f"d{head_dim} causal {causal} s{seqlen} GFLOP/s: {cells}", flush=True)
        if arguments.json:
            with arguments.json.open("a") as lines:
                lines.writelines(json.dumps(one) + "\n" for one in records)
    return 0


if __name__ == "__main__":
    sys.exit(main())

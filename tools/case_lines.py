# SPDX-License-Identifier: Apache-2.0
"""What the tools that run other projects' tests share: processes, and a JSON line of each case."""

import json
import os
import subprocess
import sys
from pathlib import Path

MEMORY = 0.85  # of the GPU, for tensors of all processes together


def add_options(parser):
    parser.add_argument("--cases", type=int, default=2000, help="of each test, or class of tests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lines", type=Path, help="JSON lines of cases, which do not run again")
    parser.add_argument("--worker", type=int, help="which one this process is; used inside")


def share_memory(options):
    import torch

    if options.device == "cuda":
        torch.cuda.set_per_process_memory_fraction(MEMORY / options.workers)


def read_lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def gather(script, options, *more):
    """Starts the processes, which write lines; returns how many of them failed."""
    command = [sys.executable, str(Path(script).resolve()), *sys.argv[1:], *more]
    environment = os.environ | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    started = [
        subprocess.Popen(
            [*command, "--lines", str(options.lines), "--worker", str(w)], env=environment
        )
        for w in range(options.workers)
    ]
    return sum(worker.wait() != 0 for worker in started)

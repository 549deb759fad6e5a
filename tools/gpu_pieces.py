# SPDX-License-Identifier: Apache-2.0
"""What the GPU verification runs: its pieces, each some commands side by side."""

import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from kernel_sources import ROOT, source_hash

# Checks of kernels, one by one.
PROGRAMS = tuple(
    f"fa3_gpu_check{kind}"
    for kind in ("", "_disturbed", "_every_lane", "_backward", "_backward_disturbed")
)
# Small shapes with tails on both sides: one launch under a sanitizer takes seconds.
SANITIZED_CASES = "ragged"
# Small shapes for kernels that split every tile.
SPLIT_CASES = "few_queries_tails"
SPLIT_TABLES = ("stream_k", "decode")
# The only ones of kernels with dropout and a softcap.
CAPPED_CASES = "softcap_window"
# The backward's: a dense mask, windows and softcap; sequences of their own lengths, sinks.
SANITIZED_BACKWARD = ("64x128", "packed-used")
# racecheck sees the backward's kernels up to this head dim alone: beyond it P passes between
# warpgroups by mbarriers, which it does not follow (docs/lab/backward.md).
RACECHECK_HEAD_DIM = 128
# Kinds whose kernels of the same head dims share a process, and so their inputs and oracles.
SHARED_TABLES = ("forward", "cache")
CONTRACT_SHARDS = 12
EDGE_SECONDS = 60
# Random calls of the latent kernels: a program's, each with its seed; and under a sanitizer.
LATENT_CALLS, LATENT_SEEDS = 100, range(1, 9)
SANITIZED_LATENT_CALLS = 12
# Processes among which the Python tests are dealt: most of their time is NVRTC's.
PYTHON_PROCESSES = 24
SCORE_PROCESSES = 4
PYTHON_PIECE = "Python package on CUDA tensors"
# Score functions, which both engines compile.
SCORE_TESTS = (
    "flex/test_bias.py",
    "flex/test_flex_caches.py",
    "flex/test_flex_lists.py",
    "flex/test_flex_gradients.py",
)


def pieces(build: Path, gpu_oracle: bool = False) -> dict:
    """Name -> commands, run side by side. Each ends as one of the three that counts() knows.

    With gpu_oracle float64 of the forward's kernels is computed on the GPU."""
    check, disturbed, every_lane, backward, backward_disturbed = (
        str(build / "bin" / program) for program in PROGRAMS
    )
    # The oracle computes on the host, so rows and types are checked side by side.
    rows = groups(table_rows(check))
    digests = f"digests-{source_hash()[:12]}"

    def every_row(program, elements):
        # With a file of the bits, which other builds must meet. What has the bits that earlier
        # kernels had, in the same folder, needs no oracle.
        def files_of(row, element):
            name = f"{row[0].number}-{element}.txt"
            file = build / f"{digests}-{name}"
            earlier = [path for path in build.glob(f"digests-*-{name}") if path != file]
            newest = max(earlier, key=lambda path: path.stat().st_mtime, default=None)
            return [
                *("--digests", str(file)),
                *(["--earlier", str(newest)] if newest else []),
                *(["--gpu-oracle"] if gpu_oracle else []),
            ]

        return [
            [*(program, *rows_of(row), "--element", element), *files_of(row, element)]
            for element in elements
            for row in rows
            if element == "bf16" or row[0].table != "e4m3"  # whose cases have O in bf16
        ]

    # In the order in which they begin: what says most in little time comes first.
    backward_rows = [[row] for row in table_rows(backward)]
    ampere = str(build / "bin" / "fa3_gpu_check_ampere_backward")
    suites = [str(build / "bin" / "fa3_engine_tests"), "--gtest_brief=1"]
    found = {
        "the contract of every engine": [
            ["env", f"FA3_TEST_ENGINE={engine}", *smem, *shard_of(i, CONTRACT_SHARDS), *suites]
            for engine, *smem in (("hopper",), ("ampere",), ("ampere", "FA3_SMALL_SMEM=1"))
            for i in range(CONTRACT_SHARDS)
        ],
        "random calls in memory that ends with the tensors": [
            [
                *("env", f"FA3_TEST_ENGINE={engine}", f"FA3_TEST_SECONDS={EDGE_SECONDS}", *suites),
                "--gtest_filter=*Edges.random*",
            ]
            for engine in ("hopper", "ampere")
        ],
        "the ampere engine's gradients against float64": [
            [ampere, *rows_of([row])] for row in table_rows(ampere)
        ],
        "backward kernels against float64": [[backward, *rows_of(row)] for row in backward_rows],
        "backward kernels with random delays": [
            [backward_disturbed, *rows_of(row)] for row in backward_rows
        ],
        "latent kernels against float64": latent_calls(build) + latent_calls(build, "_wide"),
        "latent kernels with random delays": latent_calls(build, "_disturbed"),
        "latent gradients against float64": latent_calls(build, "_gradients"),
        "latent gradients with random delays": latent_calls(build, "_gradients_disturbed"),
        "through the C ABI": [[sys.executable, str(ROOT / "tests" / "cuda" / "api_check.py")]],
        "the fa3 command on device memory": [
            [
                *(sys.executable, str(ROOT / "tests" / "cuda" / "command_check.py")),
                str(build / "bin" / "fa3"),
            ]
        ],
        PYTHON_PIECE: python_tests(),
        "kernels against float64, every branch": every_row(check, ("bf16", "fp16")),
        "kernels with random delays, bit for bit": every_row(disturbed, ("bf16",)),
    }
    # The forward's kernels, which V given transposed runs, have pieces of their own below.
    for tool, tests in (("memcheck", "*Quantize*:*Transposed*"), ("racecheck", "*Quantize*")):
        found[f"the quantizer under {tool}"] = [
            [
                *("env", "FA3_TEST_ENGINE=hopper"),
                *("compute-sanitizer", "--tool", tool, "--error-exitcode", "1"),
                *(*suites, f"--gtest_filter={tests}"),
            ]
        ]
    lists = ":".join(f"*BlockMasks.{name}*" for name in ("of_many", "of_packed", "of_sequences"))
    found["lists of block masks under memcheck"] = [
        [
            *("env", "FA3_TEST_ENGINE=hopper"),
            *("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1"),
            *(*suites, f"--gtest_filter={lists}"),
        ]
    ]
    once = ("--repeats", "0")  # a sanitizer sees all there is in a launch
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
        # racecheck does not follow the lanes that another arrives for (ptx/lanes.cuh).
        races = tool == "racecheck"
        program = every_lane if races else check
        for pass_name, pass_kind, all_rows in (
            ("latent", "", "_wide"),
            ("latent gradients", "_gradients", "_gradients"),
        ):
            kind = f"{pass_kind}_every_lane" if races else all_rows
            found[f"compute-sanitizer {tool}, {pass_name}"] = [
                [*sanitizer, *command]
                for command in latent_calls(build, kind, SANITIZED_LATENT_CALLS)
            ]
        found[f"compute-sanitizer {tool}"] = [
            [*sanitizer, program, *rows_of(row), *once, "--only", cases]
            for row in rows
            for cases in sanitized_cases(row[0])
        ]
        found[f"compute-sanitizer {tool}, backward"] = [
            [*sanitizer, backward, *rows_of(row), *once, "--only", cases]
            for row in backward_rows
            if not races or row[0].head_dim <= RACECHECK_HEAD_DIM
            for cases in SANITIZED_BACKWARD[: 1 if races else None]
        ]
    return found


def latent_calls(build: Path, kind: str = "", calls: int = LATENT_CALLS) -> list:
    program = str(build / "bin" / f"fa3_gpu_check_latent{kind}")
    return [[program, "--calls", str(calls), "--seed", str(seed)] for seed in LATENT_SEEDS]


class Row(NamedTuple):
    """A kernel of a check program."""

    number: int
    table: str  # its kind
    head_dim: int
    head_dim_v: int
    source: str = ""  # the generated one, without its element


def table_rows(program: str) -> list[Row]:
    """What the program lists; nothing where it is not built, whose pieces then have no commands."""
    if shutil.which(program) is None:
        return []
    lines = subprocess.check_output([program, "--list"], text=True).splitlines()
    fields = [line.split() for line in lines]
    # The ampere engine's rows end with their shared memory, "163 KB": its kernels are hashed whole.
    return [
        Row(int(f[0]), f[1], int(f[2]), int(f[3]), *(f[4:] if len(f) == 5 else ())) for f in fields
    ]


def groups(rows: list[Row]) -> list[list[Row]]:
    """Neighbouring rows that one process checks."""

    def shared(row):
        return row[1:4] if row.table in SHARED_TABLES else row

    return [list(group) for _, group in groupby(rows, key=shared)]


def rows_of(group: list[Row]) -> list:
    return ["--rows", str(group[0].number), str(group[-1].number + 1)]


def sanitized_cases(row: Row) -> tuple:
    if row.table in SPLIT_TABLES:
        return (SPLIT_CASES,)
    return (SANITIZED_CASES, *((CAPPED_CASES,) if row.table == "dropout" else ()))


def shard_of(index: int, shards: int) -> list:
    return [f"GTEST_TOTAL_SHARDS={shards}", f"GTEST_SHARD_INDEX={index}"]


def python_tests() -> list:
    folder = ROOT / "tests" / "python"
    options = ["-q", "-rsf", "-k", "cuda", "-p", "no:cacheprovider"]

    def dealt(processes, environment, *files):
        return [
            [
                *("env", f"FA3_TEST_SHARD={i}/{processes}", *environment),
                *(sys.executable, "-m", "pytest", *options, *map(str, files)),
            ]
            for i in range(processes)
        ]

    scores = [folder / name for name in SCORE_TESTS]
    gradients = folder / "flex" / "test_flex_gradients.py"
    return [
        *dealt(PYTHON_PROCESSES, (), folder),
        *dealt(SCORE_PROCESSES, ("FA3_ENGINE=ampere",), *scores),
        # As on cards of 99 KB, whose kernels with slopes have tiles of their own.
        *dealt(2, ("FA3_ENGINE=ampere", "FA3_SMALL_SMEM=1"), gradients),
    ]

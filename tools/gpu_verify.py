# SPDX-License-Identifier: Apache-2.0
"""Verifies the Hopper kernels on a machine with a Hopper GPU, and keeps the record of it.

    python3 tools/gpu_verify.py            # run every piece that the record lacks (make gpu-verify)
    python3 tools/gpu_verify.py --check    # does the record match the sources? (make record-check)

Everything runs from prebuilt binaries in build/ (fa3_engine_tests, fa3_gpu_check*, fa3, libfa3.so),
so the machine needs no compiler, no GoogleTest and no network; torch serves the checks through the
C ABI. Pieces run side by side, as many commands at once as there are processors: most of the time
goes into the oracle, on the host. A piece that passed for these very sources is not run again: an
interrupted run can be resumed, and a change of the forward leaves what was seen of the backward.
The record, docs/lab/results/verification-h200.json, is committed. A run that gets SIGTERM first
says which commands had not ended: one of them may hang.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from source_tokens import CPP_SUFFIXES, tokens_of

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "lab" / "results" / "verification-h200.json"
# What decides the machine code and its launch.
SOURCES = ("src/engine/hopper/**/*", "src/engine/cuda/**/*", "src/core/*", "tools/gen_wgmma.py")
# What fa3_gpu_check_backward is made of: these and all that they need.
BACKWARD_STARTS = tuple(
    ROOT / "src/engine/hopper" / name
    for name in (
        "launch/launch_backward.h",
        "instances/backward_entry.cuh",
        "instances/backward_table.h",
        "plan/backward/plan_backward.h",
    )
)
# Sources that only the backward has.
BACKWARD_ONLY = re.compile(r"/backward/|/\w*backward\w*[.]\w+$")
INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
COMMAND_SECONDS = 480
SUMMARY = re.compile(r"^(\d+) checks, (\d+) failures$", re.MULTILINE)
# A row of one variant has none of some cases; a sanitizer then complains that it saw no launch.
NO_CASE = re.compile(r"^0 checks, 0 failures$", re.MULTILINE)
# Folders of the machine, in tracebacks: the record says nothing of them.
PLACES = re.compile(rf"{re.escape(str(ROOT))}/|/[\w./-]*/site-packages/")
PYTEST_SUMMARY = re.compile(r"^(?:(\d+) failed, )?(\d+) passed", re.MULTILINE)
# GoogleTest ends with how many tests ran, passed and were skipped, a line each.
GTEST_RAN = re.compile(r"^\[=+\] (\d+) tests? from \d+ test suites? ran\.", re.MULTILINE)
GTEST_PASSED = re.compile(r"^\[  PASSED  \] (\d+) tests?\.", re.MULTILINE)
GTEST_SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?", re.MULTILINE)
# Small shapes with tails on both sides: one launch under a sanitizer takes seconds.
SANITIZED_CASES = "ragged"
# The same for kernels that split every tile.
SPLIT_CASES = "few_queries_tails"
SPLIT_TABLES = ("stream_k", "decode")
# The only ones of kernels with dropout and a softcap.
CAPPED_CASES = "softcap_window"
# Which piece needs another's digests.
AFTER = {"kernels with random delays, bit for bit": "kernels against float64, every branch"}
# The backward's: a dense mask, windows and softcap; sequences of their own lengths, sinks.
SANITIZED_BACKWARD = ("64x128", "packed-used")
# racecheck sees the backward's kernels up to this head dim alone: beyond it P passes between
# warpgroups by mbarriers, which it does not follow (docs/lab/backward.md).
RACECHECK_HEAD_DIM = 128
# Tables whose rows of the same head dims share a process, and so their inputs and oracles.
SHARED_TABLES = ("forward", "cache")
CONTRACT_SHARDS = 6
EDGE_SECONDS = 60
# Test files that take as long as all others together, each group in a process of its own.
LONG_PYTHON_TESTS = (("test_torch_operators.py",), ("test_hf.py", "test_example_gpt.py"))


def sources(of: str = "", root: Path = ROOT) -> set[Path]:
    """Those that the checks of the "forward" or the "backward" run, or all."""
    every = {path for pattern in SOURCES for path in root.glob(pattern) if path.is_file()}
    if of == "forward":
        return {path for path in every if not BACKWARD_ONLY.search(path.as_posix())}
    if of == "backward":
        # Generators and build rules are everybody's.
        common = {path for path in every if path.suffix not in CPP_SUFFIXES}
        starts = {root / path.relative_to(ROOT) for path in BACKWARD_STARTS}
        return common | included(starts, every, root)
    return every


def included(starts: set[Path], every: set[Path], root: Path) -> set[Path]:
    """Of `every`: the starts, what they include, and the sources behind each header."""
    found, todo = set(), starts & every
    while todo:
        path = todo.pop()
        found.add(path)
        names = INCLUDE.findall(path.read_text())
        behind = {path.with_suffix(suffix) for suffix in (".cpp", ".cu")}
        todo |= ({root / "src" / name for name in names} | behind) & every - found
    return found


def source_hash(of: str = "", root: Path = ROOT) -> str:
    """SHA-256 over the names and tokens of sources(): comments and layout are free."""
    digest = hashlib.sha256()
    for path in sorted(sources(of, root)):
        for part in (path.relative_to(root).as_posix(), *tokens_of(path)):
            digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def hashes(names, root: Path = ROOT) -> dict:
    """The hash of the sources that each piece runs."""
    of = {kind: source_hash(kind, root) for kind in ("", "forward", "backward")}

    def kind_of(name):
        if "backward" in name:
            return "backward"
        return "forward" if name.startswith(("kernels", "compute-sanitizer")) else ""

    return {name: of[kind_of(name)] for name in names}


def pieces(build: Path) -> dict:
    """Name -> commands, run side by side. Each ends as one of the three that counts() knows."""
    check, disturbed, every_lane, backward, backward_disturbed = (
        str(build / "bin" / f"fa3_gpu_check{kind}")
        for kind in ("", "_disturbed", "_every_lane", "_backward", "_backward_disturbed")
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
            return ["--digests", str(file), *(["--earlier", str(newest)] if newest else [])]

        return [
            [*(program, *rows_of(row), "--element", element), *files_of(row, element)]
            for element in elements
            for row in rows
            if element == "bf16" or row[0].table != "e4m3"  # whose cases have O in bf16
        ]

    backward_rows = [[row] for row in table_rows(backward)]
    suites = [str(build / "bin" / "fa3_engine_tests"), "--gtest_brief=1"]
    found = {
        "the contract of every engine": [
            ["env", "FA3_TEST_ENGINE=hopper", *shard_of(i, CONTRACT_SHARDS), *suites]
            for i in range(CONTRACT_SHARDS)
        ],
        "random calls in memory that ends with the tensors": [
            [
                *("env", "FA3_TEST_ENGINE=hopper", f"FA3_TEST_SECONDS={EDGE_SECONDS}", *suites),
                "--gtest_filter=*Edges.random*",
            ]
        ],
        "kernels against float64, every branch": every_row(check, ("bf16", "fp16")),
        "kernels with random delays, bit for bit": every_row(disturbed, ("bf16",)),
        "backward kernels against float64": [[backward, *rows_of(row)] for row in backward_rows],
        "backward kernels with random delays": [
            [backward_disturbed, *rows_of(row)] for row in backward_rows
        ],
        "through the C ABI": [[sys.executable, str(ROOT / "tests" / "cuda" / "api_check.py")]],
        "the fa3 command on device memory": [
            [
                *(sys.executable, str(ROOT / "tests" / "cuda" / "command_check.py")),
                str(build / "bin" / "fa3"),
            ]
        ],
        "Python package on CUDA tensors": python_tests(),
    }
    once = ("--repeats", "0")  # a sanitizer sees all there is in a launch
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
        # racecheck does not follow the lanes that another arrives for (ptx/lanes.cuh).
        races = tool == "racecheck"
        program = every_lane if races else check
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


class Row(NamedTuple):
    """A row of a check program's kernel tables."""

    number: int
    table: str
    head_dim: int
    head_dim_v: int


def table_rows(program: str) -> list[Row]:
    """What the program lists; nothing where it is not built, whose pieces then have no commands."""
    if shutil.which(program) is None:
        return []
    lines = subprocess.check_output([program, "--list"], text=True).splitlines()
    fields = [line.split() for line in lines]
    return [Row(int(number), table, int(d), int(dv)) for number, table, d, dv in fields]


def groups(rows: list[Row]) -> list[list[Row]]:
    """Neighbouring rows that one process checks."""

    def shared(row):
        return row[1:] if row.table in SHARED_TABLES else row

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
    long = [[str(folder / name) for name in names] for names in LONG_PYTHON_TESTS]
    others = [str(folder), *(f"--ignore={path}" for paths in long for path in paths)]
    options = ["-q", "-rs", "-k", "cuda", "-p", "no:cacheprovider"]
    return [[sys.executable, "-m", "pytest", *options, *paths] for paths in (*long, others)]


def counts(output: str) -> tuple[int, int]:
    """Checks done and failures, as a program's, pytest's or GoogleTest's last lines have them.

    (0, 0) if it never came to its end."""
    if summary := SUMMARY.search(output):
        return int(summary[1]), int(summary[2])
    if ran := GTEST_RAN.search(output):
        passed, skipped = (
            int(found[1]) if (found := line.search(output)) else 0
            for line in (GTEST_PASSED, GTEST_SKIPPED)
        )
        checks = int(ran[1]) - skipped
        return checks, checks - passed
    if summary := PYTEST_SUMMARY.search(output):
        failures = int(summary[1] or 0)
        return int(summary[2]) + failures, failures
    return 0, 0


running_commands: dict[str, float] = {}  # and when each began


def say_what_runs(*_) -> None:
    now = time.monotonic()
    for command, start in sorted(running_commands.items(), key=lambda one: one[1]):
        print(f"{now - start:5.0f} s  not ended: {command}")
    sys.stdout.flush()
    os._exit(128 + signal.SIGTERM)


def run_command(command: list, build: Path) -> tuple[str, int, float]:
    """Output, exit status and seconds."""
    start = time.monotonic()
    shown = words_of(command)
    running_commands[shown] = start
    environment = os.environ | {
        "FA3_LIBRARY": str(build / "lib" / "libfa3.so"),
        "PYTHONPATH": str(build / "python"),
        "HF_HUB_OFFLINE": "1",
    }
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, env=environment
        )
        output, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as expired:
        output, status = (expired.stdout or b"").decode(errors="replace") + "\ntimed out", -1
    finally:
        running_commands.pop(shown, None)
    return output, status, time.monotonic() - start


def end_of(command: list, output: str) -> list:
    """The command; the last lines, and before them those that name a failure further up."""
    lines = [line.rstrip() for line in PLACES.sub("", output).splitlines() if line.strip()]
    named = [line for line in lines[:-20] if "FAIL" in line][:20]
    return ["$ " + words_of(command), *named, *lines[-20:]]


def words_of(command: list) -> str:
    words = [Path(word).name if word.startswith("/") else word for word in command]
    return PLACES.sub("", " ".join(words))


def run_piece(name: str, commands: list, build: Path, pool: ThreadPoolExecutor) -> dict:
    """Runs one piece; 'passed' also needs every summary line, so that a crash is a failure.

    'seconds' adds up those of its commands."""
    if not commands:
        return {"name": name, "passed": False, "skipped": "its program is not built"}
    program = commands[0][0]
    if shutil.which(program) is None:
        return {"name": name, "passed": False, "skipped": f"{program} is not on this machine"}
    ended = list(pool.map(lambda command: run_command(command, build), commands))
    found = [counts(output) for output, _, _ in ended]
    failures = sum(failed for _, failed in found)
    failed = [
        i
        for i, (checks, bad) in enumerate(found)
        if bad or (not NO_CASE.search(ended[i][0]) if not checks else ended[i][1])
    ]
    if not any(checks for checks, _ in found):
        failed = list(range(len(ended)))
    # Of several commands, the ends of those that failed; that of the last if none did.
    shown = failed or [len(ended) - 1]
    return {
        "name": name,
        "passed": not failed,
        "checks": sum(checks for checks, _ in found),
        "failures": failures,
        "seconds": round(sum(seconds for _, _, seconds in ended), 1),
        "output": [line for i in shown for line in end_of(commands[i], ended[i][0])],
    }


def gpu() -> dict:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    line = subprocess.check_output(query, text=True).splitlines()[0]
    name, driver, capability = (part.strip() for part in line.split(","))
    return {"gpu": name, "driver": driver, "compute_capability": capability}


def load_record(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def record_problem(path: Path = RECORD, root: Path = ROOT) -> str | None:
    """Why the record does not vouch for the sources, or None."""
    record = load_record(path)
    if not record:
        return f"there is no verification record ({path.name}): run make gpu-verify on a Hopper GPU"
    seen = {piece["name"]: piece for piece in record["pieces"]}
    stale, failed = [], []
    for name, digest in hashes(pieces(root / "build"), root).items():
        piece = seen.get(name, {"passed": False})
        if not piece["passed"]:
            failed.append(name)
        elif piece["source_hash"] != digest:
            stale.append(name)
    problems = []
    if stale:
        problems.append(f"the kernels have changed since these pieces passed: {', '.join(stale)}")
    if failed:
        problems.append(f"the record has pieces that did not pass: {', '.join(failed)}")
    return "; ".join([*problems, "run make gpu-verify on a Hopper GPU"]) if problems else None


def verify(build: Path, path: Path, only: str = "") -> bool:
    """Runs what the record lacks, writing it after every piece. True if all passed.

    With `only`, just the pieces that have it in their names; of others the record is kept."""
    every, running = pieces(build), {}
    digests = hashes(every)
    todo = {name: commands for name, commands in every.items() if only in name}
    kept = [p for p in load_record(path).get("pieces", []) if p["name"] not in todo]
    done = {
        piece["name"]: piece
        for piece in load_record(path).get("pieces", [])
        if piece["passed"] and piece["source_hash"] == digests.get(piece["name"])
    }
    record = {"pieces": []}
    seen_here = {
        **gpu(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": os.environ.get("FA3_COMMIT", ""),
    }
    path.parent.mkdir(parents=True, exist_ok=True)

    def result_of(name):
        if name in done:
            return done[name]
        if AFTER.get(name) in running:
            running[AFTER[name]].result()
        result = run_piece(name, todo[name], build, command_pool)
        return {**result, **seen_here, "source_hash": digests[name]}

    with ThreadPoolExecutor(os.cpu_count()) as command_pool, ThreadPoolExecutor(len(todo)) as pool:
        for name in todo:
            running[name] = pool.submit(result_of, name)
        for ended in as_completed(running.values()):
            result = ended.result()
            record["pieces"] = kept + [one.result() for one in running.values() if one.done()]
            path.write_text(json.dumps(record, indent=1) + "\n")
            verdict = "ok" if result["passed"] else result.get("skipped", "FAILED")
            print(f"{verdict:<8} {result['name']}: {result.get('checks', 0)} checks", flush=True)
            if not result["passed"]:
                print("\n".join("    " + line for line in result.get("output", [])[-60:]))
    passed = sum(one.result()["passed"] for one in running.values())
    print(f"{passed} pieces passed, {len(todo) - passed} did not")
    return passed == len(todo)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare the record and sources")
    parser.add_argument("--only", default="", metavar="TEXT", help="pieces with it in their names")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--record", type=Path, default=RECORD, help="where the record is kept")
    arguments = parser.parse_args()
    if arguments.check:
        problem = record_problem(arguments.record)
        print(problem or "the verification record matches the sources")
        return 1 if problem else 0
    signal.signal(signal.SIGTERM, say_what_runs)
    return 0 if verify(arguments.build.resolve(), arguments.record, arguments.only) else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Verifies the Hopper kernels on a machine with a Hopper GPU, and keeps the record of it.

    python3 tools/gpu_verify.py            # run every piece that the record lacks (make gpu-verify)
    python3 tools/gpu_verify.py --check    # does the record match the sources? (make record-check)
    python3 tools/gpu_verify.py --code     # where it was built: note its kernels' machine code

Everything runs from prebuilt binaries in build/ (fa3_engine_tests, fa3_gpu_check*, fa3, libfa3.so),
so the machine needs no compiler, no GoogleTest and no network; torch serves the checks through the
C ABI. Pieces run side by side, as many commands at once as there are processors: most of the time
goes into the oracle, on the host. They take the machine's GPUs in turn. A piece that passed for
these very sources is not run again: an interrupted run can be resumed, and a change of the forward
leaves what was seen of the backward. Nor is a check of kernels whose machine code is what it was
when it passed (kernel_code.py; build/ needs the file that --code writes): the record says how many
commands were carried over. The record, docs/lab/results/verification-h200.json, is committed. A run
that gets SIGTERM first says which commands had not ended, one of which may hang, and keeps what
passed of each piece: the next run goes on from there.
"""

import argparse
import datetime
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from gpu_pieces import PROGRAMS, PYTHON_PIECE, pieces, table_rows
from kernel_code import KernelCode
from kernel_sources import ROOT, hashes

RECORD = ROOT / "docs" / "lab" / "results" / "verification-h200.json"
COMMAND_SECONDS = 480
SUMMARY = re.compile(r"^(\d+) checks, (\d+) failures$", re.MULTILINE)
# A row of one variant has none of some cases; a sanitizer then complains that it saw no launch.
NO_CASE = re.compile(r"^0 checks, 0 failures$", re.MULTILINE)
# Folders of machines, in tracebacks and where tests were built: the record says nothing of them.
PLACES = re.compile(rf"{re.escape(str(ROOT))}/|/[\w./-]*/site-packages/|/[\w./-]+?/(?=tests/cpp/)")
PYTEST_SUMMARY = re.compile(r"^(?:(\d+) failed, )?(\d+) passed", re.MULTILINE)
# GoogleTest ends with how many tests ran, passed and were skipped, a line each.
GTEST_RAN = re.compile(r"^\[=+\] (\d+) tests? from \d+ test suites? ran\.", re.MULTILINE)
GTEST_PASSED = re.compile(r"^\[  PASSED  \] (\d+) tests?\.", re.MULTILINE)
GTEST_SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?", re.MULTILINE)
NO_CODE = KernelCode({})
ROW_NUMBERS = re.compile(r"(--rows) \d+ \d+")
# Which piece needs another's digests.
AFTER = {"kernels with random delays, bit for bit": "kernels against float64, every branch"}


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


gpus_in_turn: Iterator[str] = iter(())  # a command takes the next
running_commands: dict[str, float] = {}  # and when each began
passed_commands: dict[str, set[str]] = {}  # of pieces not yet ended, as checked() has them
keep_what_passed: list[Callable[[], None]] = []  # what a run that is ended early does last


def say_what_runs(*_) -> None:
    now = time.monotonic()
    for command, start in sorted(running_commands.items(), key=lambda one: one[1]):
        print(f"{now - start:5.0f} s  not ended: {command}")
    sys.stdout.flush()
    for keep in keep_what_passed:
        keep()
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
    if gpu := next(gpus_in_turn, None):
        environment["CUDA_VISIBLE_DEVICES"] = gpu
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
    """The command; the last lines, and before them those that name a failure further up, with what
    GoogleTest and pytest say of it."""
    lines = [line.rstrip() for line in PLACES.sub("", output).splitlines() if line.strip()]
    told = set()
    for number, line in enumerate(lines[:-20]):
        if "FAIL" in line or line.startswith("E  "):
            told.add(number)
        elif line.endswith(": Failure"):
            told.update(range(number, number + 6))
    named = [lines[number] for number in sorted(told)][:60]
    return ["$ " + words_of(command), *named, *lines[-20:]]


def stale_module(build: Path) -> str | None:
    """A file of the built Python package that is not as its source: tests would run old code."""
    package = build / "python" / "fa3"
    for source in sorted((ROOT / "python" / "fa3").rglob("*.py")):
        built = package / source.relative_to(ROOT / "python" / "fa3")
        if not built.is_file() or built.read_bytes() != source.read_bytes():
            return str(built)
    return None


def words_of(command: list) -> str:
    words = [Path(word).name if word.startswith("/") else word for word in command]
    return PLACES.sub("", " ".join(words))


def checked(command: list, codes: KernelCode, sources: str = "") -> str | None:
    """What a command checks: its words and the hash of its rows' machine code, else of the piece's
    sources; None where neither is known. The hash stands for the rows' numbers, which change when a
    table gets another."""
    words = ROW_NUMBERS.sub(r"\1", words_of(command).partition(" --digests ")[0])
    code = codes.of_command(command) or sources
    return f"{words}: {code}" if code else None


def all_checked(commands: list, codes: KernelCode, sources: str = "") -> set[str]:
    return {one for command in commands if (one := checked(command, codes, sources))}


def has_passed(output: str, status: int) -> bool:
    """Whether a command made checks, none failed, and its exit status agrees."""
    checks, bad = counts(output)
    return not bad and (status == 0 if checks else NO_CASE.search(output) is not None)


def run_piece(
    name: str,
    commands: list,
    build: Path,
    pool: ThreadPoolExecutor,
    codes: KernelCode = NO_CODE,
    known: Collection[str] = (),
    sources: str = "",
) -> dict:
    """Runs one piece; 'passed' also needs every summary line, so that a crash is a failure.

    'seconds' adds up those of its commands. `known` has what was checked before, as checked() says
    it with the hash of the piece's `sources`; 'code' has it of the commands that passed now and
    those carried over, as does passed_commands until the piece ends."""
    stale = stale_module(build) if name == PYTHON_PIECE else None
    if not commands or stale:
        why = f"{stale} is not as its source: build all" if stale else "its program is not built"
        skipped = {"name": name, "passed": False, "skipped": why}
        return {**skipped, "code": [*known]} if known else skipped
    carried = [command for command in commands if checked(command, codes, sources) in known]
    commands = [command for command in commands if command not in carried]
    if commands and shutil.which(commands[0][0]) is None:
        missing = f"{commands[0][0]} is not on this machine"
        return {"name": name, "passed": False, "skipped": missing, "code": [*known]}
    passed = passed_commands[name] = all_checked(carried, codes, sources)

    def run(command):
        result = run_command(command, build)
        if has_passed(*result[:2]):
            passed.update(all_checked([command], codes, sources))
        else:  # at once: the piece may not end
            tail = (f"    {line}" for line in end_of(command, result[0]))
            print(f"failed: {words_of(command)}", *tail, sep="\n", flush=True)
        return result

    ended = list(pool.map(run, commands))
    found = [counts(output) for output, _, _ in ended]
    failures = sum(failed for _, failed in found)
    failed = [i for i, (output, status, _) in enumerate(ended) if not has_passed(output, status)]
    if ended and not any(checks for checks, _ in found):
        failed = list(range(len(ended)))
    if not failed:  # the record has the sources' hash once
        passed = {one for one in passed if not (sources and one.endswith(sources))}
    # What is shown of several commands: the ends of those that failed, or else of the last.
    shown = failed or range(len(ended))[-1:]
    return {
        "name": name,
        "passed": not failed,
        "checks": sum(checks for checks, _ in found),
        "failures": failures,
        "seconds": round(sum(seconds for _, _, seconds in ended), 1),
        "output": [line for i in shown for line in end_of(commands[i], ended[i][0])],
        **({"carried": len(carried)} if carried else {}),
        **({"code": sorted(passed)} if passed else {}),
    }


def gpus() -> list[dict]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    lines = subprocess.check_output(query, text=True).splitlines()
    names = "gpu", "driver", "compute_capability"
    return [dict(zip(names, map(str.strip, line.split(",")), strict=True)) for line in lines]


def take_in_turn(numbers: Iterable[int]) -> None:
    """By the next commands; those of CUDA_VISIBLE_DEVICES, if it names some."""
    global gpus_in_turn
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus_in_turn = itertools.cycle(named.split(",") if named else map(str, numbers))


def load_record(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def record_problem(
    path: Path = RECORD, root: Path = ROOT, only: Sequence[str] = ("",)
) -> str | None:
    """Why the record, or its pieces with one of `only` in their names, does not vouch for the
    sources; or None."""
    record = load_record(path)
    if not record:
        return f"there is no verification record ({path.name}): run make gpu-verify on a Hopper GPU"
    seen = {piece["name"]: piece for piece in record["pieces"]}
    stale, failed = [], []
    for name, digest in hashes(pieces(root / "build"), root).items():
        if not any(text in name for text in only):
            continue
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


def verify(build: Path, path: Path, only: Sequence[str] = ("",), gpu_oracle: bool = False) -> bool:
    """Runs what the record lacks, writing it after every piece. True if all passed.

    With `only`, just the pieces with one of its texts in their names; of others the record is
    kept, but for those that there are no longer."""
    every, running = pieces(build, gpu_oracle), {}
    digests, codes = hashes(every), KernelCode.load(build)
    before = [piece for piece in load_record(path).get("pieces", []) if piece["name"] in every]
    known = {piece["name"]: piece.get("code", ()) for piece in before}
    todo = {
        name: commands for name, commands in every.items() if any(text in name for text in only)
    }
    kept = [piece for piece in before if piece["name"] not in todo]
    done = {
        piece["name"]: piece
        for piece in before
        if piece["passed"] and piece["source_hash"] == digests.get(piece["name"])
    }
    record = {"pieces": kept}
    of_machine = gpus()
    take_in_turn(range(len(of_machine)))
    seen_here = {
        **of_machine[0],
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": os.environ.get("FA3_COMMIT", ""),
    }
    path.parent.mkdir(parents=True, exist_ok=True)

    def result_of(name):
        if name in done:
            return done[name]
        if AFTER.get(name) in running:
            running[AFTER[name]].result()
        result = run_piece(
            name, todo[name], build, command_pool, codes, known.get(name, ()), digests[name]
        )
        return {**result, **seen_here, "source_hash": digests[name]}

    def keep_parts():
        """The commands that passed of pieces that did not end are carried over next time."""
        ended = {one["name"] for one in record["pieces"]}
        parts = [
            {"name": name, "passed": False, "skipped": "it did not end", "code": sorted(passed)}
            for name, passed in passed_commands.items()
            if name not in ended
        ]
        named = ended | {one["name"] for one in parts}
        parts += [one for one in before if one["name"] not in named]
        path.write_text(json.dumps({"pieces": record["pieces"] + parts}, indent=1) + "\n")

    keep_what_passed[:] = [keep_parts]
    with ThreadPoolExecutor(os.cpu_count()) as command_pool, ThreadPoolExecutor(len(todo)) as pool:
        for name in todo:
            running[name] = pool.submit(result_of, name)
        for ended in as_completed(running.values()):
            result = ended.result()
            record["pieces"] = kept + [one.result() for one in running.values() if one.done()]
            path.write_text(json.dumps(record, indent=1) + "\n")
            verdict = "ok" if result["passed"] else result.get("skipped", "FAILED")
            carried = f", {result['carried']} commands carried over" if "carried" in result else ""
            said = f"{result.get('checks', 0)} checks{carried}"
            print(f"{verdict:<8} {result['name']}: {said}", flush=True)
            if not result["passed"]:
                print("\n".join("    " + line for line in result.get("output", [])[-60:]))
    passed = sum(one.result()["passed"] for one in running.values())
    print(f"{passed} pieces passed, {len(todo) - passed} did not")
    return passed == len(todo)


def vouch(record: dict, every: dict, digests: dict, codes: KernelCode) -> list[str]:
    """Notes the machine code of pieces that passed for these sources; and renews pieces that passed
    for others, if each of their checks ran on this very code. Returns the names of these."""
    renewed = []
    for piece in record.get("pieces", []):
        name = piece["name"]
        if not piece["passed"] or name not in every:
            continue
        code = [checked(command, codes) for command in every[name]]
        if piece["source_hash"] != digests[name]:
            if not code or not {*code} <= {*piece.get("code", ())}:
                continue
            piece["source_hash"] = digests[name]
            renewed.append(name)
        piece.update({"code": sorted({*code} - {None})} if any(code) else {})
    return renewed


def has_all_kernels(build: Path) -> bool:
    """Whether a build has every kernel, also those that are compiled again for checks."""
    cache = build / "CMakeCache.txt"
    values = dict(re.findall(r"^(FA3_\w*KERNELS):\w+=(.*)$", cache.read_text(), re.MULTILINE))
    return values == {"FA3_KERNELS": "ON", "FA3_CHECK_KERNELS": "ON"}


def note_code(build: Path, path: Path) -> None:
    """Writes the machine code's hashes beside the programs, and into what the record says of them:
    vouch(). A build of some kernels vouches for nothing, and the record stays."""
    every = pieces(build)
    codes = KernelCode.of_build(
        build, {name: table_rows(str(build / "bin" / name)) for name in PROGRAMS}
    )
    codes.save(build)
    print(f"{sum(map(len, codes.programs.values()))} rows in {len(codes.programs)} programs")
    if not has_all_kernels(build):
        print("the record stays as it is: this build does not have all kernels")
        return
    record = load_record(path)
    renewed = vouch(record, every, hashes(every), codes)
    if record:
        path.write_text(json.dumps(record, indent=1) + "\n")
    for name in renewed:
        print(f"the same machine code as when it passed: {name}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare the record and sources")
    parser.add_argument("--code", action="store_true", help="only write build/kernel_code.json")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="pieces with one in their names"
    )
    parser.add_argument(
        "--gpu-oracle", action="store_true", help="the forward's float64 on the GPU, not the host"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--record", type=Path, default=RECORD, help="where the record is kept")
    arguments = parser.parse_args()
    if arguments.check:
        problem = record_problem(arguments.record, only=arguments.only)
        print(problem or "the verification record matches the sources")
        return 1 if problem else 0
    if arguments.code:
        note_code(arguments.build.resolve(), arguments.record)
        return 0
    signal.signal(signal.SIGTERM, say_what_runs)
    passed = verify(
        arguments.build.resolve(), arguments.record, arguments.only, arguments.gpu_oracle
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

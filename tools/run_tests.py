# SPDX-License-Identifier: Apache-2.0
"""Runs everything that can be tested on this machine and ends with a summary.

    python3 tools/run_tests.py BUILD_DIR [--python]

Stages: the Python tests (pytest, in the interpreter that runs this file; --python: these alone),
beside them the C++ tests (ctest), and on a machine with a Hopper GPU the GPU tests.
FA3_TEST_QUICK=1 runs fewer cases. A stage that cannot run here is listed as skipped, with its
reason. Exits with 1 if anything failed, or if a stage ran no test.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Outcome:
    """What one stage did: counts, and how often each reason for skipping was given."""

    stage: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: Counter = field(default_factory=Counter)


def read_junit(stage: str, path: Path) -> Outcome:
    """Counts the cases of a JUnit file, the format that ctest and pytest share."""
    outcome = Outcome(stage)
    if not path.exists():
        outcome.failed = 1
        outcome.reasons["the runner wrote no report"] += 1
        return outcome
    for case in ElementTree.parse(path).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
        elif skipped is not None or case.get("status") == "notrun":
            outcome.skipped += 1
            said = skip_sentence(case.findtext("system-out") or "")
            message = skipped.get("message") if skipped is not None else None
            outcome.reasons[said or message or "no reason given"] += 1
        else:
            outcome.passed += 1
    if outcome.passed + outcome.failed == 0:
        outcome.failed = 1
        outcome.reasons["the stage ran no test"] += 1
    return outcome


def skip_sentence(output: str) -> str | None:
    """Why a case was skipped: after GoogleTest's "Skipped", or a line that says "skipped: "."""
    _, skipped, after = output.partition(": Skipped\n")
    if skipped and not after.startswith("["):
        return after.partition("\n")[0].strip()
    return next((line for line in output.splitlines() if line.startswith("skipped: ")), None)


# Lines of ctest about tests that did not fail.
UNEVENTFUL = re.compile(r" +(Start +\d+:|\d+/\d+ Test +#\d+:.*(Passed|Skipped) )")


def run_cpp(build: Path) -> Outcome:
    """Prints a line for every tenth of the tests, and all about those that fail."""
    report = build / "ctest.xml"
    report.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error"]
    command += ["-j", str(os.cpu_count() or 1), "--output-junit", str(report)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ctest:
        for line in ctest.stdout:
            done = re.match(r" *(\d+)/(\d+) Test", line)
            if done and int(done[1]) * 10 // int(done[2]) > (int(done[1]) - 1) * 10 // int(done[2]):
                print(f"\nC++: {done[1]} of {done[2]} tests", flush=True)
            if not UNEVENTFUL.match(line):
                print(line, end="", flush=True)
    return read_junit("C++", report)


def run_python(build: Path) -> Outcome:
    report = build / "pytest.xml"
    report.unlink(missing_ok=True)
    paths = [str(build / "python"), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment["FA3_LIBRARY"] = str(build / "lib" / "libfa3.so")
    environment.setdefault("OMP_NUM_THREADS", "1")  # torch's; the cores run the C++ tests too
    command = [sys.executable, "-m", "pytest", "-q", "-rs", str(ROOT / "tests" / "python")]
    command += ["-n", str(min(os.cpu_count() or 1, 4)), "--dist", "loadfile", "--durations=15"]
    subprocess.run([*command, f"--junitxml={report}"], check=False, env=environment, cwd=ROOT)
    outcome = read_junit("Python", report)
    if importlib.util.find_spec("torch") is None:
        outcome.reasons["note: torch is not here (make torch); its tests are left out"] += 1
    return outcome


def run_gpu(build: Path) -> Outcome:
    """The GPU checks, each piece of tools/gpu_verify.py counted by its own checks."""
    record = build / "gpu.json"
    record.unlink(missing_ok=True)
    command = [sys.executable, str(ROOT / "tools" / "gpu_verify.py"), "--build", str(build)]
    subprocess.run([*command, "--record", str(record)], check=False)
    outcome = Outcome("GPU")
    for piece in json.loads(record.read_text())["pieces"]:
        if "skipped" in piece:
            outcome.skipped += 1
            outcome.reasons[f"{piece['name']}: {piece['skipped']}"] += 1
            continue
        outcome.passed += piece["checks"] - piece["failures"]
        outcome.failed += piece["failures"] or (0 if piece["passed"] else 1)
    return outcome


def gpu_reason() -> str | None:
    """Why the GPU tests cannot run here, or None."""
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU on this machine (nvidia-smi is not there)"
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    if "9.0" not in found:
        return f"no Hopper GPU: compute capability 9.0 expected, found {', '.join(found) or 'none'}"
    return None


def print_summary(outcomes: list[Outcome]) -> None:
    tables = "quick; make test FULL=1 runs all" if "FA3_TEST_QUICK" in os.environ else "whole"
    print(f"\n==== fa3 tests (case tables: {tables}) ====")
    print(f"{'stage':<8} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for outcome in outcomes:
        print(f"{outcome.stage:<8} {outcome.passed:>7} {outcome.failed:>7} {outcome.skipped:>8}")
        for reason, count in outcome.reasons.most_common():
            print(f"         {count} x {reason}")
    total = Counter()
    for outcome in outcomes:
        total.update(passed=outcome.passed, failed=outcome.failed, skipped=outcome.skipped)
    print(f"total: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


def main() -> int:
    only_python = "--python" in sys.argv
    if len(sys.argv) != 2 + only_python:
        print(__doc__)
        return 2
    build = Path(sys.argv[1]).resolve()
    stages = (run_python,) if only_python else (run_python, run_cpp)
    with ThreadPoolExecutor() as pool:
        outcomes = list(pool.map(lambda stage: stage(build), stages))
    reason = "only the Python tests were asked for" if only_python else gpu_reason()
    if reason is None:
        outcomes.append(run_gpu(build))
    else:
        outcomes.append(Outcome("GPU", skipped=1, reasons=Counter({f"GPU tests: {reason}": 1})))
    print_summary(outcomes)
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Do the tests notice a broken CPU engine? Breaks it as tests/mutations.txt says, and looks.

    tools/mutation_check.py [WORD ...]    every mutation, or those with a WORD in their lines

Works on a copy in build/mutants. A mutation that no test notices ends the run with exit code 1,
after all others: a test is missing, or the code that was changed has no effect. By hand, since each
compiles the kernels again: about a minute on two cores.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
COPIED = "CMakeLists.txt benchmarks cmake examples include src tests/cpp tools".split()
TESTS = "build/bin/fa3_engine_tests"
LACKING = 77  # exit code where the machine has not these instructions


def mutations() -> list[tuple[str, str, str, str]]:
    """(what is wrong then, the file, the code as it is, the code as it becomes)"""
    blocks = (ROOT / "tests" / "mutations.txt").read_text().strip().split("\n\n")[1:]
    found = []
    for block in blocks:
        what, path, old, new = block.split("\n")
        found.append((what, path, old.removeprefix("- "), new.removeprefix("+").strip()))
    return found


def say(*words: object) -> None:
    print(*words, flush=True)


def copy_changed(source: str, place: str) -> None:
    """With today's time, so that what an interrupted run left broken is compiled again."""
    if not Path(place).exists() or Path(source).read_bytes() != Path(place).read_bytes():
        shutil.copyfile(source, place)
        shutil.copymode(source, place)


def copy_sources() -> None:
    for name in COPIED:
        place = WORK / name
        if (ROOT / name).is_file():
            copy_changed(ROOT / name, place)
        else:
            shutil.copytree(ROOT / name, place, copy_function=copy_changed, dirs_exist_ok=True)


def build() -> bool:
    command = ["cmake", "--build", "build", "--target", "fa3_engine_tests"]
    return subprocess.run(command, cwd=WORK, capture_output=True, check=False).returncode == 0


def first_failure() -> str | None:
    """The first test that fails, with this machine's instructions or those of bfloat16, or None."""
    for instructions in ({}, {"FA3_CPU_ISA": "avx512_bf16"}):
        environment = os.environ | {"FA3_TEST_ENGINE": "cpu", "FA3_TEST_QUICK": "1"} | instructions
        command = [TESTS, "--gtest_brief=1", "--gtest_fail_fast"]
        done = subprocess.run(
            command, cwd=WORK, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode in (0, LACKING):
            continue
        failed = [line for line in done.stdout.splitlines() if line.startswith("[  FAILED  ] ")]
        return failed[0].split()[3].rstrip(",") if failed else f"exit code {done.returncode}"
    return None


def try_mutation(what: str, path: str, old: str, new: str) -> bool:
    """Whether a test noticed."""
    original = (ROOT / path).read_text()
    if original.count(old) != 1:
        say(f"STALE     {what}: expected once in {path}, found {original.count(old)} times: {old}")
        return False
    (WORK / path).write_text(original.replace(old, new))
    started = time.time()
    try:
        if not build():
            say(f"STALE     {what}: {path} does not compile so")
            return False
        failed = first_failure()
    finally:
        (WORK / path).write_text(original)
    verdict = f"noticed   {what}: {failed}" if failed else f"SURVIVED  {what} ({path})"
    say(f"{verdict}  [{time.time() - started:.0f} s]")
    return failed is not None


def main() -> int:
    words = sys.argv[1:] or [""]
    wanted = [m for m in mutations() if any(word in " ".join(m) for word in words)]
    WORK.mkdir(parents=True, exist_ok=True)
    copy_sources()
    options = ["-DFA3_CUDA=OFF", "-DFA3_PYTHON=OFF", "-DFA3_KERNEL_OPTIMIZATION=-O1"]
    configure = ["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *options]
    subprocess.run(configure, cwd=WORK, check=True, capture_output=True)
    if not build() or first_failure() is not None:
        say("the tests fail without any mutation: expected a green tree")
        return 1
    noticed = [try_mutation(*mutation) for mutation in wanted]
    say(f"{sum(noticed)} of {len(noticed)} mutations were noticed")
    return 0 if all(noticed) else 1


if __name__ == "__main__":
    sys.exit(main())

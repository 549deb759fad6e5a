# SPDX-License-Identifier: Apache-2.0
"""Runs torch's and JAX's own tests of attention with fa3 in its place, as a seeded sample.

    git clone --depth 1 --branch v2.11.0 https://github.com/pytorch/pytorch
    python3 tools/peer_tests.py pytorch/test/test_transformers.py  # on a GPU; torch of that version
    git clone --depth 1 https://github.com/jax-ml/jax
    python3 tools/peer_tests.py jax/tests/nn_test.py
    python3 tools/peer_tests.py pytorch/test/test_transformers.py --device cpu --workers 2

peer_suites.py is the table of files. Each case runs with fa3; a case that fails runs once more, in
a fresh process, without. Exit status 1 if any fails only with fa3, if a process ended early, or if
no call reached fa3. A line for each class of tests says how many cases passed, failed only with
fa3, failed without it too, or were skipped, and how many of them reached fa3, with how many calls.
--lines FILE keeps a line of each case, and a later call with that file goes on from there. Needs
what the tests import: expecttest and hypothesis for torch's, absl-py and scipy for JAX's.
"""

import argparse
import collections
import contextlib
import importlib.util
import io
import itertools
import json
import random
import re
import sys
import tempfile
import unittest
from pathlib import Path

from case_lines import add_options, gather, read_lines, share_memory
from peer_suites import SUITES, Calls

FA3, OWN = "with fa3", "without"


def suite_of(options):
    return SUITES["/".join(options.file.resolve().parts[-2:])]


def load(options):
    """The file as a module, of an unchanged source."""
    suite_of(options).prepare(options.device)
    sys.argv[1:] = []  # the tests read their own options there
    sys.path.insert(0, str(options.file.resolve().parent))
    spec = importlib.util.spec_from_file_location(options.file.stem, options.file)
    tests = sys.modules[options.file.stem] = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(tests)
    return tests


def cases_in(tests):
    """ "Class.test" -> its unittest.TestCase, in the order of the file."""
    waiting, found = [unittest.defaultTestLoader.loadTestsFromModule(tests)], {}
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, unittest.TestSuite):
            waiting[:0] = list(each)
        else:
            found[each.id().removeprefix(f"{tests.__name__}.")] = each
    return found


def sample_of(names, options):
    """Draws as many attention tests of each class as were asked for."""
    suite, draw = suite_of(options), random.Random(options.seed)
    asked = [n for n in names if re.search(suite.asks, n) and re.search(options.tests, n)]
    drawn = []
    for _, of_class in itertools.groupby(asked, key=lambda name: name.split(".")[0]):
        of_class = [name for name in of_class if suite.why_left_out(name) is None]
        drawn += draw.sample(of_class, min(options.cases, len(of_class)))
    return drawn


def run_case(case):
    """(outcome, why)."""
    result = unittest.TestResult()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        unittest.TestSuite([case]).run(result)
    if broken := [*result.errors, *result.failures]:
        traced = broken[0][1]
        said = re.findall(r"^(?!Traceback|\s)\S.*$", traced, re.MULTILINE)
        where = re.findall(r'File "([^"]*)", line (\d+)', traced)[-1:]
        return "failed", f"{' '.join(said)[:400]} at {where}"
    if result.unexpectedSuccesses:
        return "failed", "passes, where the test expects that it fails"
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def work(options):
    """One process of several: its part of what the file of lines lacks, a JSON line a case."""
    before = read_lines(options.lines)
    done = {name for name, way, *_ in before if way == options.way}
    failed = {name for name, way, outcome, *_ in before if (way, outcome) == (FA3, "failed")}
    tests = load(options)
    cases, suite = cases_in(tests), suite_of(options)
    drawn = sample_of(cases, options) if options.way == FA3 else sorted(failed)
    if options.file.parts[-1] == "test_transformers.py":
        share_memory(options)
    with contextlib.ExitStack() as stack, options.lines.open("a", buffering=1) as lines:
        calls = Calls()
        if options.way == FA3:
            calls = stack.enter_context(suite.with_fa3(tests))
            for name, answer in suite.answers:
                setattr(tests, name, lambda *_, answer=answer, **__: answer)
        for name in (n for n in drawn[options.worker :: options.workers] if n not in done):
            calls.taken = calls.left = 0
            outcome, why = run_case(cases[name])
            print(
                json.dumps([name, options.way, outcome, why, calls.taken, calls.left]), file=lines
            )
            if "CUDA error" in why or "illegal memory access" in why:
                return 1  # nothing can be computed after it
    return 0


def report(options, lines, failed_workers):
    """Whether the run is good, and its lines for the reader."""
    own = {name: outcome for name, way, outcome, *_ in lines if way == OWN}
    classes = collections.defaultdict(list)
    for name, way, outcome, why, taken, left in lines:
        if way != FA3:
            continue
        if outcome == "failed":
            outcome = "failed only with fa3" if own.get(name) != "failed" else "failed without too"
        classes[name.split(".")[0]].append((name, outcome, why, taken, left))
    good = failed_workers == 0
    for of_class, cases in sorted(classes.items()):
        counts = collections.Counter(outcome for _, outcome, *_ in cases)
        reached = sum(taken > 0 for *_, taken, _ in cases)
        calls, left = (sum(case[place] for case in cases) for place in (3, 4))
        print(
            f"{of_class}: {len(cases)} cases, seed {options.seed}: {counts['passed']} passed, "
            f"{counts['failed only with fa3']} failed only with fa3, "
            f"{counts['failed without too']} failed without too, {counts['skipped']} skipped; "
            f"{reached} cases reached fa3, with {calls} calls, and {left} calls were left to others"
        )
        for name, outcome, why, taken, _ in cases:
            if outcome == "failed only with fa3":
                good = False
                print(f"  {name} ({taken} calls of fa3): {why}")
    for pattern, why in suite_of(options).left_out.items():
        print(f"left out: {pattern}: {why}")
    if failed_workers:
        print(f"{failed_workers} processes ended early")
    total = sum(case[3] for cases in classes.values() for case in cases)
    print(f"{total} calls reached fa3")
    return good and total > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help=f"a checkout's {', '.join(SUITES)}")
    parser.add_argument("--tests", default="", help="a pattern of their names, Class.test")
    parser.add_argument("--way", choices=(FA3, OWN), default=FA3, help="used inside")
    add_options(parser)
    options = parser.parse_args()
    if "/".join(options.file.resolve().parts[-2:]) not in SUITES or not options.file.is_file():
        parser.error(f"file: expected {' or '.join(SUITES)} of a checkout, got {options.file}")
    if options.worker is not None:
        return work(options)
    with tempfile.TemporaryDirectory() as scratch:
        options.lines = options.lines or Path(scratch) / "lines.jsonl"
        failed_workers = gather(__file__, options)
        if any(outcome == "failed" for _, _, outcome, *_ in read_lines(options.lines)):
            failed_workers += gather(__file__, options, "--way", OWN)
        return 0 if report(options, read_lines(options.lines), failed_workers) else 1


if __name__ == "__main__":
    sys.exit(main())

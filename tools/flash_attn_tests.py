# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of FlashAttention-2, -3 and -4 through fa3's names, as a seeded sample.

    git clone https://github.com/Dao-AILab/flash-attention
    python3 tools/flash_attn_tests.py flash-attention/hopper/test_flash_attn.py  # on a Hopper GPU
    python3 tools/flash_attn_tests.py flash-attention/tests/test_flash_attn.py --seconds 10
    python3 tools/flash_attn_tests.py flash-attention/hopper/test_flash_attn.py \
        --device cpu --longest 300 --having has_qv
    FA3_ENGINE=ampere python3 tools/flash_attn_tests.py flash-attention/tests/test_flash_attn.py
    python3 tools/flash_attn_tests.py flash-attention/tests/cute/test_score_mod.py --cases 200

flash_attn_names/suites.py is the table of files. Cases are those of the parametrized tests, but for
what the tests skip and what fa3 has not; of the latter a few are tried, which must be refused.
Several processes share the GPU, because most of a case's time goes into Python. A line for each
test says how many cases passed, failed, and were refused (fa3 says Unsupported), and why. --lines
FILE keeps a line of each case, and a later call with that file goes on from there. Exit status 1 if
any failed or was refused. Needs einops, which the tests import.
"""

import argparse
import collections
import contextlib
import functools
import io
import itertools
import json
import random
import re
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import NamedTuple

from case_lines import add_options, gather, read_lines, share_memory
from flash_attn_names.suites import SUITES, module, names_of_fa4

TRIED = 3  # cases of what fa3 has not


class Skipped(Exception):
    """A test says that a combination of its parameters is none."""


def stand_ins():
    """The little that the tests use of other modules, so that neither pytest nor flash_attn needs
    to be installed."""

    def parametrize(names, values):
        def mark(test):
            keys = names.split(",") if isinstance(names, str) else names
            axis = [
                dict(zip(keys, v, strict=True)) if len(keys) > 1 else {keys[0]: v} for v in values
            ]
            test.axes = [*getattr(test, "axes", []), axis]
            return test

        return mark

    def skipif(condition, reason=""):
        def mark(test):
            test.skips = reason if condition else getattr(test, "skips", None)
            return test

        return mark

    def skip(reason=""):
        raise Skipped(reason)

    def xfail(reason=""):
        """Ignores failures expected of FlashAttention's kernels: fa3 runs the case."""

    def nothing(*_, **__):
        raise NotImplementedError("a check of operators, which is off")

    checks = ("safe_fake_check", "safe_schema_check", "safe_aot_autograd_check")

    def fixture(*_, **__):
        return lambda function: function

    mark = types.SimpleNamespace(parametrize=parametrize, skipif=skipif)
    return {
        "pytest": module("pytest", mark=mark, skip=skip, xfail=xfail, fixture=fixture),
        "flash_attn.layers": module("flash_attn.layers"),
        "flash_attn.layers.rotary": module("flash_attn.layers.rotary", apply_rotary_emb=rotate),
        "torch.testing._internal.optests.generate_tests": module(
            "generate_tests", **dict.fromkeys(checks, nothing)
        ),
    }


def rotate(x, cos, sin, seqlen_offsets=0, interleaved=False):
    """The rotary embedding that the tests compare with; row i of sequence b is at offset[b] + i."""
    import torch

    rows, width = x.shape[1], cos.shape[-1]
    offsets = torch.as_tensor(seqlen_offsets, device=x.device).reshape(-1, 1)
    position = offsets + torch.arange(rows, device=x.device)
    cos, sin = (table[position].unsqueeze(2).float() for table in (cos, sin))
    turned = x[..., : 2 * width].float()
    pairs = turned.unflatten(-1, (width, 2) if interleaved else (2, width))
    axis = -1 if interleaved else -2
    u, v = pairs.unbind(axis)
    both = torch.stack((u * cos - v * sin, v * cos + u * sin), axis).flatten(-2)
    return torch.cat((both.to(x.dtype), x[..., 2 * width :]), -1)


def suite_of(options):
    return SUITES["/".join(options.file.resolve().parts[-2:])]


def why_left_out(test, name, suite):
    """None, or why a test is not run. Tests of -2 and -3 that skip themselves run all the same, and
    those of -4 that ask for what fa3 has on this GPU."""
    takes_skips = suite.modules is names_of_fa4 and name not in suite.asked
    return suite.left_out.get(name, getattr(test, "skips", None) if takes_skips else None)


def load(options):
    """The tests of the file by name; nothing but the device is changed in it."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(options.file.parent))
    sys.modules.update(stand_ins() | suite_of(options).modules())
    source = options.file.read_text()
    if options.device != "cuda":
        torch.cuda.get_device_capability = lambda *_: (9, 0)  # the FP8 cases too
        source = source.replace('"cuda"', f'"{options.device}"')
    tests = module("fa3_tests")
    exec(compile(source, str(options.file), "exec"), tests.__dict__)
    found = {name: test for name, test in vars(tests).items() if name.startswith("test_")}
    if unknown := {*(options.tests or ())} - {*found}:
        sys.exit(f"--tests: expected some of {', '.join(found)}, got {', '.join(unknown)}")
    return {name: found[name] for name in options.tests or found}


def cases_of(test, longest):
    """Every combination of the test's parameters, if its lengths are of interest here."""
    for axes in itertools.product(*getattr(test, "axes", ())):
        case = functools.reduce(lambda a, b: a | b, axes, {})
        if longest_of([x for key, x in case.items() if key.startswith("seqlen")]) <= longest:
            yield case


def longest_of(lengths):
    """The largest of numbers, and of lists of them."""
    if isinstance(lengths, (list, tuple)):
        return max(map(longest_of, lengths), default=0)
    return lengths


class Sample(NamedTuple):
    of: int  # cases
    lacking: dict[str, int]  # parameter -> cases that have it, which fa3 has not
    drawn: list[dict]
    tried: list[dict]  # some of those that fa3 has not


def sample_of(test, name, options):
    suite = suite_of(options)
    if why_left_out(test, name, suite):
        return Sample(0, {}, [], [])
    served, lacking = [], {parameter: [] for parameter in suite.lacks}
    for case in cases_of(test, options.longest):
        wanted = options.having is None or case.get(options.having)
        if wanted and not suite.skips(name, case):
            next((lacking[of] for of in lacking if has(case, of, suite)), served).append(case)
    draw = random.Random(options.seed)
    drawn = draw.sample(served, min(options.cases, len(served)))
    tried = [c for cases in lacking.values() for c in draw.sample(cases, min(TRIED, len(cases)))]
    counts = {parameter: len(cases) for parameter, cases in lacking.items() if cases}
    return Sample(len(served), counts, drawn, tried)


def run_case(test, case):
    """(outcome, why)."""
    import torch

    import fa3

    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            test(**case)
        return "passed", ""
    except Skipped as reason:
        return "skipped", str(reason)
    except fa3.Unsupported as reason:
        return "refused", str(reason)
    except torch.OutOfMemoryError:
        return "failed", "out of memory, of which fewer --workers have more each"
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:300]
        printed = "; ".join(output.getvalue().splitlines()[-8:])
        where = f"{Path(line.filename).name}:{line.lineno} {line.line}"
        return "failed", f"{type(error).__name__} {said} at {where} | {printed}"


def work(options):
    """One process of several: its part of what the file of lines lacks, a JSON line a case."""
    share_memory(options)
    done = {key_of(name, case) for name, _, _, case in read_lines(options.lines)}
    lines = options.lines.open("a", buffering=1)  # whole lines, of all processes
    for name, test in load(options).items():
        ends = time.monotonic() + options.seconds
        sample = sample_of(test, name, options)
        mine = [*sample.tried, *sample.drawn][options.worker :: options.workers]
        for case in (case for case in mine if key_of(name, text_of(case)) not in done):
            if time.monotonic() > ends:
                break
            outcome, why = run_case(test, case)
            print(json.dumps([name, outcome, why, text_of(case)]), file=lines)
            if "CUDA error" in why:
                return  # nothing can be computed after it


def text_of(case):
    """Functions without their addresses, which each process has others of."""
    return {key: re.sub(" at 0x[0-9a-f]+", "", str(value)) for key, value in case.items()}


def key_of(name, case):
    return json.dumps([name, case])


def report(options, lines, failed_workers):
    suite = suite_of(options)
    good = failed_workers == 0
    for name, test in load(options).items():
        if why := why_left_out(test, name, suite):
            print(f"{name}: left out: {why}")
            continue
        sample = sample_of(test, name, options)
        lacking = [line for line in lines if line[0] == name and lacks(line[3], suite)]
        mine = [line for line in lines if line[0] == name and not lacks(line[3], suite)]
        counts = collections.Counter(line[1] for line in mine)
        print(
            f"{name}: {len(mine)} of a sample of {len(sample.drawn)} of {sample.of} cases, seed "
            f"{options.seed}: {counts['passed']} passed, {counts['failed']} failed, "
            f"{counts['refused']} refused, {counts['skipped']} skipped"
        )
        for parameter, count in sample.lacking.items():
            print(f"  {count} cases more with {parameter}: {suite.lacks[parameter][0]}; ", end="")
            print(f"refused: {sum(line[1] == 'refused' for line in lacking)} of {len(lacking)}")
        refusals = collections.Counter(line[2] for line in mine if line[1] == "refused")
        for why, count in refusals.most_common():
            print(f"  {count} refused: {why}")
        for _, _, why, case in [line for line in mine if line[1] == "failed"][:4]:
            print(f"  failed: {case}: {why}"[:600])
        good = good and counts["failed"] + counts["refused"] == 0
        good = good and len(mine) == len(sample.drawn)
        good = good and all(line[1] == "refused" for line in lacking)
    if failed_workers:
        print(f"{failed_workers} processes ended early")
    return good


def lacks(case, suite):
    """Whether a case, its values as text, has what fa3 has not."""
    return any(has(case, parameter, suite) for parameter in suite.lacks)


def has(case, parameter, suite):
    """Whether a case, or its values as text, has a parameter that fa3 refuses."""
    return str(case.get(parameter)) == "True" and suite.lacks[parameter][1](case)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help=f"a checkout's {', '.join(SUITES)}")
    parser.add_argument("--tests", nargs="+", help="of the file, by name; without it all")
    parser.add_argument("--longest", type=int, default=1 << 30, help="sequences up to this length")
    parser.add_argument("--having", help="a parameter: cases in which it is true")
    parser.add_argument("--seconds", type=float, default=1e9, help="of each test, at most")
    add_options(parser)
    options = parser.parse_args()
    if "/".join(options.file.resolve().parts[-2:]) not in SUITES or not options.file.is_file():
        parser.error(f"file: expected {' or '.join(SUITES)} of a checkout, got {options.file}")
    if options.worker is not None:
        return work(options)
    with tempfile.TemporaryDirectory() as scratch:
        options.lines = options.lines or Path(scratch) / "lines.jsonl"
        failed_workers = gather(__file__, options)
        return 0 if report(options, read_lines(options.lines), failed_workers) else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Runs FlashAttention-3's own tests through fa3's drop-in names, as a seeded sample.

    git clone https://github.com/Dao-AILab/flash-attention
    python3 tools/flash_attn_tests.py flash-attention/hopper            # on a Hopper GPU
    python3 tools/flash_attn_tests.py flash-attention/hopper --device cpu --longest 300

Cases are those of the parametrized tests, without qv and without those that the tests skip.
Several processes share the GPU, because most of a case's time goes into Python. A line for each
test says how many cases passed, failed, and were refused (fa3 says Unsupported), and why;
--failures FILE gets the failing ones. Exit status 1 if any failed or was refused. Needs einops,
which the tests import.
"""

import argparse
import collections
import contextlib
import functools
import io
import itertools
import json
import os
import random
import subprocess
import sys
import time
import traceback
import types
from pathlib import Path

TESTS = ("test_flash_attn_output", "test_flash_attn_varlen_output", "test_flash_attn_kvcache")
FILE = "test_flash_attn.py"
OUT_OF_MEMORY = "out of memory"  # of all processes together: such a case is tried again later
MOST_ATTEMPTS = 12
MOST_MEMORY_KEPT = 4 << 30  # bytes, of a process between cases


class Skipped(Exception):
    """A test says that a combination of its parameters is none."""


def stand_ins():
    """Modules that the tests import: ours under flash_attn's name, and the little that they use of
    others, so that neither pytest nor flash_attn needs to be installed."""
    import fa3.compat.flash_attn_interface as ours

    def parametrize(names, values):
        def mark(test):
            keys = names.split(",") if isinstance(names, str) else names
            axis = [
                dict(zip(keys, v, strict=True)) if len(keys) > 1 else {keys[0]: v} for v in values
            ]
            test.axes = [*getattr(test, "axes", []), axis]
            return test

        return mark

    def skip(reason=""):
        raise Skipped(reason)

    def nothing(*_, **__):
        raise NotImplementedError("a check of operators, which is off")

    checks = ("safe_fake_check", "safe_schema_check", "safe_aot_autograd_check")
    mark = types.SimpleNamespace(parametrize=parametrize)
    return {
        "flash_attn_interface": ours,
        "pytest": module("pytest", mark=mark, skip=skip),
        "flash_attn": module("flash_attn"),
        "flash_attn.layers": module("flash_attn.layers"),
        "flash_attn.layers.rotary": module("flash_attn.layers.rotary", apply_rotary_emb=rotate),
        "torch.testing._internal.optests.generate_tests": module(
            "generate_tests", **dict.fromkeys(checks, nothing)
        ),
    }


def module(name, **names):
    made = types.ModuleType(name)
    made.__dict__.update(names)
    return made


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


def load(folder, device):
    """The tests' module, of which nothing but the device is changed."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(folder))
    sys.modules.update(stand_ins())
    source = (folder / FILE).read_text()
    if device != "cuda":
        torch.cuda.get_device_capability = lambda *_: (9, 0)  # the FP8 cases too
        source = source.replace('device = "cuda"', f'device = "{device}"')
    tests = module("fa3_tests")
    exec(compile(source, str(folder / FILE), "exec"), tests.__dict__)
    return tests


def cases_of(test, longest):
    """Every combination of the test's parameters that is of interest here."""
    for axes in itertools.product(*test.axes):
        case = functools.reduce(lambda a, b: a | b, axes)
        if not case.get("has_qv") and max(case["seqlen_q"], case["seqlen_k"]) <= longest:
            yield case


def is_skipped(case, name):
    """What the tests skip at once."""
    if name != "test_flash_attn_kvcache":
        return False
    page, new = case["page_size"], case["new_kv"]
    return (
        (page is not None and case["seqlen_k"] % page != 0)
        or (case["seqlen_q"] > case["seqlen_k"] and new)
        or (not new and case["rotary_fraction"] > 0)
    )


def sample_of(test, name, options):
    cases = [c for c in cases_of(test, options.longest) if not is_skipped(c, name)]
    count = min(options.cases, len(cases))
    return random.Random(options.seed).sample(cases, count), len(cases)


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
        return "failed", OUT_OF_MEMORY
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:300]
        printed = "; ".join(output.getvalue().splitlines()[-8:])
        where = f"{Path(line.filename).name}:{line.lineno} {line.line}"
        return "failed", f"{type(error).__name__} {said} at {where} | {printed}"


def work(options):
    """One process of several: its part of each sample, a JSON line a case."""
    import torch

    tests = load(options.folder, options.device)
    for name in options.tests:
        test = getattr(tests, name)
        ends = time.monotonic() + options.seconds
        sample, _ = sample_of(test, name, options)
        todo = [(case, 1) for case in sample[options.worker :: options.workers]]
        while todo and time.monotonic() < ends:
            case, attempt = todo.pop(0)
            outcome, why = run_case(test, case)
            if options.device == "cuda" and torch.cuda.memory_reserved() > MOST_MEMORY_KEPT:
                torch.cuda.empty_cache()
            if why == OUT_OF_MEMORY and attempt < MOST_ATTEMPTS:
                if attempt > 1:
                    time.sleep(options.worker % 4)
                todo.append((case, attempt + 1))
                continue
            text = {key: str(value) for key, value in case.items()}
            print(json.dumps([name, outcome, why, text]), flush=True)
            if "CUDA error" in why:
                return  # nothing can be computed after it


def gather(options):
    """Starts the processes; returns their lines."""
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    environment = os.environ | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    workers = [
        subprocess.Popen(
            [*command, "--worker", str(w)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for w in range(options.workers)
    ]
    lines = []
    for worker in workers:
        lines += [json.loads(line) for line in worker.communicate()[0].splitlines()]
    return lines, sum(worker.returncode != 0 for worker in workers)


def report(options, lines, failed_workers):
    tests = load(options.folder, options.device)
    good = failed_workers == 0
    for name in options.tests:
        mine = [line for line in lines if line[0] == name]
        counts = collections.Counter(line[1] for line in mine)
        sample, cases = sample_of(getattr(tests, name), name, options)
        print(
            f"{name}: {len(mine)} of a sample of {len(sample)} of {cases} cases, seed "
            f"{options.seed}: {counts['passed']} passed, {counts['failed']} failed, "
            f"{counts['refused']} refused, {counts['skipped']} skipped"
        )
        refusals = collections.Counter(line[2] for line in mine if line[1] == "refused")
        for why, count in refusals.most_common():
            print(f"  {count} refused: {why}")
        for _, _, why, case in [line for line in mine if line[1] == "failed"][:4]:
            print(f"  failed: {case}: {why}"[:600])
        good = good and counts["failed"] + counts["refused"] == 0 and len(mine) == len(sample)
    if failed_workers:
        print(f"{failed_workers} processes ended early")
    if options.failures:
        with options.failures.open("w") as file:
            for line in lines:
                if line[1] in ("failed", "refused"):
                    print(json.dumps(line), file=file)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="flash-attention/hopper, with test_flash_attn.py")
    parser.add_argument("--tests", nargs="+", choices=TESTS, default=TESTS)
    parser.add_argument("--cases", type=int, default=2000, help="of each test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--longest", type=int, default=1 << 30, help="sequences up to this length")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1e9, help="of each test, at most")
    parser.add_argument("--failures", type=Path, help="JSON lines of what failed or was refused")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        return work(options)
    return 0 if report(options, *gather(options)) else 1


if __name__ == "__main__":
    sys.exit(main())

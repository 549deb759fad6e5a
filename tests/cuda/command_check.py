# SPDX-License-Identifier: Apache-2.0
"""The fa3 command on device memory, on a machine with a GPU and NumPy: run, verify, bench, doctor
and demo with --engine hopper, and what it refuses.

    python3 tests/cuda/command_check.py build/bin/fa3
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
OK, BAD_INPUT, UNSUPPORTED = 0, 2, 3


def fa3(*arguments, code=OK):
    """Runs the command, expects its exit code, returns what it printed."""
    command = [sys.argv[1], *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{arguments[0]}: code {done.returncode}: {said[-400:]}"
    return said


class Files:
    """Q, K, V of one call as fp16 files, and where results go."""

    def __init__(self, folder, layout):
        self.folder, self.layout = Path(folder), layout
        draw = np.random.default_rng(5)
        for name, heads, seqlen in (("q", 6, 301), ("k", 2, 417), ("v", 2, 417)):
            shape = (2, seqlen, heads, 64) if layout == "bshd" else (2, heads, seqlen, 64)
            np.save(self.path(name), draw.standard_normal(shape).astype(np.float16))

    def path(self, name):
        return self.folder / f"{name}.npy"

    def run(self, engine, *options, code=OK):
        files = [part for name in "qkv" for part in (f"--{name}", self.path(name))]
        results = ["--out", self.path(f"o_{engine}"), "--lse", self.path(f"lse_{engine}")]
        layout = ["--layout", self.layout]
        return fa3("run", *files, *results, *layout, "--engine", engine, *options, code=code)

    def error(self, name):
        got, want = (
            np.load(self.path(f"{name}_{engine}")).astype(np.float64)
            for engine in ("hopper", "reference")
        )
        return np.linalg.norm(got - want) / np.linalg.norm(want)


def run_agrees_with_the_reference_in_both_layouts():
    for layout in ("bshd", "bhsd"):
        with tempfile.TemporaryDirectory() as folder:
            files = Files(folder, layout)
            said = files.run("hopper", "--causal")
            assert "engine hopper" in said, said
            files.run("reference", "--causal")
            assert files.error("o") < 1e-3, files.error("o")
            assert files.error("lse") < 1e-5, files.error("lse")


def gradients_agree_with_the_reference():
    with tempfile.TemporaryDirectory() as folder:
        files = Files(folder, "bshd")
        names = ("dq", "dk", "dv")
        for engine in ("hopper", "reference"):
            results = [part for x in names for part in (f"--{x}", files.path(f"{x}_{engine}"))]
            files.run(engine, "--causal", "--backward", "--do", files.path("q"), *results)
        for name in names:
            assert files.error(name) < 2e-3, (name, files.error(name))


def verify_passes_and_counts_what_is_left_out():
    said = fa3("verify", "--engine", "hopper")
    assert "engine    hopper" in said, said
    assert "cases are within what they may err" in said, said
    assert "x no engine can run this call: hopper: " in said, said
    print("  " + said.strip().splitlines()[-1])


def bench_gives_rows_of_the_gpus_clock():
    shape = ["--dtype", "bf16", "--heads", "16", "--head-dim", "64,128", "--seqlen", "2048"]
    said = fa3("bench", "--engine", "hopper", *shape, "--causal", "0,1", "--json", "-")
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert len(rows) == 4, said
    for row in rows:
        assert row["engine"] == "hopper" and row["kernel"].startswith("forward"), row
        assert row["peak_tflops"] is None and row["threads"] is None, row
        assert "NVIDIA" in row["machine"], row
        flops = 4 * 16 * 2048**2 * row["head_dim"] / (2 if row["causal"] else 1)
        assert abs(row["tflops"] * row["median_ms"] * 1e9 / flops - 1) < 1e-6, row
        assert 20 < row["tflops"] < 1000, row


def bench_mixes_memories():
    engines = ["--engine", "hopper,cpu", "--dtype", "bf16", "--seqlen", "256", "--json", "-"]
    rows = [json.loads(line) for line in fa3("bench", *engines).splitlines() if line[0] == "{"]
    assert [row["engine"] for row in rows] == ["hopper", "cpu"], rows
    assert rows[1]["peak_tflops"] > 0, rows


def info_plans_for_device_memory():
    said = fa3("info", "--engine", "hopper", "--dtype", "bf16", "--seqlen", "4096", "--causal")
    assert "x128 causal" in said and "fa3 needs" in said, said


def doctor_tries_the_engine():
    said = fa3("doctor")
    assert "ok    engine hopper" in said and "tiny case" in said.split("engine hopper")[1], said


def demo_runs_on_the_gpu():
    data = ROOT / "examples" / "data"
    fa3("demo", "--engine", "hopper", "--dtype", "bf16", "--data", data)


def what_it_cannot_do_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        files = Files(folder, "bshd")
        assert "float32" in files.run("hopper", "--dtype", "fp32", code=UNSUPPORTED)
        files.run("hopper", "--scale", "0", code=BAD_INPUT)
        assert not files.path("o_hopper").exists()


CHECKS = [
    run_agrees_with_the_reference_in_both_layouts,
    gradients_agree_with_the_reference,
    verify_passes_and_counts_what_is_left_out,
    bench_gives_rows_of_the_gpus_clock,
    bench_mixes_memories,
    info_plans_for_device_memory,
    doctor_tries_the_engine,
    demo_runs_on_the_gpu,
    what_it_cannot_do_is_refused,
]


def main():
    failed = 0
    for check in CHECKS:
        try:
            check()
            print("ok  ", check.__name__, flush=True)
        except Exception as problem:  # every check runs, whatever the others do
            failed += 1
            print("FAIL", check.__name__, type(problem).__name__, str(problem)[:400], flush=True)
    print(f"{len(CHECKS)} checks, {failed} failures")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())

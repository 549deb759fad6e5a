# SPDX-License-Identifier: Apache-2.0
"""benchmarks/convergence.py: runs of one seed are alike, and what is broken on purpose is seen."""

import json
import os
import subprocess
import sys

import pytest
from builds import ROOT

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3", reason="the Python package is not built")
PROGRAM = ROOT / "benchmarks" / "convergence.py"


def run(folder, *options):
    rows = folder / "rows.jsonl"
    rows.unlink(missing_ok=True)
    command = [sys.executable, PROGRAM, "--batch", "2", "--seeds", "1", "--seconds", "300"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # more threads wait longer than they compute
    subprocess.run(
        [*command, "--json", rows, *options], check=True, capture_output=True, env=one_thread
    )
    return [json.loads(line) for line in rows.read_text().splitlines()]


def of(rows, what, attention):
    return [row for row in rows if row["what"] == what and row["attention"] == attention]


def test_a_state_goes_on_where_it_ended(tmp_path):
    options = "--attentions", "bf16", "--once", "sdpa", "--every", "2"
    whole = run(tmp_path, *options, "--steps", "4")
    state = "--state", tmp_path / "state.pt"
    first = run(tmp_path, *options, *state, "--steps", "2")
    then = run(tmp_path, *options, *state, "--steps", "4")
    expected, found = of(whole, "loss", "bf16"), of(first + then, "loss", "bf16")
    assert [row["step"] for row in found] == [2, 4]
    losses = [row["loss"] for row in expected]
    assert [row["loss"] for row in found] == pytest.approx(losses, rel=1e-6)
    # Attention by other kernels: the same batches and weights give the same loss, but for rounding.
    for ours, theirs in zip(of(whole, "loss", "bf16"), of(whole, "loss", "sdpa"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


def test_gradients_tell_what_is_broken(tmp_path):
    attentions = "--attentions", "bf16,fp8,no-mean", "--once", "half-dk"
    rows = run(tmp_path, *attentions, "--steps", "8", "--compare-every", "8")
    last = {row["attention"]: row for row in rows if row["what"] == "gradient"}
    assert max(last["bf16"]["error"]["k"]) < 1e-3
    assert max(last["fp8"]["error"]["k"]) < 0.3
    assert last["half-dk"]["error"]["k"] == pytest.approx([0.5] * 3, abs=0.1)
    assert min(last["half-dk"]["cosine"]["k"]) > 0.95
    assert min(last["half-dk"]["cosine"]["q"]) > 0.95
    for layer in range(3):
        assert last["no-mean"]["error"]["v"][layer] > 1.5 * last["fp8"]["error"]["v"][layer]
    swapped = [row for row in rows if row["what"] == "swapped" and row["trained"] == "bf16"]
    assert {row["attention"] for row in swapped} == {"bf16", "sdpa", "fp8"}

# SPDX-License-Identifier: Apache-2.0
"""The training example, for a few steps: fa3 and torch's attention must learn alike."""

import json
import subprocess
import sys

import pytest
from builds import ROOT

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3", reason="the Python package is not built")

TRAIN = ROOT / "examples" / "gpt" / "train.py"


def test_tiny_gpt_learns_in_fp8_too(device, tmp_path):
    results = tmp_path / "runs.jsonl"
    command = [sys.executable, TRAIN, "--device", device, "--steps", "8", "--batch", "2"]
    command += ["--attention", "fa3_fp8", "--json", results]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    run = json.loads(results.read_text())
    assert run["attention"] == "fa3_fp8"
    assert run["losses"][-1] < run["losses"][0] - 0.5


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_tiny_gpt_learns_the_same_with_both_attentions(device, tmp_path, dropout):
    results = tmp_path / "runs.jsonl"
    command = [sys.executable, TRAIN, "--device", device, "--steps", "8", "--batch", "2"]
    command += ["--context", "64", "--dropout", str(dropout), "--seed", "3"]
    finished = subprocess.run(
        [*command, "--json", results], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    fa3_run, sdpa_run = (json.loads(line) for line in results.read_text().splitlines())
    assert fa3_run["context"] == sdpa_run["context"] == 64
    assert (fa3_run["attention"], sdpa_run["attention"]) == ("fa3", "sdpa")
    assert (fa3_run["dropout"], fa3_run["seed"]) == (dropout, 3)
    near = 0.1 if dropout or device == "cuda" else 1e-3
    assert fa3_run["losses"] == pytest.approx(sdpa_run["losses"], abs=near)
    assert (fa3_run["losses"] == sdpa_run["losses"]) <= (dropout == 0)  # other masks, other losses
    assert fa3_run["losses"][-1] < fa3_run["losses"][0] - 0.5
    assert fa3_run["tokens_per_second"] > 0 and fa3_run["peak_memory_mb"] > 0
    assert "largest difference of the losses" in finished.stdout

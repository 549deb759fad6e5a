# SPDX-License-Identifier: Apache-2.0
"""tools/peer_tests.py tells what fails with fa3 alone from what fails anyway, and counts calls.

Here a file of a few tests stands for torch's.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3.torch", reason="the Python package is not built")

TOOL = Path(__file__).resolve().parents[3] / "tools" / "peer_tests.py"
TESTS = """
import unittest

import torch
import torch.nn.functional as F
from torch.nn.attention import current_flash_attention_impl


class TestSDPACPU(unittest.TestCase):
    def test_both_passes(self):
        q, k, v = (torch.randn(1, 2, 9, 16, requires_grad=True) for _ in range(3))
        F.scaled_dot_product_attention(q, k, v).sum().backward()

    def test_left_to_torch(self):
        q = torch.randn(1, 2, 9, 16, dtype=torch.float64)
        F.scaled_dot_product_attention(q, q, q)

    def test_fails_anyway(self):
        self.assertEqual(1, 2)

    def test_is_skipped(self):
        self.skipTest("another GPU")

    def test_flash_attention_dropout_p_0_22(self):
        self.fail("with a mask that fa3 does not draw")

    def {name}(self):
        self.assertIsNone(current_flash_attention_impl())


class TestOther(unittest.TestCase):
    def test_of_something_else(self):
        self.fail("nobody asked")
"""


def run(tmp_path, name):
    file = tmp_path / "test" / "test_transformers.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(TESTS.replace("{name}", name))
    lines = tmp_path / f"{name}.jsonl"
    command = [sys.executable, TOOL, file, "--device", "cpu", "--workers", "2", "--lines", lines]
    ended = subprocess.run(command, capture_output=True, text=True)
    cases = [json.loads(line) for line in lines.read_text().splitlines()]
    return ended, {(case, way): (outcome, *calls) for case, way, outcome, _, *calls in cases}


def test_what_fails_with_fa3_alone_fails_the_run(tmp_path):
    ended, cases = run(tmp_path, "test_who_runs")
    assert ended.returncode == 1, ended.stderr
    assert "1 failed only with fa3, 1 failed without too, 1 skipped" in ended.stdout
    assert "2 calls reached fa3" in ended.stdout
    assert {case: found for (case, way), found in cases.items() if way == "with fa3"} == {
        "TestSDPACPU.test_both_passes": ("passed", 2, 0),
        "TestSDPACPU.test_left_to_torch": ("passed", 0, 1),
        "TestSDPACPU.test_fails_anyway": ("failed", 0, 0),
        "TestSDPACPU.test_is_skipped": ("skipped", 0, 0),
        "TestSDPACPU.test_who_runs": ("failed", 0, 0),
    }
    assert cases["TestSDPACPU.test_who_runs", "without"][0] == "passed"


def test_what_fails_anyway_does_not(tmp_path):
    ended, _ = run(tmp_path, "of_no_interest")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 failed only with fa3, 1 failed without too" in ended.stdout


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "test_other.py"
    file.write_text("")
    ended = subprocess.run([sys.executable, TOOL, file], capture_output=True, text=True)
    assert ended.returncode == 2 and "expected test/test_transformers.py" in ended.stderr

# SPDX-License-Identifier: Apache-2.0
"""The verification record of the GPU kernels vouches for exact sources, and only if all passed."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import gpu_verify


@pytest.fixture
def tree(tmp_path):
    """A root with one kernel source, and the path of a record."""
    source = tmp_path / "src/engine/hopper/ptx/one.cuh"
    source.parent.mkdir(parents=True)
    source.write_text("a kernel")
    return tmp_path, source, tmp_path / "record.json"


def write_record(root, record, passed=True):
    pieces = [{"name": "piece", "passed": passed}]
    record.write_text(json.dumps({"source_hash": gpu_verify.source_hash(root), "pieces": pieces}))


def test_a_record_of_these_sources_has_no_problem(tree):
    root, _, record = tree
    write_record(root, record)
    assert gpu_verify.record_problem(record, root) is None


def test_a_changed_byte_or_name_makes_the_record_stale(tree):
    root, source, record = tree
    write_record(root, record)
    source.rename(source.with_name("two.cuh"))
    assert "have changed" in gpu_verify.record_problem(record, root)
    source.with_name("two.cuh").rename(source)
    assert gpu_verify.record_problem(record, root) is None
    source.write_text("a kernel.")
    assert "have changed" in gpu_verify.record_problem(record, root)


def test_a_missing_record_and_a_failed_piece_are_problems(tree):
    root, _, record = tree
    assert "no verification record" in gpu_verify.record_problem(record, root)
    write_record(root, record, passed=False)
    assert "did not pass: piece" in gpu_verify.record_problem(record, root)


@pytest.mark.parametrize(
    ("script", "passed"),
    [
        ("print('3 checks, 0 failures')", True),
        ("print('3 checks, 1 failures')", False),
        ("print('0 checks, 0 failures')", False),
        ("print('no summary')", False),
        ("print('3 checks, 0 failures'); raise SystemExit(2)", False),
    ],
)
def test_a_piece_passes_only_with_checks_and_without_failures(script, passed, tmp_path):
    result = gpu_verify.run_piece("piece", [sys.executable, "-c", script], tmp_path)
    assert result["passed"] is passed


def test_a_piece_without_its_tool_says_so(tmp_path):
    result = gpu_verify.run_piece("piece", ["no-such-tool"], tmp_path)
    assert not result["passed"]
    assert "no-such-tool is not on this machine" in result["skipped"]

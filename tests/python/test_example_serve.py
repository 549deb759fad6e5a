# SPDX-License-Identifier: Apache-2.0
"""The serving example, small: more requests than fit at a time, every answer as without a cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3", reason="the Python package is not built")

SERVE = Path(__file__).parents[2] / "examples" / "serve" / "serve.py"


@pytest.mark.parametrize("page_size, pages", [(1, 300), (16, 20)])
def test_answers_from_a_paged_cache_are_those_of_unpaged_attention(device, page_size, pages):
    command = [sys.executable, SERVE, "--requests", "5", "--batch", "3", "--budget", "24"]
    command += ["--train-steps", "12", "--page-size", str(page_size), "--pages", str(pages)]
    command += ["--device", device]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, env=one_thread, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "every answer is that of unpaged attention" in finished.stdout
    assert "5 requests" in finished.stdout

# SPDX-License-Identifier: Apache-2.0
"""fa3.distributed on two GPUs, through their memory and through NCCL, beside one GPU. [cuda]

distributed_gpus.py has what the ranks do.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import distributed_gpus as gpus  # noqa: E402

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < gpus.WORLD, reason="fewer than two GPUs are here"
)


def said(folder, what, timeout=150):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    program = [HERE / "distributed_ranks.py", "distributed_gpus", str(gpus.WORLD), folder, what]
    subprocess.run([sys.executable, *program], env=environment, timeout=timeout, check=False)
    return [(folder / f"{gpus.WORLD}.{rank}").read_text() for rank in range(gpus.WORLD)]


@pytest.mark.parametrize("transport", ["peers", "messages"])
def test_two_gpus_give_what_one_gives_cuda(transport, tmp_path):
    for text in said(tmp_path, transport):
        failures, count, has_peers = json.loads(text.splitlines()[-1])
        assert not count, f"{count} failed: " + "\n".join(failures)
        assert has_peers == (transport == "peers")


@pytest.mark.parametrize("what", ["queued", "graphs"])
def test_calls_wait_for_nothing_and_are_captured_cuda(what, tmp_path):
    for text in said(tmp_path, what):
        failures, count, _ = json.loads(text.splitlines()[-1])
        assert not count, f"{count} failed: " + "\n".join(failures)


@pytest.mark.parametrize("fault", ["killed", "late"])
def test_a_lost_rank_ends_the_other_cuda(fault, tmp_path):
    begin = time.time()
    text = said(tmp_path, fault)[0]
    assert "went on" not in text
    assert "fa3.distributed: expected the rows of the other ranks" in text, text
    assert time.time() - begin < 60

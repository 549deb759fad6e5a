# SPDX-License-Identifier: Apache-2.0
"""Context parallelism on 2, 3 and 4 processes of gloo, over the CPU engine.

distributed_cases.py has what the ranks do: each group of processes is started once, and runs every
case. distributed_faults.py has ranks that die or come late.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3", reason="the Python package is not built")

import distributed_callers as callers
import distributed_cases as cases
import distributed_faults as faults
from builds import ROOT

HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
    "CUDA_VISIBLE_DEVICES": "",
    "OPENBLAS_NUM_THREADS": "1",  # for the oracle: the ranks share the cores
}


def start(arguments, environment):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )


def finish(world, script, *arguments):
    """(what it wrote, what it said of errors) of each rank."""
    ranks = [start([HERE / script, str(rank), *arguments], ENVIRONMENT) for rank in range(world)]
    return [rank.communicate(timeout=300) for rank in ranks]


@pytest.fixture(scope="module", params=[2, 3, 4], ids=lambda world: f"{world} ranks")
def ran(request, tmp_path_factory):
    world = request.param
    store = tmp_path_factory.mktemp("store") / "ranks"
    return world, failures_of(finish(world, "distributed_cases.py", world, store))


def failures_of(ranks):
    """case -> its failure on each rank."""
    found = {}
    for rank, (said, error) in enumerate(ranks):
        lines = [line for line in said.splitlines() if line.startswith("[")]
        for name, failure in map(json.loads, lines):
            found.setdefault(name, []).append(failure and f"rank {rank}: {failure}")
        if not lines:
            pytest.fail(f"rank {rank}: {error}")
    return found


@pytest.mark.parametrize("case", [case.__name__ for case in cases.CASES])
def test_on_every_rank(ran, case):
    world, found = ran
    failures = found.get(case, ["not reached: a case before it failed"])
    assert failures == [None] * world, "\n".join(filter(None, failures))


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    pytest.importorskip("transformers", reason="Transformers is not installed")
    store = tmp_path_factory.mktemp("store") / "callers"
    return failures_of(finish(callers.WORLD, "distributed_callers.py", store))


@pytest.mark.parametrize("case", [case.__name__ for case in callers.CASES])
def test_of_other_programs(called, case):
    assert called.get(case) == [None] * callers.WORLD, "\n".join(filter(None, called[case]))


FAULTS = ["killed", "late"] if cases.QUICK else ["killed", "late", "late_and_new"]


@pytest.mark.parametrize("fault", FAULTS)
def test_ranks_that_wait_for_one_that_fails_end_with_an_error(fault, tmp_path):
    method = "ulysses" if fault == "late" else "ring"
    waiting = finish(faults.WORLD, "distributed_faults.py", tmp_path / "ranks", fault, method)[:-1]
    for said, error in waiting:
        assert said, error
        sentence, seconds = json.loads(said.splitlines()[-1])
        assert sentence.startswith("CommunicationError: fa3.distributed: expected "), sentence
        assert seconds < 2 * faults.TIMEOUT + 2


@pytest.mark.parametrize("group", [None, "all"])
def test_without_a_group_the_sentence_says_what_to_call(group):
    import torch

    from fa3 import distributed

    q = torch.zeros(1, 4, 1, 8)
    with pytest.raises(ValueError, match="init_process_group"):
        distributed.attention(q, q, q, group=group)


def test_the_page_runs_as_pasted_on_two_ranks(tmp_path):
    """Its program takes ranks and address from the environment, as torchrun sets them."""
    page = (ROOT / "docs/distributed.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        start(["-c", code], ENVIRONMENT | group | {"RANK": str(rank), "OMP_NUM_THREADS": "1"})
        for rank in range(2)
    ]
    for rank in ranks:
        said, error = rank.communicate(timeout=300)
        assert said.split("\n")[0] == "(1, 512, 8, 64) (1, 1024, 8, 64)", error

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


def ranks_of(module, worlds, folder, *arguments):
    """What each rank wrote: world -> a text a rank."""
    numbers = ",".join(map(str, worlds))
    ranks = start([HERE / "distributed_ranks.py", module, numbers, folder, *arguments], ENVIRONMENT)
    said, error = ranks.communicate(timeout=600)
    found = {n: [folder / f"{n}.{rank}" for rank in range(n)] for n in worlds}
    if missing := [path for paths in found.values() for path in paths if not path.exists()]:
        pytest.fail(f"{len(missing)} ranks did not start: {said}{error}")
    sys.stderr.write(error)
    return {n: [path.read_text() for path in paths] for n, paths in found.items()}


def failures_of(texts):
    """case -> its failure on each rank."""
    found = {}
    for rank, text in enumerate(texts):
        for line in text.splitlines():
            if line.startswith("["):
                name, failure = json.loads(line)
                found.setdefault(name, []).append(failure and f"rank {rank}: {failure}")
    return found


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return ranks_of("distributed_cases", (2, 3, 4), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("case", [case.__name__ for case in cases.CASES])
def test_on_every_rank(worlds, world, case):
    failures = failures_of(worlds[world]).get(case, ["not reached: a case before it failed"])
    assert failures == [None] * world, "\n".join(filter(None, failures))


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    pytest.importorskip("transformers", reason="Transformers is not installed")
    texts = ranks_of("distributed_callers", [callers.WORLD], tmp_path_factory.mktemp("ranks"))
    return failures_of(texts[callers.WORLD])


@pytest.mark.parametrize("case", [case.__name__ for case in callers.CASES])
def test_of_other_programs(called, case):
    assert called.get(case) == [None] * callers.WORLD, "\n".join(filter(None, called[case]))


FAULTS = ["killed", "late"] if cases.QUICK else ["killed", "late", "late_and_new"]


@pytest.mark.parametrize("fault", FAULTS)
def test_ranks_that_wait_for_one_that_fails_end_with_an_error(fault, tmp_path):
    method = "ulysses" if fault == "late" else "ring"
    texts = ranks_of("distributed_faults", [faults.WORLD], tmp_path, fault, method)
    for text in texts[faults.WORLD][:-1]:
        sentence, seconds = json.loads(text.splitlines()[-1])
        assert sentence.startswith("CommunicationError: fa3.distributed: expected "), sentence
        assert seconds < 2 * faults.TIMEOUT + 2


@pytest.mark.parametrize("group", [None, "all"])
def test_without_a_group_the_sentence_says_what_to_call(group):
    import torch

    from fa3 import distributed

    q = torch.zeros(1, 4, 1, 8)
    with pytest.raises(ValueError, match="init_process_group"):
        distributed.attention(q, q, q, group=group)


def test_cpu_tensors_in_a_group_of_nccl_are_refused(monkeypatch):
    import torch

    from fa3.distributed import describe

    monkeypatch.setattr(describe.dist, "get_backend_config", lambda group: "cuda:nccl")
    with pytest.raises(ValueError, match="q: expected a tensor on cuda, .*cuda:nccl.*, got one on"):
        describe.refuse_other_backend(torch.zeros(1, 4, 1, 8), None)


def as_torchrun_does(arguments):
    """(what it wrote, what it said of errors) of two ranks of a program."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        start(arguments, ENVIRONMENT | group | {"RANK": str(rank), "OMP_NUM_THREADS": "1"})
        for rank in range(2)
    ]
    return [rank.communicate(timeout=300) for rank in ranks]


def test_the_page_runs_as_pasted_on_two_ranks():
    page = (ROOT / "docs/distributed.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for said, error in as_torchrun_does(["-c", code]):
        assert said.split("\n")[0] == "(1, 512, 8, 64) (1, 1024, 8, 64)", error


def test_the_benchmark_writes_rows_of_every_method(tmp_path):
    rows = tmp_path / "rows.jsonl"
    sizes = "--device cpu --dtype fp32 --tokens 32 --heads 4:2 --head-dim 16 --rounds 1".split()
    program = ROOT / "benchmarks/context_parallel.py"
    (_, error), _ = as_torchrun_does([program, *sizes, "--json", rows])
    assert rows.exists(), error
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    timed = [row for row in found if "left_out" not in row]
    assert len({(row["packed"], row["backward"]) for row in timed}) == 4
    assert {"ideal", "fa3 ring", "fa3 all_gather", "fa3 ulysses"} <= {
        row["engine"] for row in timed
    }
    assert all(row["error"] < 1e-5 for row in timed if row["engine"] != "ideal")


def test_predictions_are_parts_of_the_ideal():
    program = [sys.executable, ROOT / "benchmarks/context_parallel.py", "--predict", "2,16"]
    said = subprocess.check_output([*program, "--tokens", "8192"], env=ENVIRONMENT, text=True)
    parts = [int(part) for part in re.findall(r"(\d+)%", said)]
    assert len(parts) > 20 and all(0 < part <= 100 for part in parts)

# SPDX-License-Identifier: Apache-2.0
"""The serving example, small: more requests than fit at a time, every answer as without a cache."""

import argparse
import os
import subprocess
import sys

import pytest
from builds import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3", reason="the Python package is not built")

SERVE = ROOT / "examples" / "serve" / "serve.py"
sys.path.insert(0, str(SERVE.parent))
import serve  # noqa: E402


@pytest.mark.parametrize("api, page_size, pages", [("vllm", 1, 300), ("sglang", 16, 20)])
def test_answers_from_a_paged_cache_are_those_of_unpaged_attention(device, api, page_size, pages):
    command = [sys.executable, SERVE, "--requests", "5", "--batch", "3", "--budget", "24"]
    command += ["--train-steps", "12", "--page-size", str(page_size), "--pages", str(pages)]
    command += ["--device", device, "--api", api]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, env=one_thread, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "every answer is that of unpaged attention" in finished.stdout
    assert "5 requests" in finished.stdout


@pytest.mark.parametrize("rows", ["latent", "group128"])
def test_a_layer_decodes_from_a_latent_cache_as_without_one(rows):
    command = [sys.executable, SERVE.with_name("latent_layer.py"), "--rows", rows]
    command += ["--tokens", "40", "--prompt", "33", "--page-size", "16", "--heads", "3"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "3 requests, 40 tokens each, 8 steps" in finished.stdout


def test_every_interface_gives_the_same_answers(device, one_thread):
    torch.manual_seed(0)
    size = serve.SIZES["tiny"]._replace(context=32)
    model = serve.GPT(size, serve.attend_fa3).to(device)
    text = serve.read_text(None)
    how = argparse.Namespace(seed=0, requests=4)
    with torch.device(device):
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        model = model.to(dtype)
        answers = []
        for attend in serve.BY_API.values():
            requests = serve.make_requests(text, size, how)
            cache = serve.PagedCache(size, num_pages=10, page_size=8, dtype=dtype)
            serve.Server(model, cache, attend, batch=3, budget=16).run(requests)
            answers.append([request.answer for request in requests])
    assert len(answers) == 3 and all(answer == answers[0] for answer in answers)
    assert any(len(set(answer)) > 1 for answer in answers[0])

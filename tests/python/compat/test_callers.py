# SPDX-License-Identifier: Apache-2.0
"""Programs that import flash_attn, unmodified, in an environment where fa3 adopt answers to it.

Each runs in a process of its own. Transformers and diffusers ask for a CUDA device before they use
flash_attn: on a CPU that question alone is answered for them.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.commands import adopt, shims  # noqa: E402

RING = Path(__file__).parent / "callers_ring.py"
FUNCTIONS = {
    "ring_flash_attn": ("ring", "zigzag", "stripe", "ring_varlen", "zigzag_varlen", "llama3"),
    "yunchang": ("yunchang_fa", "yunchang_fa3"),
    "diffusers": ("diffusers_flash", "diffusers_flash_3_hub"),
}
BF16_ROUNDING = 2**-5  # of gradients up to 4, after two ranks' parts in bf16 are added


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    site = tmp_path_factory.mktemp("site-packages")
    adopt.adopt(site, ["flash-attn-3", "flash-attn"])
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


def finish(process):
    said, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return said


def start(environment, *arguments):
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.fixture(scope="module")
def ranks(environment, tmp_path_factory):
    store = tmp_path_factory.mktemp("gloo") / "store"
    started = [start(environment, RING, str(rank), store) for rank in range(2)]
    return [dict(map(json.loads, finish(rank).splitlines())) for rank in started]


@pytest.mark.parametrize(
    "package, function", [(p, f) for p, functions in FUNCTIONS.items() for f in functions]
)
def test_context_parallelism_over_two_ranks_is_attention_of_the_whole(package, function, request):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    for rank in request.getfixturevalue("ranks"):
        assert max(rank[function]) <= BF16_ROUNDING


MODELS = """
import torch
from transformers.utils import import_utils

import_utils.is_torch_cuda_available = lambda: True  # all that these checks lack on a CPU
assert import_utils.is_flash_attn_2_available() and import_utils.is_flash_attn_3_available()
import transformers
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
ids = torch.arange(22).view(2, 11)
mask = torch.ones(2, 11, dtype=torch.long)
mask[0, :4] = 0
labels = ids.masked_fill(mask == 0, -100)
labels[0, 4] = -100  # which a padded token would predict


def train_and_generate(config, implementation):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    done = model(input_ids=ids, attention_mask=mask, labels=labels)
    done.loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    text = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    return done.logits[mask.bool()], gradient, text


def compare(name, *implementations, **more):
    config = getattr(transformers, name)(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64, **more
    )
    expected = train_and_generate(config, "eager")
    for implementation in implementations:
        got = train_and_generate(config, implementation)
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)
        print(name, implementation)
"""


def python(environment, code, **more):
    return finish(start({**environment, **more}, "-c", code))


def test_transformers_flash_attention_2_and_3_train_and_generate(environment):
    pytest.importorskip("transformers", reason="transformers is not installed")
    call = 'compare("LlamaConfig", "flash_attention_2", "flash_attention_3")\n'
    call += 'compare("MistralConfig", "flash_attention_3", sliding_window=6)'
    assert python(environment, MODELS + call).splitlines() == [
        "LlamaConfig flash_attention_2",
        "LlamaConfig flash_attention_3",
        "MistralConfig flash_attention_3",
    ]


def test_transformers_keeps_the_sinks_of_gpt_oss_through_the_hub_kernel(environment, tmp_path):
    """Transformers sends gpt-oss to a hub kernel, and drops sinks that its signature lacks."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("kernels", reason="kernels is not installed")
    adopt.write(tmp_path, shims.hub_kernel())
    # Any version of kernels that is there will do, for a local folder.
    code = """
import kernels
import transformers.integrations.hub_kernels as hub

hub.is_kernels_available = lambda *arguments, **named: True
hub.get_kernel_hub = kernels.get_kernel
small = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 6}
compare("GptOssConfig", "flash_attention_3", **small)
"""
    kernel = f"kernels-community/vllm-flash-attn3={tmp_path}"
    said = python(environment, MODELS + code, LOCAL_KERNELS=kernel, HF_HUB_OFFLINE="1")
    assert said == "GptOssConfig flash_attention_3\n"


def test_diffusers_backends(environment):
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    code = """
import torch
import diffusers.models.attention_dispatch as dispatch

import fa3

assert dispatch._CAN_USE_FLASH_ATTN and dispatch._CAN_USE_FLASH_ATTN_3
dispatch._wrapped_flash_attn_3 = dispatch._wrapped_flash_attn_3._init_fn  # CUDA's alone
q, k, v = (torch.randn(2, 16, 2, 16).bfloat16() for _ in range(3))
mask = torch.ones(2, 16, dtype=torch.bool)
mask[0, 10:] = False
whole = fa3.attention(q, k, v)
masked = torch.cat([fa3.attention(q[:1], k[:1, :10], v[:1, :10]), whole[1:]])
assert torch.equal(dispatch._flash_attention(q, k, v), whole)
assert torch.equal(dispatch._flash_attention_3(q, k, v), whole)
assert torch.equal(dispatch._flash_varlen_attention(q, k, v, attn_mask=mask), masked)
assert torch.equal(dispatch._flash_varlen_attention_3(q, k, v, attn_mask=mask), masked)
print("the same")
"""
    assert python(environment, code) == "the same\n"

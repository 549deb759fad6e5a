# SPDX-License-Identifier: Apache-2.0
"""What flash_attn 2 does by itself around its kernels, and what its own tests ask: odd head dims,
pages beside gradients, and tools/flash_attn_tests.py, which runs those tests."""

import subprocess
import sys
import weakref

import pytest
from builds import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat import flash_attn as fa2  # noqa: E402

TOOL = ROOT / "tools" / "flash_attn_tests.py"


def tensors(device, *shapes):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return [torch.randn(shape, dtype=torch.float32).to(device, dtype) for shape in shapes]


def expected_of(q, k, v, **options):
    """From the same tensors with columns of zeros, and from fp32 on the CPU."""
    wide = (x.float().cpu() for x in (q, k, v))
    return fa3.attention(*wide, **options).to(q.device, q.dtype)


def near(actual, expected):
    assert (actual - expected).norm() <= (1e-5 if actual.is_cpu else 1e-2) * expected.norm()


@pytest.mark.parametrize("dim", [59, 111])
def test_head_dims_that_are_no_multiples_of_8_have_both_passes(device, dim):
    leaves = [x.requires_grad_() for x in tensors(device, *[(2, 33, 4, dim)] * 3)]
    twins = [x.detach().float().cpu().requires_grad_() for x in leaves]
    out = fa2.flash_attn_func(*leaves, causal=True)
    expected = fa3.attention(*twins, causal=True)
    near(out, expected.to(out))
    do = torch.randn(expected.shape)
    found = torch.autograd.grad(out, leaves, do.to(out))
    for gradient, twin in zip(found, torch.autograd.grad(expected, twins, do), strict=True):
        near(gradient, twin.to(gradient))


@pytest.mark.parametrize("scale", [None, 0.2])
@pytest.mark.parametrize("return_lse", [False, True])
def test_caches_of_such_head_dims_are_appended_to_and_attended(device, scale, return_lse):
    q, k, v, k_cache, v_cache = tensors(device, *[(2, 3, 4, 59)] * 3, *[(2, 20, 4, 59)] * 2)
    used = torch.tensor([5, 17], dtype=torch.int32, device=device)
    caches = k_cache.clone(), v_cache.clone()
    options = {"softmax_scale": scale, "causal": True, "return_softmax_lse": return_lse}
    out = fa2.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=used, **options)
    out = out[0] if return_lse else out
    for cache, before, new in zip(caches, (k_cache, v_cache), (k, v), strict=True):
        for b, n in enumerate(used.tolist()):
            before[b, n : n + 3] = new[b]
        assert torch.equal(cache, before)
    for b, n in enumerate(used.tolist()):
        rows = (x[b : b + 1, : n + 3] for x in (k_cache, v_cache))
        near(out[b : b + 1], expected_of(q[b : b + 1], *rows, causal=True, scale=scale))


def test_pages_are_attended_also_by_queries_that_want_a_gradient(device):
    q, pages = tensors(device, (7, 4, 16), (2, 6, 16, 2, 16))
    starts = torch.tensor([0, 4, 7], dtype=torch.int32, device=device)
    lengths = torch.tensor([0, 20, 29], dtype=torch.int32, device=device)
    table = torch.tensor([[3, 1], [0, 5]], dtype=torch.int32, device=device)
    call = (*pages, starts, lengths, 4, 20)
    expected = fa2.flash_attn_varlen_func(q, *call, causal=True, block_table=table)
    out = fa2.flash_attn_varlen_func(q.requires_grad_(), *call, causal=True, block_table=table)
    assert torch.equal(out, expected)
    with pytest.raises(fa3.Unsupported, match="^page_table: no gradient goes through a cache"):
        out.sum().backward()


def test_what_pages_were_attended_with_is_freed(device):
    def attend():
        q, pages = tensors(device, (7, 4, 16), (2, 6, 16, 2, 16))
        starts = torch.tensor([0, 7], dtype=torch.int32, device=device)
        lengths = torch.tensor([0, 20], dtype=torch.int32, device=device)
        table = torch.tensor([[3, 1]], dtype=torch.int32, device=device)
        call = (*pages, starts, lengths, 7, 20)
        fa2.flash_attn_varlen_func(q.requires_grad_(), *call, causal=True, block_table=table)
        return weakref.ref(pages), weakref.ref(table)

    assert [kept() for kept in attend()] == [None, None]


TESTS = """
import pytest
import torch
from flash_attn import flash_attn_func
from flash_attn.bert_padding import unpad_input
from flash_attn.flash_attn_interface import _get_block_size_n, USE_TRITON_ROCM
from flash_attn.layers.rotary import apply_rotary_emb

@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.17])
@pytest.mark.parametrize("seqlen_q,seqlen_k", [(5, 7), (9, 300)])
@pytest.mark.parametrize("softcap", [0.0, 50.0])
def test_flash_attn_output(seqlen_q, seqlen_k, dropout_p, alibi, softcap):
    if softcap > 0.0 and dropout_p > 0.0:
        pytest.skip("Softcap and dropout not supported together")
    q = torch.zeros(1, seqlen_q, 2, 8, device="cuda")
    k = torch.zeros(1, seqlen_k, 2, 8, device="cuda")
    slopes = torch.zeros(2, device="cuda") if alibi else None
    out, lse, weights = flash_attn_func(
        q, k, k, dropout_p, softcap=softcap, alibi_slopes=slopes, return_attn_probs=True
    )
    assert lse.exp().round().eq(seqlen_k).all() and (weights is None) == (dropout_p == 0.0)

@pytest.mark.skipif(USE_TRITON_ROCM, reason="")
def test_flash_attn_generator_arg_must_be_none():
    raise AssertionError

def test_of_something_that_fails():
    assert unpad_input is None
"""


def test_the_sample_of_flash_attns_own_tests_counts_and_lists(tmp_path):
    """Cases that the tests skip are none; what fa3 lacks must be refused; the rest runs."""
    file = tmp_path / "tests" / "test_flash_attn.py"
    file.parent.mkdir()
    file.write_text(TESTS)
    lines_file = tmp_path / "lines.jsonl"
    command = [sys.executable, TOOL, file, "--device", "cpu", "--longest", "100"]
    command += ["--lines", lines_file, "--workers"]
    done = subprocess.run([*command, "2"], capture_output=True, text=True, check=False)
    output, lines = done.stdout, done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert lines[0].startswith("test_flash_attn_output: 5 of a sample of 5 of 5 cases, seed 1: 5 p")
    lacking = "fa3 has no S_dmask of ALiBi"
    assert lines[1] == f"  1 cases more with alibi: {lacking}; refused: 1 of 1"
    assert "generator_arg_must_be_none: left out: calls the compiled module" in lines[2]
    assert "test_of_something_that_fails: 1 of a sample of 1 of 1 cases" in output
    assert "failed: {}: AssertionError" in output
    before = lines_file.read_text()
    only = [*command, "1", "--tests", "test_flash_attn_output"]
    again = subprocess.run(only, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and again.stdout.startswith(lines[0])
    assert lines_file.read_text() == before  # nothing ran again
    wrong = subprocess.run([*command, "1", "--tests", "nothing"], capture_output=True, text=True)
    assert wrong.returncode != 0 and "--tests: expected some of" in wrong.stderr

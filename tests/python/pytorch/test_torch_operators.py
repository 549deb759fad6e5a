# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.*: what compilers, counters, checkpoints and graphs do with the operators."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("fa3.torch")  # defines torch.ops.fa3


import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_tensors import tensors  # noqa: E402

from fa3.torch import autograd  # noqa: E402


def as_given(a):
    return a


def transposed(a):
    """The tensor's values in (b, h, s, d) memory."""
    return a.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.fixture
def qkv(device):
    return tensors(device, (2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 8))


@pytest.mark.parametrize("layout", [as_given, transposed])
def test_operators_pass_opcheck(device, qkv, layout):
    q, k, v = map(layout, qkv)
    ops = torch.ops.fa3
    out, lse = ops.forward(q, k, v, True)
    sink = torch.randn(4, device=device)
    for options in (
        {"causal": True},
        {"window_left": 3, "softcap": 2.0, "sink": sink},
        {"attention_chunk": 5, "batch_invariant": True},
    ):
        torch.library.opcheck(ops.forward.default, (q, k, v), options)
        torch.library.opcheck(ops.forward_out.default, (q, k, v, torch.empty_like(out)), options)
        inputs = (torch.randn_like(out), q, k, v, out, lse)
        torch.library.opcheck(ops.backward.default, inputs, options)
        torch.library.opcheck(
            ops.backward.default, inputs, options | {"dlse": torch.ones_like(lse)}
        )


def test_packed_operators_pass_opcheck(device):
    q, k, v = tensors(device, (9, 4, 16), (12, 2, 16), (12, 2, 8))
    options = {
        "cu_seqlens_q": torch.tensor([0, 4, 9], dtype=torch.int32, device=device),
        "cu_seqlens_k": torch.tensor([0, 5, 12], dtype=torch.int32, device=device),
        "max_seqlen_q": 5,
        "max_seqlen_k": 7,
    }
    torch.library.opcheck(torch.ops.fa3.forward.default, (q, k, v), options)
    out, lse = torch.ops.fa3.forward(q, k, v, **options)
    inputs = (torch.randn_like(out), q, k, v, out, lse)
    torch.library.opcheck(torch.ops.fa3.backward.default, inputs, options)


def block(q, k, v, **options):
    return fa3.attention(q * 1.5, k, v, causal=True, **options).relu() + 1


def test_the_gradient_of_the_lse_compiles(device, qkv):
    def loss(q, k, v):
        out, lse = fa3.attention(q * 1.5, k, v, return_lse=True)
        return out.sum() + lse.square().sum()

    leaves = [a.requires_grad_() for a in qkv]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(*leaves), leaves), expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_into_one_graph_with_gradients(device, qkv, backend):
    leaves = [a.requires_grad_() for a in qkv]
    expected = block(*leaves)
    expected_gradients = torch.autograd.grad(expected.sum(), leaves)
    actual = torch.compile(block, fullgraph=True, backend=backend)(*leaves)
    gradients = torch.autograd.grad(actual.sum(), leaves)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradients, expected_gradients)


def test_compiles_once_for_every_length(device):
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for length in (7, 20, 33):
        q, k, v = tensors(device, (2, length, 4, 16), (2, length + 3, 2, 16), (2, length + 3, 2, 8))
        torch.testing.assert_close(compiled(q, k, v), block(q, k, v))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_compiles_with_options_and_autocast(device, qkv):
    sink = torch.randn(4, device=device)

    def model(q, k, v):
        with torch.autocast(device, dtype=torch.bfloat16):
            masks = {"window": (4, 2), "attention_chunk": 5, "softcap": 3.0, "sink": sink}
            return fa3.attention(q, k, v, **masks, batch_invariant=True, return_lse=True)

    out, lse = torch.compile(model, fullgraph=True, backend="aot_eager")(*qkv)
    expected_out, expected_lse = model(*qkv)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected_out, rtol=0, atol=0)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=0)


def test_meta_tensors_give_shapes():
    q, k, v = (
        torch.empty(s, device="meta") for s in ((2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 8))
    )
    out, lse = torch.ops.fa3.forward(q, k, v)
    assert out.shape == (2, 9, 4, 8) and lse.shape == (2, 4, 9)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_gradients_are_the_same(device, qkv, use_reentrant):
    leaves = [a.requires_grad_() for a in qkv]
    expected = torch.autograd.grad(block(*leaves).sum(), leaves)
    block_again = checkpoint(block, *leaves, use_reentrant=use_reentrant)
    block_again.sum().backward()
    torch.testing.assert_close(tuple(a.grad for a in leaves), expected)


def test_selective_checkpointing_can_save_the_attention(device, qkv):
    seen = []

    def policy(context, op, *args, **kwargs):
        if op is torch.ops.fa3.forward.default:
            seen.append(context.is_recompute)
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    leaves = [a.requires_grad_() for a in qkv]
    expected = torch.autograd.grad(block(*leaves).sum(), leaves)
    context_fn = partial(create_selective_checkpoint_contexts, policy)
    checkpoint(block, *leaves, use_reentrant=False, context_fn=context_fn).sum().backward()
    assert False in seen
    torch.testing.assert_close(tuple(a.grad for a in leaves), expected)


def test_flops_are_counted_as_torch_counts_its_own_attention(device):
    q, k, v = (a.requires_grad_() for a in tensors(device, *[(2, 10, 4, 16)] * 3))
    with FlopCounterMode(display=False) as ours:
        fa3.attention(q, k, v).sum().backward()
    with FlopCounterMode(display=False) as theirs:
        swapped = (a.transpose(1, 2) for a in (q, k, v))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(*swapped).sum().backward()
    assert ours.get_total_flops() == 7 * 2 * 2 * 4 * 10 * 10 * 16
    if theirs.get_total_flops():
        assert ours.get_total_flops() == theirs.get_total_flops()


def test_flops_of_packed_sequences_follow_their_lengths(device):
    q, k, v = tensors(device, (9, 4, 16), (12, 2, 16), (12, 2, 8))
    cu_q = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    cu_k = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    with FlopCounterMode(display=False) as counter:
        fa3.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=5, max_seqlen_k=7)
    assert counter.get_total_flops() == 2 * 4 * (4 * 5 + 5 * 7) * (16 + 8)


def test_cuda_graph_replays_with_new_inputs():
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    q, k, v = tensors("cuda", (2, 128, 4, 64), (2, 128, 2, 64), (2, 128, 2, 64))
    try:
        fa3.attention(q, k, v)
    except fa3.Unsupported as error:
        pytest.skip(str(error))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fa3.attention(q, k, v)
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.testing.assert_close(out, fa3.attention(q, k, v), rtol=0, atol=0)


# Eight calls are unfinished when another stream's capture begins, in the mode that forbids most.
MONITORED = """
import torch, fa3
q = torch.randn(4, 4096, 16, 128, dtype=torch.bfloat16, device="cuda")
pending = [fa3.attention(q, q, q) for _ in range(8)]
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    graph.capture_begin(capture_error_mode="global")
    first = fa3.attention(q, q, q)
    second = fa3.attention(q, first, first)
    graph.capture_end()
graph.replay()
torch.cuda.synchronize()
assert torch.equal(first, pending[0]) and torch.equal(second, fa3.attention(q, first, first))
"""


def test_a_monitored_program_captures_cuda_graphs():
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    done = subprocess.run(
        [sys.executable, "-c", MONITORED],
        env=os.environ | {"FA3_MONITOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (x for x in done.stderr.splitlines() if x.startswith("fa3: "))
    assert line.startswith("fa3: 11 calls, ")
    assert " TFLOP/s" in line and ", 2 not timed (captured into a graph): forward" in line


def test_cuda_graph_replays_both_passes_with_other_lengths():
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    q, k, v, do = tensors("cuda", (300, 4, 64), (300, 2, 64), (300, 2, 64), (300, 4, 64))
    lengths = [
        torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([0, 200, 300], [0, 9, 300])
    ]
    cu = lengths[0].clone()
    options = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 300, "max_seqlen_k": 300}

    def both():
        out, lse = fa3.attention(q, k, v, causal=True, return_lse=True, **options)
        gradients = fa3.attention_backward(
            do, q, k, v, out, lse, causal=True, deterministic=True, **options
        )
        return out, *gradients[:3]

    try:
        both()
    except fa3.Unsupported as error:
        pytest.skip(str(error))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for starts in lengths[::-1]:
        cu.copy_(starts)
        graph.replay()
        for replayed, expected in zip(captured, both(), strict=True):
            torch.testing.assert_close(replayed, expected, rtol=0, atol=0)


def test_a_plain_call_costs_no_dispatch_and_a_watched_one_is_seen(device, qkv, monkeypatch):
    watched = {
        "profiler": torch.profiler.profile,
        "mode": lambda: FlopCounterMode(display=False),
        "function mode": lambda: torch.device(device),
    }
    expected = fa3.attention(*qkv)
    for name, watch in watched.items():
        with watch() as watcher:
            assert torch.equal(fa3.attention(*qkv), expected), name
        if name == "profiler":
            assert "fa3::forward" in {event.key for event in watcher.key_averages()}

    dispatched = []
    monkeypatch.setattr(autograd, "forward", lambda *call: dispatched.append(call))
    assert torch.equal(fa3.attention(*qkv), expected)
    assert not dispatched
    for watch in watched.values():
        with watch():
            fa3.attention(*qkv, return_lse=True)
    assert len(dispatched) == len(watched)


def test_a_lazily_negated_view_is_not_read_as_it_lies_in_memory(qkv):
    q, k, v = qkv
    assert torch.equal(fa3.attention(torch._neg_view(q), k, v), fa3.attention(-q, k, v))


def test_a_profiler_of_all_threads_sees_the_calls_of_another(device, qkv):
    try:
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):
        pytest.skip("this torch profiles one thread at a time")
    with (
        torch.profiler.profile(experimental_config=config) as profiler,
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(fa3.attention, *qkv).result()
    assert "fa3::forward" in {event.key for event in profiler.key_averages()}


def test_a_thread_whose_first_cuda_call_is_this_one_gets_the_same(qkv):
    with ThreadPoolExecutor(1) as other:
        got = other.submit(fa3.attention, *qkv).result()
    assert torch.equal(got, fa3.attention(*qkv))


def test_a_tensor_without_memory_of_its_own_is_left_to_the_dispatcher(qkv):
    q, k, v = qkv
    with pytest.raises(fa3.InvalidArgument, match="k: expected a tensor with strides"):
        fa3.attention(q, k.to_sparse(), v)
    vmap = pytest.importorskip("torch._vmap_internals")._vmap  # not functorch's
    expected = fa3.attention(q, k, v)
    actual = vmap(lambda a: fa3.attention(a, k, v))(torch.stack([q, q]))
    assert torch.equal(actual, torch.stack([expected, expected]))


def test_vmap_over_the_last_dimension_says_what_to_do(qkv):
    (q, _, _) = (a.detach() for a in qkv)
    examples = torch.stack([q, q], -1)
    with pytest.raises(fa3.InvalidArgument, match=r"contiguous, in torch by contiguous\(\)"):
        torch.vmap(lambda q: fa3.attention(q, q, q), in_dims=-1)(examples)
    found = torch.vmap(lambda q: fa3.attention(*[q.contiguous()] * 3), in_dims=-1)(examples)
    assert torch.equal(found[1], fa3.attention(q, q, q))


def test_forward_mode_derivatives_are_refused_not_zero(qkv):
    q, k, v = (a.detach() for a in qkv)
    expected = fa3.attention(q, k, v)
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(fa3.attention(q, k, v), expected)
        for position in range(3):
            call = [q, k, v]
            tangent = torch.ones_like(call[position])
            call[position] = torch.autograd.forward_ad.make_dual(call[position], tangent)
            with pytest.raises(fa3.Unsupported, match="forward-mode"):
                fa3.attention(*call)
    for attend in (fa3.attention, torch.vmap(fa3.attention)):
        lifted = [q, k, v] if attend is fa3.attention else [a[:, None] for a in (q, k, v)]
        with pytest.raises(fa3.Unsupported, match="forward-mode"):
            torch.func.jvp(attend, tuple(lifted), tuple(map(torch.ones_like, lifted)))

# SPDX-License-Identifier: Apache-2.0
"""Lists of a block mask that stay between calls, on a GPU: results have the bits of calls that make
their own, and fewer kernels run. What stays until when: arrays/test_kept_lists.py."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import masks  # noqa: E402
from fa3.torch import disable_sdpa, enable_sdpa  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device on this machine", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("only the Hopper engine walks lists", allow_module_level=True)

ROWS, HEADS = 1000, 4
owner = torch.arange(ROWS, device="cuda") // 150


@pytest.fixture(autouse=True)
def keeps():
    masks.keep_lists(False)
    masks.keep_lists()
    yield
    masks.keep_lists()


def inputs(dim=128):
    torch.manual_seed(2)
    shape = 2, ROWS, HEADS, dim
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def documents(b, h, q, k):
    return owner[q] == owner[k]


def softcap(score, b, h, q, k):
    return 20 * torch.tanh(score / 20)


def mask_of_documents():
    return masks.from_rule(documents, 1, 1, ROWS, ROWS, device="cuda")


def calls():
    blocks, seen = mask_of_documents(), owner[:, None] == owner
    attend, flex = fa3.attention, fa3.flex_attention
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def by_sdpa(q, k, v):
        enable_sdpa()
        try:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return sdpa(q, k, v, attn_mask=seen).transpose(1, 2)
        finally:
            disable_sdpa()

    return {
        "attention": lambda *qkv: attend(*qkv, block_mask=blocks),
        "causal": lambda *qkv: attend(*qkv, block_mask=blocks, causal=True),
        "window": lambda *qkv: attend(*qkv, block_mask=blocks, window=(200, 40)),
        "flex, a block mask": lambda *qkv: flex(*qkv, block_mask=blocks),
        "flex, a mask_mod": lambda *qkv: flex(*qkv, mask_mod=documents),
        "flex, with a softcap": lambda *qkv: flex(*qkv, mask_mod=documents, score_mod=softcap),
        "scaled_dot_product_attention": by_sdpa,
    }


def with_gradients(call, tensors):
    q, k, v = (x.detach().requires_grad_() for x in tensors)
    out = call(q, k, v)
    return out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))


def kernels_of_lists(run):
    """How many kernels that make or rank lists ran."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    names = "short_map_kernel", "row_lists_kernel", "column_lists_kernel", "rank_kernel"
    return sum(e.count for e in profile.key_averages() if any(name in e.key for name in names))


@pytest.mark.parametrize("name", calls())
@pytest.mark.parametrize("dim", [64, 128])
def test_results_have_the_bits_of_lists_made_in_the_call(name, dim):
    call, tensors = calls()[name], inputs(dim)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        masks.keep_lists(False)
        expected = with_gradients(call, tensors)
        expected_out = call(*tensors)
        masks.keep_lists()
        for _ in range(3):
            for got, want in zip(with_gradients(call, tensors), expected, strict=True):
                assert torch.equal(got, want)
            assert torch.equal(call(*tensors), expected_out)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", calls())
def test_no_kernel_makes_lists_from_the_third_step_on(name):
    call, tensors = calls()[name], inputs()
    for _ in range(2):
        with_gradients(call, tensors)
    assert kernels_of_lists(lambda: with_gradients(call, tensors)) == 0
    masks.keep_lists(False)
    assert kernels_of_lists(lambda: with_gradients(call, tensors)) == 2


def test_a_mask_that_is_written_to_has_new_lists():
    q, k, v = inputs()
    blocks, bits = mask_of_documents()
    for _ in range(2):
        fa3.attention(q, k, v, block_mask=(blocks, bits))
    blocks.fill_(masks.FULL)
    dense = fa3.attention(q, k, v)
    for _ in range(3):
        got = fa3.attention(q, k, v, block_mask=(blocks, bits))
        torch.testing.assert_close(got, dense, atol=0.02, rtol=0.02)
    hidden = torch.arange(blocks.numel(), device="cuda").view(blocks.shape) % 2 == 0
    blocks.masked_fill_(hidden, masks.HIDDEN)
    masks.keep_lists(False)
    expected = fa3.attention(q, k, v, block_mask=(blocks.clone(), bits))
    masks.keep_lists()
    for _ in range(3):
        assert torch.equal(fa3.attention(q, k, v, block_mask=(blocks, bits)), expected)


# And reads the mask when it runs.
def test_a_captured_graph_makes_its_own():
    q, k, v = inputs()
    blocks, bits = mask_of_documents()
    for _ in range(3):
        expected = fa3.attention(q, k, v, block_mask=(blocks, bits))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fa3.attention(q, k, v, block_mask=(blocks, bits))
    masks.keep_lists(False)  # lets go of what was kept
    others = [torch.full((1 << 16,), -1, device="cuda") for _ in range(20)]
    assert kernels_of_lists(graph.replay) == 1
    assert torch.equal(out, expected)
    blocks.fill_(masks.FULL)
    graph.replay()
    torch.testing.assert_close(out, fa3.attention(q, k, v), atol=0.02, rtol=0.02)
    del others


def test_streams_have_lists_of_their_own_and_run_at_once():
    q, k, v = inputs()
    mask = mask_of_documents()
    expected = fa3.attention(q, k, v, block_mask=mask)
    results = {}

    def run(number):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            results[number] = [fa3.attention(q, k, v, block_mask=mask) for _ in range(20)]
        stream.synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert all(torch.equal(out, expected) for outs in results.values() for out in outs)


def test_lists_go_with_their_mask():
    q, k, v = inputs()
    fa3.attention(q, k, v)
    before = torch.cuda.memory_allocated()
    mask = mask_of_documents()
    of_mask = torch.cuda.memory_allocated() - before
    for _ in range(3):
        fa3.attention(q, k, v, block_mask=mask)
    assert torch.cuda.memory_allocated() > before + of_mask
    del mask
    assert torch.cuda.memory_allocated() == before


def test_packed_sequences_make_their_own():
    q, k, v = (x.flatten(0, 1) for x in inputs())
    cu = torch.tensor([0, ROWS, 2 * ROWS], dtype=torch.int32, device="cuda")
    mask = mask_of_documents()
    lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": ROWS}
    lengths["max_seqlen_k"] = ROWS
    outs = [fa3.attention(q, k, v, block_mask=mask, **lengths) for _ in range(3)]
    assert all(torch.equal(out, outs[0]) for out in outs)
    call = lambda: fa3.attention(q, k, v, block_mask=mask, **lengths)  # noqa: E731
    assert kernels_of_lists(call) > 0

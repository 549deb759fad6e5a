# SPDX-License-Identifier: Apache-2.0
"""fa3.mla on a GPU: what engine reference gives on the CPU, and sentences for what is not there."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import mla  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device on this machine", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("fa3.mla has GPU kernels for H100 and H200 alone", allow_module_level=True)


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def filled_cache(rows, pages, page_size):
    x = random(pages * page_size, 576, seed=1)
    if rows == "latent":
        return x.view(pages, page_size, 576)
    cache = mla.empty_cache(pages, page_size, rows=rows, device="cpu")
    mla.append(cache, x[:, :512], x[:, 512:], slots=torch.arange(len(x)), scaling="exact")
    return cache


def on_gpu(x):
    """Of a cache with its strides."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_contiguous():
        return x.cuda()
    storage = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).cuda()
    return storage.as_strided(x.shape, x.stride())


def check(q, cache, **call):
    """Both ways; returns the results on the GPU."""
    call = {"return_lse": True, "return_max": True, **call}
    expected = mla.attention(q.float(), cache, **call, engine="reference")
    found = mla.attention(on_gpu(q), on_gpu(cache), **{k: on_gpu(v) for k, v in call.items()})
    assert all(x.is_cuda for x in found)
    torch.testing.assert_close(found[0].cpu().float(), expected[0], rtol=2**-6, atol=2**-7)
    for ours, right in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(ours.cpu(), right, rtol=2e-5, atol=1e-4)
    return found


every_row = pytest.mark.parametrize("rows", ["latent", "group128"])


@every_row
@pytest.mark.parametrize("page_size, heads, tokens", [(64, 16, 1), (1, 8, 2), (53, 128, 3)])
def test_dense_calls_are_what_the_reference_gives(rows, page_size, heads, tokens):
    lengths = torch.tensor([0, 1, 640, 700], dtype=torch.int32)
    each = -(-700 // page_size)
    cache = filled_cache(rows, 2 * each, page_size)
    table = torch.randint(0, 2 * each, (4, each), generator=torch.Generator().manual_seed(2)).int()
    q = random(4, tokens, heads, 576, seed=3)
    check(q, cache, page_table=table, seqused_k=lengths, causal=True)


@every_row
def test_selected_rows_are_what_the_reference_gives(rows):
    cache = filled_cache(rows, 20, 64)
    indices = torch.randint(-1, 1300, (3, 2, 300), generator=torch.Generator().manual_seed(4)).int()
    indices[2] = -1
    counts = torch.tensor([[300, 65], [0, 299], [300, 300]], dtype=torch.int32)
    sink = torch.tensor([0.5, -torch.inf, torch.inf, 1e4])
    call = {"indices": indices, "index_count": counts, "sink": sink, "lse_with_sink": False}
    check(random(3, 2, 4, 576, seed=5), cache, **call, empty_lse=torch.inf)


def test_nan_bytes_of_a_row_stay_nan():
    cache = filled_cache("group128", 2, 64)
    cache[1, 3, 100] = 0x7F
    cache[1, 4, 511] = 0xFF
    indices = torch.tensor([[[1]], [[67]], [[68]]], dtype=torch.int32)
    out, *_ = mla.attention(
        random(3, 1, 16, 576).cuda(), cache.cuda(), indices=indices.cuda(), return_lse=True
    )
    assert out[0].isfinite().all() and out[1:].isnan().any((1, 2, 3)).all()


def test_scales_of_any_size_are_multiplied():
    cache = filled_cache("group128", 1, 4)
    for row, size in enumerate([0.0, 2.0**-126, 2.0**-140, 2.0**100]):
        cache[0, row, 512:528] = torch.full((4,), size).view(torch.uint8)
    indices = torch.arange(4, dtype=torch.int32).view(4, 1, 1)
    q = random(4, 1, 2, 576, seed=6)
    expected = mla.attention(q.float(), cache, indices=indices, engine="reference")
    out = mla.attention(q.cuda(), cache.cuda(), indices=indices.cuda())
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2**-7, atol=1e-36)


def test_a_sequence_has_the_same_bits_in_every_batch():
    cache = filled_cache("latent", 40, 16).cuda()
    table = torch.arange(40, dtype=torch.int32, device="cuda").view(4, 10)
    used = torch.tensor([160, 3, 77, 159], dtype=torch.int32, device="cuda")
    q = random(4, 1, 16, 576, seed=7).cuda()
    call = {"batch_invariant": True}
    together = mla.attention(q, cache, page_table=table, seqused_k=used, **call)
    for b in range(4):
        one = slice(b, b + 1)
        alone = mla.attention(q[one], cache, page_table=table[one], seqused_k=used[one], **call)
        assert torch.equal(alone, together[one])


def test_the_operator_is_the_function():
    cache = filled_cache("group128", 4, 64).cuda()
    indices = torch.randint(0, 256, (2, 1, 64), device="cuda").int()
    q = random(2, 1, 16, 576).cuda()

    def attend(q):
        return mla.attention(q * 2, cache, indices=indices, return_lse=True)

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)(q)
    for ours, right in zip(compiled, attend(q), strict=True):
        assert torch.equal(ours, right)


SCALES = torch.tensor([0.03, 0.07])
FORMATS = {"latent": {}, "group128": {}, "v4": {}, "tensor": {"descale": SCALES}, "token": {}}


def written(rows, call):
    """What append writes on the device of c_kv: all bytes of the cache, and the turned queries."""
    device = call["c_kv"].device
    if rows == "latent":
        cache = torch.zeros(4, 5, 576, dtype=torch.bfloat16, device=device)
    else:
        cache = mla.empty_cache(4, 5, rows=rows, device=device)
        torch.empty(0, dtype=torch.uint8, device=device).set_(cache.untyped_storage()).zero_()
    turned = mla.append(cache, **call, **{k: v.to(device) for k, v in FORMATS[rows].items()})
    return cache, turned


@pytest.mark.parametrize("pairs, interleaved", [(0, False), (32, True), (20, False)])
@pytest.mark.parametrize("scaling", ["pow2", "exact"])
@pytest.mark.parametrize("rows", FORMATS)
def test_appended_rows_have_the_bytes_of_the_cpu(rows, scaling, pairs, interleaved):
    if (rows, scaling) == ("v4", "exact"):
        pytest.skip("v4 rows have powers of two")
    wide = 448 if rows == "v4" else 512
    slots = torch.tensor([0, 19, -1, 7, 20, -(2**31), 3, 2**31 - 1, 8], dtype=torch.int32)
    call = {"c_kv": random(9, wide, seed=8) * 3, "k_pe": random(9, 64, seed=9), "slots": slots}
    if pairs:
        angles = torch.arange(40)[:, None] * 10000 ** (-torch.arange(pairs) / pairs)
        call |= {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
        call |= {"positions": torch.arange(9).int() * 4, "q_pe": random(9, 3, 64, seed=10)}
    plain = {"scaling": scaling, "rotary_interleaved": interleaved}
    expected, turned = written(rows, call | plain)
    found, turned_there = written(rows, {k: v.cuda() for k, v in call.items()} | plain)
    torch.cuda.synchronize()
    assert torch.equal(found.cpu().view(torch.uint8), expected.view(torch.uint8))
    assert turned is None or torch.equal(turned_there.cpu(), turned)
    options = {"rows": rows} | FORMATS[rows]
    for dtype in ("bfloat16", "float16", "float32"):
        right = mla.gather(expected, slots, dtype=dtype, **options)
        on_device = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        assert torch.equal(mla.gather(found, slots.cuda(), dtype=dtype, **on_device).cpu(), right)


def test_a_graph_appends_again():
    cache = mla.empty_cache(2, 64, rows="group128", device="cuda")
    cache.zero_()
    slots = torch.arange(4, dtype=torch.int32, device="cuda")
    x = random(4, 576).cuda()
    mla.append(cache, x[:, :512], x[:, 512:], slots=slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mla.append(cache, x[:, :512], x[:, 512:], slots=slots)
    slots += 70
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(cache[1, 6:10], cache[0, :4]) and cache[0, :4].any()


REFUSALS = {
    "v4": ({"cache": torch.zeros(1, 4, 584, dtype=torch.uint8)}, "got other rows of float8_e4m3"),
    "float32": ({"q": torch.zeros(1, 1, 2, 512)}, "q: expected float16 or bfloat16, got float32"),
    "types": ({"q": torch.zeros(1, 1, 2, 512).half()}, "rows of q's type, float16"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_has_no_kernel_is_refused_by_a_sentence(name):
    changed, sentence = REFUSALS[name]
    given = {"q": torch.zeros(1, 1, 2, 512).bfloat16(), "cache": torch.zeros(1, 4, 512).bfloat16()}
    given |= changed
    with pytest.raises(fa3.Unsupported, match=sentence):
        mla.attention(
            given["q"].cuda(),
            given["cache"].cuda(),
            indices=torch.zeros(1, 1, 1, dtype=torch.int32).cuda(),
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim, heads", [(576, 128), (576, 5), (512, 70)])
@pytest.mark.parametrize("with_sink", [None, False, True])
def test_gradients_of_chosen_rows_are_what_the_cpu_computes(dim, heads, with_sink, dtype):
    q, kv = random(2, 40, heads, dim).to(dtype), random(2, 90, dim, seed=1).to(dtype)
    do, dlse = random(2, 40, heads, 512, seed=2).to(dtype), random(2, heads, 40, seed=3).float()
    indices = torch.randint(-3, 95, (2, 40, 70), generator=torch.Generator().manual_seed(0))
    counts = torch.randint(0, 72, (2, 40), generator=torch.Generator().manual_seed(1)).int()
    leaves = [q, kv, *([] if with_sink is None else [random(heads, seed=4).float()])]

    def gradients(device, wide):
        own = [(x.float() if wide else x).to(device).requires_grad_() for x in leaves]
        out, lse = mla.sparse_attention(
            *own[:2],
            indices.to(device),
            index_count=counts.to(device),
            sink=own[2] if len(own) > 2 else None,
            lse_with_sink=with_sink is not False,
            causal=True,
            return_lse=True,
        )
        of = [do.to(device, out.dtype), dlse.to(device).where(lse.isfinite(), 0)]
        return [x.cpu().float() for x in torch.autograd.grad((out, lse), own, of)]

    for got, right in zip(gradients("cuda", False), gradients("cpu", True), strict=True):
        assert (got - right).norm() <= 0.01 * right.norm()


def test_deterministic_gradients_repeat_bit_by_bit():
    q, kv = random(300, 16, 576).cuda(), random(400, 576, seed=1).cuda()
    indices = torch.randint(400, (300, 200), device="cuda")
    leaves = [x.requires_grad_() for x in (q, kv)]

    def gradients(**options):
        out = mla.sparse_attention(*leaves, indices, **options)
        return torch.autograd.grad(out.square().sum(), leaves)

    first = gradients(deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(10):
            assert all(map(torch.equal, gradients(), first))
    finally:
        torch.use_deterministic_algorithms(False)
    for got, right in zip(gradients(), first, strict=True):
        torch.testing.assert_close(got, right, rtol=2**-6, atol=2**-6)


def test_gradients_on_a_stream_and_from_a_graph():
    q, kv = random(64, 16, 576).cuda(), random(200, 576, seed=1).cuda()
    indices = torch.randint(200, (64, 100), device="cuda")
    leaves = [x.requires_grad_() for x in (q, kv)]

    def gradients():
        return torch.autograd.grad(mla.sparse_attention(*leaves, indices).square().sum(), leaves)

    expected = gradients()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gradients()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients()
    for x in captured:
        x.fill_(torch.nan)
    graph.replay()
    for got, right in zip(captured, expected, strict=True):
        torch.testing.assert_close(got, right, rtol=2**-6, atol=2**-6)

# SPDX-License-Identifier: Apache-2.0
"""Caches: pages, entries, padding and appending, from Python; the same numbers elsewhere."""

import numpy as np
import pytest
from oracle import forward as oracle_forward

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat import flash_attn as fa2_names  # noqa: E402
from fa3.compat import flash_attn_interface as fa3_names  # noqa: E402

USED = [5, 17, 12]
PADDING = [0, 3, 12]


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def same_up_to_tiles(actual, expected):
    """Expects the same bits; on a GPU, where pages are read in other tiles, up to roundings to
    bfloat16."""
    rounding = 0.01 if expected[0].is_cuda else 0
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding)


def tensors(device, *shapes):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]


def numbers(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


class Pages:
    """A cache of shape (b, s, h, d) in pages; what is not in use is NaN, or leads nowhere."""

    def __init__(self, page_size, *caches):
        device, (batch, rows) = caches[0].device, caches[0].shape[:2]
        each = -(-rows // page_size)
        order = torch.randperm(batch * each + 2, generator=torch.Generator().manual_seed(1))
        self.table = order[: batch * each].view(batch, each).int().to(device)
        self.size = page_size
        self.caches = []
        for cache in caches:
            pages = cache.new_full((len(order), page_size, *cache.shape[2:]), torch.nan)
            for row in range(rows):
                pages[self.table[:, row // page_size].long(), row % page_size] = cache[:, row]
            self.caches.append(pages)
        self.table = torch.cat([self.table, self.table.new_full((batch, 1), 10**6)], dim=1)

    def rows(self, pages, count):
        at = [self.table[:, row // self.size].long() for row in range(count)]
        return torch.stack([pages[page, row % self.size] for row, page in enumerate(at)], dim=1)


@pytest.fixture
def cache(device):
    return tensors(device, (3, 2, 4, 16), (3, 20, 2, 16), (3, 20, 2, 8))


OPTIONS = [{}, {"causal": True}, {"window": (4, 1), "softcap": 3.0}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("page_size", [1, 4, 128])
def test_pages_change_no_bit(device, cache, page_size, options):
    q, k, v = cache
    used = numbers(USED, device)
    expected = fa3.attention(q, k, v, seqused_k=used, return_lse=True, **options)
    pages = Pages(page_size, k, v)
    call = {"seqused_k": used, "page_table": pages.table, "return_lse": True, **options}
    same_up_to_tiles(fa3.attention(q, *pages.caches, **call), expected)
    assert "engine" in fa3.plan(q, *pages.caches, seqused_k=used, page_table=pages.table)
    flipped = {**call, "page_table": pages.table.flip(0), "batch_index": numbers([2, 1, 0], device)}
    same_up_to_tiles(fa3.attention(q, *pages.caches, **flipped), expected)


float8_caches = pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)


def with_scales(device, dtype):
    """A cache of (3, 90) rows in float8, and a scale for each sequence and head."""
    k, v = (x.float().to(dtype) for x in tensors(device, *[(3, 90, 2, 64)] * 2))
    scales = [torch.rand(3, 2, device=device) + 0.1 for _ in range(2)]
    return k, v, dict(zip(("k_descale", "v_descale"), scales, strict=True))


@float8_caches
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_quantized_cache_is_the_cache_that_its_numbers_stand_for(device, options, dtype):
    k, v, scales = with_scales(device, dtype)
    (q,) = tensors(device, (3, 4, 4, 64))
    named = {"seqused_k": numbers([70, 90, 3], device), "return_lse": True, **options}
    out, lse = fa3.attention(q, k, v, **scales, **named)
    wide = [
        x.float() * scale[:, None, :, None]
        for x, scale in zip((k, v), scales.values(), strict=True)
    ]
    expected = fa3.attention(
        q.float().cpu(), *(x.cpu() for x in wide), **(named | {"seqused_k": numbers([70, 90, 3])})
    )
    rounding = 4e-3 if device == "cuda" else 1e-5
    torch.testing.assert_close(out.float().cpu(), expected[0], rtol=rounding, atol=rounding)
    torch.testing.assert_close(lse.cpu(), expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@float8_caches
@pytest.mark.parametrize("queries", [1, 4, 200])
def test_queries_over_a_quantized_cache_are_of_any_size(device, queries, options, dtype):
    k, v, scales = with_scales(device, dtype)
    q = tensors(device, (3, queries, 4, 64))[0].to(torch.bfloat16)
    call = {"return_lse": True, "v_descale": scales["v_descale"], **options}
    expected = fa3.attention(q, k, v, k_descale=scales["k_descale"], **call)
    for power in (2.0**-60, 2.0**-20, 2.0**20, 2.0**60):  # beyond fp16, or where it has few bits
        moved = fa3.attention(q * power, k, v, k_descale=scales["k_descale"] / power, **call)
        same(moved, expected)
    # A row of any numbers changes no other.
    for wild in (float("inf"), float("nan"), 3e38, 1e-38, 0.0):
        changed = q.clone()
        changed[0, 0, 1] = wild
        for ours, theirs in zip(
            fa3.attention(changed, k, v, k_descale=scales["k_descale"], **call),
            expected,
            strict=True,
        ):
            ours, theirs = (x.clone() for x in (ours, theirs))
            if ours.dim() == 4:
                ours[0, 0, 1] = theirs[0, 0, 1] = 0
            else:
                ours[0, 1, 0] = theirs[0, 1, 0] = 0
            same(ours, theirs)


@float8_caches
@pytest.mark.parametrize("page_size", [1, 4, 128])
def test_pages_of_float8_read_as_one_piece(device, page_size, dtype):
    k, v, scales = with_scales(device, dtype)
    (q,) = tensors(device, (3, 4, 4, 64))
    call = {"seqused_k": numbers([70, 90, 3], device), "return_lse": True, **scales}
    expected = fa3.attention(q, k, v, **call)
    pages = Pages(page_size, *(x.float() for x in (k, v)))
    caches = [x.to(dtype) for x in pages.caches]
    same_up_to_tiles(fa3.attention(q, *caches, page_table=pages.table, **call), expected)


@float8_caches
def test_append_quantizes_into_a_quantized_cache(device, dtype):
    k, v = tensors(device, *[(3, 4, 2, 64)] * 2)
    caches = [torch.zeros(3, 90, 2, 64, device=device).to(dtype) for _ in range(2)]
    scales = [torch.rand(3, 2, device=device) + 0.1, torch.full((1,), 0.5, device=device)]
    named = dict(zip(("k_descale", "v_descale"), scales, strict=True))
    fa3.append(*caches, k, v, seqused=numbers([0, 86, 7], device), **named)
    divisors = scales[0][:, None, :, None], scales[1]
    for cache, new, divisor in zip(caches, (k, v), divisors, strict=True):
        expected = torch.zeros_like(cache.float())
        for n, used in enumerate([0, 86, 7]):
            expected[n, used : used + 4] = (new.float() / divisor)[n]
        same(cache.float(), expected.to(dtype).float())


def test_append_saturates_finite_numbers_of_an_e5m2_cache(device):
    """Where torch's own conversion has infinity."""
    row = torch.tensor([57344.0, 61439.0, 61440.0, -1e30, torch.inf, -torch.inf, torch.nan, 2e-6])
    k = row.to(device).view(1, 1, 1, 8)
    caches = [torch.zeros(1, 4, 1, 8, device=device).to(torch.float8_e5m2) for _ in range(2)]
    fa3.append(*caches, k, k, seqused=numbers([2], device))
    expected = row.to(torch.float8_e5m2).float()
    expected[2:4] = torch.tensor([57344.0, -57344.0])
    for cache in caches:
        torch.testing.assert_close(
            cache[0, 2, 0].float().cpu(), expected, rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("name", ["q", "k"])
def test_e5m2_is_for_caches_alone(name):
    shape = (1, 4, 1, 16)
    q, k, v = (torch.zeros(shape).to(torch.float8_e5m2) for _ in range(3))
    if name == "k":
        q = q.to(torch.float8_e4m3fn)
    with pytest.raises(fa3.InvalidArgument, match=f"^{name}: expected .*got float8_e5m2"):
        fa3.attention(q, k, v)
    with pytest.raises(fa3.Unsupported, match="no gradients through float8_e5m2"):
        fa3.torch.attention(torch.zeros(shape, requires_grad=True), k, v)


def test_a_captured_step_follows_lengths_and_pages():
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    q, k, v = tensors("cuda", (3, 1, 8, 64), (3, 3000, 2, 64), (3, 3000, 2, 64))
    pages, used = Pages(16, k, v), numbers([1000, 3000, 17], "cuda")
    call = {"seqused_k": used, "page_table": pages.table, "causal": True}
    try:
        fa3.attention(q, *pages.caches, **call)
    except fa3.Unsupported as error:
        pytest.skip(str(error))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fa3.attention(q, *pages.caches, **call)
    for lengths in ([3000, 1, 16], [0, 2999, 640], [1, 1, 1], [1000, 3000, 17]):
        used.copy_(numbers(lengths))
        pages.table.copy_(pages.table.roll(1, 0))
        graph.replay()
        same(out, fa3.attention(q, *pages.caches, **call))


def test_numpy_reads_pages_too(cache_on_cpu):
    q, k, v = cache_on_cpu
    pages = Pages(4, k, v)
    call = {"seqused_k": numbers(USED), "page_table": pages.table}
    expected = fa3.attention(q, *pages.caches, **call).numpy()
    arrays = {name: tensor.numpy() for name, tensor in call.items()}
    got = fa3.attention(q.numpy(), *(a.numpy() for a in pages.caches), **arrays)
    np.testing.assert_array_equal(got, expected)


@pytest.fixture
def cache_on_cpu():
    return tensors("cpu", (3, 2, 4, 16), (3, 20, 2, 16), (3, 20, 2, 8))


def test_left_padding_and_entries_agree_with_the_oracle(cache_on_cpu):
    q, k, v = cache_on_cpu
    entries = [1, 1, 0]
    out = fa3.attention(
        q,
        k,
        v,
        causal=True,
        seqused_k=numbers(USED),
        left_padding=numbers(PADDING),
        batch_index=numbers(entries),
    )
    for n, (used, padding, entry) in enumerate(zip(USED, PADDING, entries, strict=True)):
        part = (k[entry, padding:used], v[entry, padding:used])
        arrays = (a[None].double().numpy() for a in (q[n], *part))
        expected, _ = oracle_forward(*arrays, causal=True)
        np.testing.assert_allclose(out[n].numpy(), expected[0], rtol=0, atol=1e-5)


def test_splits_change_rounding_alone(device):
    q, k, v = tensors(device, (1, 1, 4, 64), (1, 3000, 2, 64), (1, 3000, 2, 64))
    expected = fa3.attention(q, k, v)
    tolerance = {"rtol": 0, "atol": 2e-6 if device == "cpu" else 4e-3}
    for splits in (1, 3, 256):
        torch.testing.assert_close(fa3.attention(q, k, v, num_splits=splits), expected, **tolerance)


def test_no_gradient_goes_through_a_cache(cache_on_cpu):
    q, k, v = cache_on_cpu
    q.requires_grad_()
    with pytest.raises(fa3.Unsupported, match="no gradient goes through a cache"):
        fa3.attention(q, k, v, batch_index=numbers([0, 1, 2]))
    with torch.no_grad():
        assert not fa3.attention(q, k, v, batch_index=numbers([0, 1, 2])).requires_grad


def test_hostile_numbers_are_named(cache_on_cpu):
    q, k, v = cache_on_cpu
    pages = Pages(4, k, v)
    call = {"seqused_k": numbers(USED), "page_table": pages.table}
    pages.table[1, 4] = -3
    with pytest.raises(fa3.InvalidArgument, match=r"page_table: .*\(1, 4\).*sequence 1.*got -3"):
        fa3.attention(q, *pages.caches, **call)
    with pytest.raises(fa3.InvalidArgument, match=r"page_table: .*\(1, 4\).*got -3"):
        fa3.validate(q, *pages.caches, **call)
    pages.table[1, 4:] = 10**9
    with pytest.raises(fa3.InvalidArgument, match="page_table: .*got 1000000000"):
        fa3.attention(q, *pages.caches, **call)
    call["seqused_k"] = numbers([5, 16, 12])  # now nobody follows that number
    fa3.validate(q, *pages.caches, **call)
    assert torch.isfinite(fa3.attention(q, *pages.caches, **call)).all()
    with pytest.raises(TypeError, match="page_table: expected a torch.Tensor"):
        fa3.attention(q, *pages.caches, page_table=[[0]])


def test_the_operator_passes_opcheck_and_compiles_with_pages(cache_on_cpu):
    q, k, v = cache_on_cpu
    pages = Pages(4, k, v)
    call = {"seqused_k": numbers(USED), "page_table": pages.table}
    torch.library.opcheck(torch.ops.fa3.forward.default, (q, *pages.caches), call)

    def model(q, k, v):
        return fa3.attention(q * 2, k, v, causal=True, **call) + 1

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    same(compiled(q, *pages.caches), model(q, *pages.caches))


def turn(x, cos, sin, interleaved):
    """A rotary embedding in float64. x (rows, heads, d), cos and sin (rows, pairs)."""
    out = x.double().clone()
    pairs = cos.shape[1]
    for i in range(pairs):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
        c, s = (t[:, None, i].double() for t in (cos, sin))
        out[..., a] = x[..., a] * c - x[..., b] * s
        out[..., b] = x[..., a] * s + x[..., b] * c
    return out.to(x.dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [3, 8])
@pytest.mark.parametrize("page_size", [None, 1, 6])
@pytest.mark.parametrize("module", [fa3_names, fa2_names], ids=["fa3", "fa2"])
def test_kvcache_appends_turned_rows(module, page_size, pairs, interleaved, causal):
    q, k_cache, v_cache, k, v, angle = tensors(
        "cpu",
        (3, 4, 4, 16),
        (3, 20, 2, 16),
        (3, 20, 2, 8),
        (3, 3, 2, 16),
        (3, 3, 2, 8),
        (32, pairs),
    )
    cos, sin = angle.cos(), angle.sin()
    call = {"cache_seqlens": numbers(USED), "causal": causal, "rotary_cos": cos, "rotary_sin": sin}
    call |= {"rotary_interleaved": interleaved, "cache_leftpad": numbers([1, 0, 5])}
    caches = [k_cache.clone(), v_cache.clone()]
    if page_size is not None:
        pages = Pages(page_size, *caches)
        caches = pages.caches
        call["page_table" if module is fa3_names else "block_table"] = pages.table
    before = [x.clone() for x in caches]
    out = module.flash_attn_with_kvcache(q, *caches, k, v, **call)

    turned = q.clone()
    for n, used in enumerate(USED):
        rows = torch.arange(used, used + 3)
        k_cache[n, rows] = turn(k[n], cos[rows], sin[rows], interleaved)
        v_cache[n, rows] = v[n]
        at = used + torch.arange(4) if causal else torch.full((4,), used)
        turned[n] = turn(q[n], cos[at], sin[at], interleaved)
    if page_size is not None:
        assert any(not torch.equal(a, b) for a, b in zip(caches, before, strict=True))
        caches = [pages.rows(x, 20) for x in caches]
    torch.testing.assert_close(caches[0], k_cache, rtol=0, atol=2e-6)
    same(caches[1], v_cache)
    lengths = {"seqused_k": numbers(USED) + 3, "left_padding": numbers([1, 0, 5])}
    expected = fa3.attention(turned, k_cache, v_cache, causal=causal, **lengths)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


def test_packed_new_rows_and_queries(cache_on_cpu):
    _, k_cache, v_cache = cache_on_cpu
    q, k, v = tensors("cpu", (6, 4, 16), (5, 2, 16), (5, 2, 8))
    cu_q, cu_new = numbers([0, 1, 4, 6]), numbers([0, 2, 2, 5])
    caches = [k_cache.clone(), v_cache.clone()]
    out = fa3_names.flash_attn_with_kvcache(
        q,
        *caches,
        k,
        v,
        cache_seqlens=numbers(USED),
        cu_seqlens_q=cu_q,
        cu_seqlens_k_new=cu_new,
        max_seqlen_q=3,
        causal=True,
    )
    for n, used in enumerate(USED):
        new = slice(int(cu_new[n]), int(cu_new[n + 1]))
        total = used + new.stop - new.start
        k_cache[n, used:total], v_cache[n, used:total] = k[new], v[new]
        mine = slice(int(cu_q[n]), int(cu_q[n + 1]))
        part = (q[None, mine], k_cache[None, n, :total], v_cache[None, n, :total])
        same(out[mine], fa3.attention(*part, causal=True)[0])
    same(caches, [k_cache, v_cache])


def test_a_refused_append_names_the_argument_and_changes_nothing(cache_on_cpu):
    q, k_cache, v_cache = cache_on_cpu
    k, v, angle = tensors("cpu", (3, 3, 2, 16), (3, 3, 2, 8), (18, 4))
    caches = [k_cache.clone(), v_cache.clone()]
    call = {"cache_seqlens": numbers(USED), "causal": True}
    for change, words in [
        (
            {"rotary_cos": angle, "rotary_sin": angle},
            "rotary_cos: .*17 to 19 of sequence 1, got 18",
        ),
        ({"rotary_cos": angle}, "rotary_cos, rotary_sin: expected both"),
        (
            {"rotary_cos": angle.half(), "rotary_sin": angle.half()},
            "^rotary_cos: expected float32, got float16",
        ),
        ({"cache_leftpad": numbers([0, 0, 16])}, "cache_leftpad: .*sequence 2"),
        ({"cache_batch_idx": numbers([0, 3, 1])}, "cache_batch_idx: .*sequence 1, got 3"),
    ]:
        with pytest.raises(fa3.InvalidArgument, match=words):
            fa3_names.flash_attn_with_kvcache(q, *caches, k, v, **call, **change)
    same(caches, [k_cache, v_cache])


def test_lengths_and_tables_of_64_bits_are_those_of_32(device):
    """The integers that torch makes unless told otherwise."""
    q, k, v = tensors(device, (3, 2, 4, 16), (3, 20, 2, 16), (3, 20, 2, 16))
    pages = Pages(4, k, v)
    call = {"page_table": pages.table, "seqused_k": numbers(USED, device)}
    call["batch_index"] = numbers([2, 0, 1], device)
    packed_q = {"cu_seqlens_q": numbers([0, 2, 4, 6], device), "max_seqlen_q": 2}
    wide = {name: x.long() for name, x in call.items()}
    same(fa3.attention(q, *pages.caches, **wide), fa3.attention(q, *pages.caches, **call))
    bias = torch.ones(20 + 4, device=device)
    biased = [fa3.attention(q, *pages.caches, bias=bias, **x) for x in (wide, call)]
    same(*biased)
    scores = lambda s, b, h, i, j: s * 0.5 + j  # noqa: E731
    same(*(fa3.flex_attention(q, *pages.caches, score_mod=scores, **x) for x in (wide, call)))
    keys = {"cu_seqlens_k": numbers([0, 5, 22, 34], device), "max_seqlen_k": 17}
    given = packed_q | keys
    wide = {name: x.long() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    rows = q.flatten(0, 1), k.flatten(0, 1)[:34], v.flatten(0, 1)[:34]
    same(fa3.attention(*rows, **wide), fa3.attention(*rows, **given))
    compiled = torch.compile(fa3.attention, fullgraph=True, backend="eager")
    same(compiled(*rows, **wide), fa3.attention(*rows, **given))
    lengths = {"cu_seqlens": keys["cu_seqlens_k"].long(), "max_seqlen": 17}
    assert fa3.quantize(rows[1], **lengths).descale.shape[0] == 3
    new = tensors(device, (3, 1, 2, 16), (3, 1, 2, 16))
    caches = [[x.clone() for x in (k, v)] for _ in range(2)]
    for cache, kind in zip(caches, (torch.int64, torch.int32), strict=True):
        fa3.append(*cache, *new, seqused=numbers(USED, device).to(kind))
    same(*caches)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (30, 5)}], ids=str)
def test_a_batch_that_shares_its_keys_may_name_their_entry(device, options):
    """An expanded entry has no tensor map on Hopper; batch_index names it without a copy."""
    q, k, v = tensors(device, (3, 20, 4, 64), (1, 150, 2, 64), (1, 150, 2, 64))
    expanded = fa3.attention(q, k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1), **options)
    named = fa3.attention(q, k, v, batch_index=numbers([0, 0, 0], device), **options)
    same_up_to_tiles([named], [expanded])

# SPDX-License-Identifier: Apache-2.0
"""The names of the flash_attn packages: their signatures as recorded, their results as fa3's."""

import inspect

import pytest
from checks import signature_of

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat import flash_attn as fa2_names  # noqa: E402
from fa3.compat import flash_attn_interface as fa3_names  # noqa: E402

DESCALES = "q_descale=None, k_descale=None, v_descale=None, "
WINDOW = "window_size=(-1, -1), "
PACKED = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, "
FA3_HEAD = "softmax_scale=None, causal=False, "
FA3_TAIL = (
    f"{FA3_HEAD}qv=None, {DESCALES}{WINDOW}attention_chunk=0, softcap=0.0, num_splits=1, "
    "pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False"
)
SINKS = ", *, s_aux=None"  # the original has none
FA2_TAIL = (
    f"dropout_p=0.0, softmax_scale=None, causal=False, {WINDOW}softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False"
)

# From hopper/flash_attn_interface.py and flash_attn/flash_attn_interface.py of flash-attention,
# as of August 2026, without annotations.
RECORDED = {
    fa3_names: {
        "flash_attn_func": f"q, k, v, {FA3_TAIL}{SINKS}",
        "flash_attn_varlen_func": f"q, k, v, {PACKED}seqused_q=None, seqused_k=None, "
        f"{FA3_TAIL}{SINKS}",
        "flash_attn_qkvpacked_func": f"qkv, {FA3_HEAD}{DESCALES}{WINDOW}attention_chunk=0, "
        "softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, return_attn_probs=False",
        "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, "
        "rotary_sin=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, "
        "page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, "
        f"rotary_seqlens=None, {DESCALES}{FA3_HEAD}{WINDOW}attention_chunk=0, softcap=0.0, "
        "rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, "
        f"sm_margin=0, return_softmax_lse=False{SINKS}",
        "flash_attn_combine": "out_partial, lse_partial, out=None, out_dtype=None",
        "get_scheduler_metadata": "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, "
        "num_heads_kv, headdim, cache_seqlens, qkv_dtype=torch.bfloat16, headdim_v=None, "
        "cu_seqlens_q=None, cu_seqlens_k_new=None, cache_leftpad=None, page_size=None, "
        f"max_seqlen_k_new=0, causal=False, {WINDOW}attention_chunk=0, has_softcap=False, "
        "num_splits=0, pack_gqa=None, sm_margin=0",
    },
    fa2_names: {
        "flash_attn_func": f"q, k, v, {FA2_TAIL}",
        "flash_attn_kvpacked_func": f"q, kv, {FA2_TAIL}",
        "flash_attn_qkvpacked_func": f"qkv, {FA2_TAIL}",
        "flash_attn_varlen_func": f"q, k, v, {PACKED}{FA2_TAIL}, block_table=None",
        "flash_attn_varlen_kvpacked_func": f"q, kv, {PACKED}{FA2_TAIL}",
        "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {FA2_TAIL}",
        "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, "
        "rotary_sin=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, "
        f"block_table=None, {FA3_HEAD}{WINDOW}softcap=0.0, rotary_interleaved=True, "
        "alibi_slopes=None, num_splits=0, return_softmax_lse=False",
    },
}
OPTIONS = {"softmax_scale": 0.3, "causal": True, "window_size": (5, 0), "softcap": 2.0}
EVERY = [(module, name) for module, names in RECORDED.items() for name in names]


@pytest.mark.parametrize(
    "module, name", EVERY, ids=[f"{m.__name__.split('.')[-1]}.{n}" for m, n in EVERY]
)
def test_signature_is_the_recorded_one(module, name):
    assert signature_of(getattr(module, name)) == f"({RECORDED[module][name]})"


@pytest.mark.parametrize("module", RECORDED, ids=["fa3", "fa2"])
def test_every_function_of_the_module_is_recorded(module):
    written = {
        name
        for name, value in vars(module).items()
        if name.startswith(("flash_attn", "get_")) and inspect.isfunction(value)
    }
    assert written == set(RECORDED[module])


def tensors(device, *shapes):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.fixture
def qkv(device):
    return tensors(device, (2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 16))


def test_fa3_func_passes_every_option_on(qkv):
    q, k, v = qkv
    expected, lse = fa3.attention(
        q, k, v, scale=0.3, causal=True, window=(5, -1), softcap=2.0, return_lse=True
    )
    out = fa3_names.flash_attn_func(
        q, k, v, 0.3, True, window_size=(5, None), softcap=2.0, num_splits=0, pack_gqa=True
    )
    same(out, expected)
    pair = fa3_names.flash_attn_func(
        q, k, v, 0.3, True, window_size=(5, -3), softcap=2.0, return_attn_probs=True
    )
    same(pair, (expected, lse))


def test_fa3_functions_take_chunks(qkv):
    q, k, v = qkv
    chunked = {"causal": True, "attention_chunk": 5}
    expected = fa3.attention(q, k, v, **chunked)
    assert not torch.equal(expected, fa3.attention(q, k, v, causal=True))
    same(fa3_names.flash_attn_func(q, k, v, **chunked), expected)
    same(fa3_names.flash_attn_with_kvcache(q, k, v, **chunked), expected)
    same(fa3_names.flash_attn_func(q, k, v, attention_chunk=-1), fa3.attention(q, k, v))
    cu_q, cu_k = (
        torch.arange(0, 3 * s, s, dtype=torch.int32, device=q.device)
        for s in (q.shape[1], k.shape[1])
    )
    flat = [x.flatten(0, 1) for x in qkv]
    out = fa3_names.flash_attn_varlen_func(*flat, cu_q, cu_k, q.shape[1], k.shape[1], **chunked)
    same(out.view_as(expected), expected)
    qkv = torch.stack([q, q, q], 2)
    same(
        fa3_names.flash_attn_qkvpacked_func(qkv, **chunked),
        fa3.attention(q, q, q, **chunked),
    )


def test_chunks_alone_turn_the_queries_of_a_cache_like_windows(device):
    q, k_cache, v_cache, k, v = tensors(
        "cpu", (1, 3, 2, 8), (1, 9, 2, 8), (1, 9, 2, 8), (1, 3, 2, 8), (1, 3, 2, 8)
    )
    angles = torch.rand(9, 4)
    rotary = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "cache_seqlens": 2}
    outs = [
        fa3_names.flash_attn_with_kvcache(
            q, k_cache.clone(), v_cache.clone(), k, v, **rotary, **mask
        )
        for mask in ({"attention_chunk": 9}, {"window_size": (9, 9)}, {})
    ]
    same(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_fp8_inputs_may_ask_for_gradients_and_get_none(qkv):
    q, k, v = (x.to(torch.float8_e4m3fn).requires_grad_() for x in qkv)
    with torch.no_grad():
        expected = fa3.attention(q, k, v)
    out = fa3_names.flash_attn_func(q, k, v)
    same(out, expected)
    assert not out.requires_grad


def test_fa2_func_has_dropout_in_fourth_place(qkv):
    q, k, v = qkv
    expected, lse = fa3.attention(q, k, v, scale=0.3, causal=True, return_lse=True)
    same(fa2_names.flash_attn_func(q, k, v, 0.0, 0.3, True), expected)
    out, same_lse, probabilities = fa2_names.flash_attn_func(
        q, k, v, 0.0, 0.3, True, return_attn_probs=True
    )
    same((out, same_lse), (expected, lse))
    assert probabilities is None


@pytest.mark.parametrize("module", RECORDED, ids=["fa3", "fa2"])
def test_gradients_reach_packed_inputs(device, module):
    (qkv,) = tensors(device, (2, 9, 3, 4, 16))
    qkv.requires_grad_()
    module.flash_attn_qkvpacked_func(qkv, causal=True).square().sum().backward()
    leaves = [part.detach().requires_grad_() for part in qkv.unbind(2)]
    fa3.attention(*leaves, causal=True).square().sum().backward()
    same(qkv.grad, torch.stack([leaf.grad for leaf in leaves], dim=2))


@pytest.mark.parametrize("module", RECORDED, ids=["fa3", "fa2"])
def test_the_lse_has_a_gradient(device, module):
    leaves = [a.requires_grad_() for a in tensors(device, *[(2, 9, 4, 16)] * 3)]
    _, lse, *_ = module.flash_attn_func(*leaves, return_attn_probs=True)
    _, expected = fa3.attention(*leaves, return_lse=True)
    for ours, theirs in zip(
        *(torch.autograd.grad(x.sum(), leaves) for x in (lse, expected)), strict=True
    ):
        same(ours, theirs)


def test_qkv_of_grouped_heads_needs_the_number_of_query_heads(device):
    (qkv,) = tensors(device, (2, 9, 8, 16))
    q, k, v = qkv.split([4, 2, 2], dim=2)
    same(fa3_names.flash_attn_qkvpacked_func(qkv, num_heads_q=4), fa3.attention(q, k, v))
    with pytest.raises(fa3.InvalidArgument, match="num_heads_q"):
        fa3_names.flash_attn_qkvpacked_func(qkv)


def test_packed_forms_take_the_rest_by_position_and_refuse_unknown_names(device):
    q, kv = tensors(device, (2, 9, 2, 16), (2, 12, 2, 2, 16))
    rest = (0.0, 0.3, True, (5, 0), 2.0)
    expected = fa2_names.flash_attn_func(q, *kv.unbind(2), *rest)
    same(fa2_names.flash_attn_kvpacked_func(q, kv, *rest), expected)
    same(fa2_names.flash_attn_kvpacked_func(kv=kv, q=q, dropout_p=0.0, **OPTIONS), expected)
    with pytest.raises(TypeError, match="casual"):
        fa2_names.flash_attn_kvpacked_func(q, kv, casual=True)


def test_varlen_forms_agree(device):
    q, kv = tensors(device, (12, 2, 16), (12, 2, 2, 16))
    k, v = kv.unbind(1)
    cu = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    longest = torch.tensor(7)
    packing = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 7, "max_seqlen_k": 7}
    expected = fa3.attention(q, k, v, causal=True, **packing)
    lengths = (cu, cu, longest, longest)
    same(fa3_names.flash_attn_varlen_func(q, k, v, *lengths, causal=True), expected)
    same(fa2_names.flash_attn_varlen_func(q, k, v, *lengths, causal=True), expected)
    same(fa2_names.flash_attn_varlen_kvpacked_func(q, kv, *lengths, causal=True), expected)
    qkv = torch.stack([q, k, v], dim=1)
    same(fa2_names.flash_attn_varlen_qkvpacked_func(qkv, cu, 7, causal=True), expected)


@pytest.mark.parametrize("module", RECORDED, ids=["fa3", "fa2"])
def test_kvcache_appends_in_place_and_attends_to_what_is_used(device, module):
    q, k_cache, v_cache, k, v = tensors(
        device, (2, 3, 4, 16), (2, 20, 2, 16), (2, 20, 2, 16), (2, 3, 2, 16), (2, 3, 2, 16)
    )
    used = torch.tensor([5, 11], dtype=torch.int32, device=device)
    before = k_cache.clone()
    out, lse = module.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=used, causal=True, return_softmax_lse=True
    )
    same(k_cache[0, 5:8], k[0])
    same(v_cache[1, 11:14], v[1])
    same(k_cache[0, 8:], before[0, 8:])
    for row, total in enumerate((8, 14)):
        part = (q[row : row + 1], k_cache[row : row + 1, :total], v_cache[row : row + 1, :total])
        same(
            (out[row : row + 1], lse[row : row + 1]),
            fa3.attention(*part, causal=True, return_lse=True),
        )
    again = module.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=8)
    same(again[0], fa3.attention(q, k_cache[:, :8], v_cache[:, :8])[0])
    with pytest.raises(fa3.InvalidArgument, match="cache_seqlens"):
        module.flash_attn_with_kvcache(q, k_cache, v_cache, k, v)


def test_kvcache_without_room_is_refused():
    q, cache, new = tensors("cpu", (1, 3, 2, 8), (1, 4, 2, 8), (1, 3, 2, 8))
    with pytest.raises(fa3.InvalidArgument, match="cache_seqlens, with the .*4.*, got 5"):
        fa3_names.flash_attn_with_kvcache(q, cache, cache.clone(), new, new, cache_seqlens=2)


def lengths(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    "change, error, words",
    [
        (
            {"cache_seqlens": -1},
            fa3.InvalidArgument,
            "cache_seqlens: expected a length .*, got -1",
        ),
        ({"cache_seqlens": lengths(1, -1)}, fa3.InvalidArgument, "cache_seqlens: .*, got -1"),
        (
            {"cache_seqlens": lengths(1, 3)},
            fa3.InvalidArgument,
            r"cache_seqlens, with the new rows: .*\[0, 5\].*got 6",
        ),
        ({"cache_seqlens": lengths(1)}, fa3.InvalidArgument, r"cache_seqlens: .*\(2,\)"),
        (
            {"cache_seqlens": lengths(1, 1, dtype=torch.int64)},
            fa3.InvalidArgument,
            "cache_seqlens: expected .*int32.*got torch.int64",
        ),
        ({"cache_seqlens": [1, 1]}, fa3.InvalidArgument, "cache_seqlens: expected an int or"),
        ({"v": None}, fa3.InvalidArgument, "k, v: expected both or neither"),
        ({"k": None}, fa3.InvalidArgument, "k, v: expected both or neither"),
        ({"k": torch.ones(2, 3, 1, 8)}, fa3.InvalidArgument, "k: .*heads of k_cache = 2 .*got 1"),
        ({"k": torch.ones(1, 3, 2, 8)}, fa3.InvalidArgument, "k: expected batch = 2 .*got 1"),
        ({"v": torch.ones(2, 1, 2, 8)}, fa3.InvalidArgument, "v: expected seq = 3"),
        ({"k": torch.ones(2, 3, 2, 8).half()}, fa3.InvalidArgument, "k: .*dtype of k_cache"),
        # What only the attention refuses:
        ({"softmax_scale": -1.0}, fa3.InvalidArgument, "scale: expected"),
        ({"q": torch.ones(2, 3, 3, 8)}, fa3.InvalidArgument, "q: expected a number of query heads"),
        ({"q": torch.ones(3, 3, 2, 8)}, fa3.InvalidArgument, "k: expected batch = 3"),
        ({"q": torch.ones(2, 3, 2, 8).half()}, fa3.InvalidArgument, "k: expected the dtype of q"),
        ({"window_size": 3}, fa3.InvalidArgument, "window_size: expected"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("module", RECORDED, ids=["fa3", "fa2"])
def test_a_refused_call_leaves_the_caches_as_they_were(module, change, error, words):
    shapes = (2, 3, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8), (2, 3, 2, 8), (2, 3, 2, 8)
    q, k_cache, v_cache, k, v = tensors("cpu", *shapes)
    arguments = {"q": q, "k": k, "v": v, "cache_seqlens": 1} | change
    before = k_cache.clone(), v_cache.clone()
    with pytest.raises(error, match=words):
        module.flash_attn_with_kvcache(k_cache=k_cache, v_cache=v_cache, **arguments)
    same((k_cache, v_cache), before)


@pytest.mark.parametrize("module", RECORDED, ids=["fa3", "fa2"])
@pytest.mark.parametrize("batch, rows", [(0, 3), (2, 0)])
def test_kvcache_without_anything_to_append(module, batch, rows):
    q, cache, new = tensors("cpu", (batch, 3, 2, 8), (batch, 5, 2, 8), (batch, rows, 2, 8))
    out = module.flash_attn_with_kvcache(q, cache, cache.clone(), new, new, cache_seqlens=1)
    same(out, fa3.attention(q, cache[:, :1], cache[:, :1]))


def test_negative_lengths_without_new_rows_are_refused():
    q, cache = tensors("cpu", (1, 3, 2, 8), (1, 4, 2, 8))
    with pytest.raises(fa3.InvalidArgument, match="cache_seqlens, .*-1"):
        fa3_names.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=-1)


def test_combine_merges_disjoint_keys(device):
    q, k, v = tensors(device, (2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 16))
    parts = [
        fa3.attention(q, k[:, rows], v[:, rows], return_lse=True)
        for rows in (slice(0, 5), slice(5, 12))
    ]
    o_partial = torch.stack([out.float() for out, _ in parts])
    lse_partial = torch.stack([lse.transpose(1, 2) for _, lse in parts])
    out, lse = fa3_names.flash_attn_combine(o_partial, lse_partial, out_dtype=q.dtype)
    expected, expected_lse = fa3.attention(q, k, v, return_lse=True)
    tolerance = {"rtol": 0, "atol": 2e-6 if device == "cpu" else 0.02}
    torch.testing.assert_close(out, expected, **tolerance)
    torch.testing.assert_close(lse, expected_lse.transpose(1, 2), **tolerance)


REFUSED = [
    (fa3_names.flash_attn_with_kvcache, {"rotary_cos": torch.ones(1)}, "rotary_cos: .*rotate"),
    (
        fa2_names.flash_attn_func,
        {"alibi_slopes": torch.ones(4), "dropout_p": 0.1, "return_attn_probs": True},
        "alibi_slopes: .*no S_dmask of ALiBi",
    ),
    (fa2_names.flash_attn_with_kvcache, {"rotary_cos": torch.ones(1)}, "rotary_cos: .*rotate"),
]


@pytest.mark.parametrize(
    "function, change, words", REFUSED, ids=[next(iter(change)) for _, change, _ in REFUSED]
)
def test_what_is_not_supported_is_refused_by_name(function, change, words):
    q, k, v = tensors("cpu", (2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 16))
    with pytest.raises(fa3.Unsupported, match=words):
        function(q, k, v, **change)


TAKES_MARGIN = [
    fa3_names.flash_attn_func,
    fa3_names.flash_attn_with_kvcache,
    fa3_names._flash_attn_forward,
]


@pytest.mark.parametrize("function", TAKES_MARGIN, ids=lambda x: x.__name__)
def test_sm_margin_is_passed_on(qkv, function):
    same(function(*qkv, sm_margin=3), function(*qkv))
    with pytest.raises(fa3.InvalidArgument, match="sm_margin: expected 0 to 1023 SMs, got -3"):
        function(*qkv, sm_margin=-3)


def test_sm_margin_reaches_packed_forms(device):
    (qkv,) = tensors(device, (1, 9, 3, 2, 16))
    same(
        fa3_names.flash_attn_qkvpacked_func(qkv, sm_margin=3),
        fa3_names.flash_attn_qkvpacked_func(qkv),
    )
    starts = torch.tensor([0, 9], dtype=torch.int32, device=device)
    for call in (
        lambda: fa3_names.flash_attn_qkvpacked_func(qkv, sm_margin=-3),
        lambda: fa3_names.flash_attn_varlen_func(
            *qkv[0].unbind(1), starts, starts, 9, 9, sm_margin=-3
        ),
    ):
        with pytest.raises(fa3.InvalidArgument, match="sm_margin"):
            call()


def test_scheduler_metadata_is_taken_back():
    q, cache = tensors("cpu", (2, 1, 2, 8), (2, 5, 2, 8))
    used = lengths(5, 2)
    metadata = fa3_names.get_scheduler_metadata(2, 1, 5, 2, 2, 8, used)
    call = {"cache_seqlens": used, "scheduler_metadata": metadata}
    expected = fa3.attention(q, cache, cache, seqused_k=used)
    for _ in range(2):
        same(fa3_names.flash_attn_with_kvcache(q, cache, cache, **call), expected)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (6, 1)])
@pytest.mark.parametrize("packed", [False, True])
def test_float8_takes_a_scale_for_each_sequence_and_key_head(heads, packed):
    heads_q, heads_k = heads
    q, k, v = tensors("cpu", (2, 33, heads_q, 32), (2, 65, heads_k, 32), (2, 65, heads_k, 32))
    scales = torch.rand(3, 2, heads_k) + 0.5
    names = "q_descale", "k_descale", "v_descale"
    small = [(a * 4).to(torch.float8_e4m3fn) for a in (q, k, v)]
    wide = [
        a.float() * scale.repeat_interleave(a.shape[2] // heads_k, 1)[:, None, :, None]
        for a, scale in zip(small, scales, strict=True)
    ]
    expected = fa3.attention(*wide, causal=True)
    named = dict(zip(names, scales, strict=True))
    if packed:
        starts = [torch.tensor([0, a.shape[1], 2 * a.shape[1]], dtype=torch.int32) for a in (q, k)]
        small = [a.flatten(0, 1) for a in small]
        out = fa3_names.flash_attn_varlen_func(*small, *starts, 33, 65, causal=True, **named)
        out = out.unflatten(0, (2, 33))
    else:
        out = fa3_names.flash_attn_func(*small, causal=True, **named)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.01, atol=0.01)


def test_a_quantized_cache_is_read_under_other_queries():
    q, k, v = tensors("cpu", (2, 1, 4, 64), (2, 90, 2, 64), (2, 90, 2, 64))
    k8, v8 = (fa3.quantize(a, scaling="head") for a in (k, v))
    used = torch.tensor([50, 90], dtype=torch.int32)
    named = {"cache_seqlens": used, "causal": True}
    out = fa3_names.flash_attn_with_kvcache(
        q, k8.x, v8.x, k_descale=k8.descale, v_descale=v8.descale, **named
    )
    expected = fa3_names.flash_attn_with_kvcache(q, k, v, **named)
    assert out.dtype == q.dtype
    torch.testing.assert_close(out, expected, rtol=0, atol=0.1)
    assert not torch.equal(out, expected)


def test_a_quantized_cache_grows_and_has_pages():
    q, k, v = tensors("cpu", (2, 1, 4, 64), (2, 90, 2, 64), (2, 90, 2, 64))
    k8, v8 = (fa3.quantize(a, scaling="head") for a in (k, v))
    named = {"cache_seqlens": lengths(50, 90), "k_descale": k8.descale, "v_descale": v8.descale}
    expected = fa3_names.flash_attn_with_kvcache(q, k8.x, v8.x, **named)
    caches = [torch.stack([a[1], a[0]]) for a in (k8.x, v8.x)]
    pages = torch.tensor([[1], [0]], dtype=torch.int32)
    out = fa3_names.flash_attn_with_kvcache(q, *caches, page_table=pages, **named)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    named["cache_seqlens"] = lengths(47, 80)
    out = fa3_names.flash_attn_with_kvcache(q, k8.x, v8.x, k[:, 47:50], v[:, 47:50], **named)
    torch.testing.assert_close(out[0], expected[0], rtol=0, atol=0)  # the rows that were there
    named["cache_seqlens"] = lengths(40, 80)
    new = [a[:, :9].clone() for a in (k8.x, v8.x)]  # float8 already: they enter as they are
    out = fa3_names.flash_attn_with_kvcache(q, k8.x, v8.x, *new, **named)
    for cache, rows in zip((k8.x, v8.x), new, strict=True):
        for n, used in enumerate((40, 80)):
            assert torch.equal(
                cache[n, used : used + 9].view(torch.uint8), rows[n].view(torch.uint8)
            )
    named["cache_seqlens"] = lengths(49, 89)
    expected = fa3_names.flash_attn_with_kvcache(q, k8.x, v8.x, **named)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


@pytest.mark.parametrize("interleaved", [False, True])
def test_float8_rows_and_queries_are_turned(interleaved):
    q, k, v, angle = tensors("cpu", (2, 3, 4, 32), (2, 3, 2, 32), (2, 3, 2, 32), (20, 16))
    small = [a.to(torch.float8_e4m3fn) for a in (q, k, v)]
    tables = [a.to(torch.float8_e4m3fn) for a in (angle.cos(), angle.sin())]
    how = {"cache_seqlens": lengths(7, 11), "rotary_interleaved": interleaved, "causal": True}

    def outcome(q, k, v, cos, sin):
        caches = [torch.zeros(2, 20, 2, 32).to(k.dtype) for _ in range(2)]
        out = fa3_names.flash_attn_with_kvcache(
            q, *caches, k, v, rotary_cos=cos, rotary_sin=sin, **how
        )
        return out.float(), *(cache.float() for cache in caches)

    out, k_cache, v_cache = outcome(*small, *tables)
    wide_out, wide_k, wide_v = outcome(*(a.float() for a in (*small, *tables)))
    torch.testing.assert_close(v_cache, wide_v, rtol=0, atol=0)
    torch.testing.assert_close(k_cache, wide_k.to(torch.float8_e4m3fn).float(), rtol=0, atol=0)
    torch.testing.assert_close(out, wide_out, rtol=0, atol=0.15)  # q and k rounded to four bits


def test_scales_of_other_types_are_refused():
    q, k, v = tensors("cpu", (2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 16))
    with pytest.raises(fa3.InvalidArgument, match="q_descale: expected it only with q in float8"):
        fa3_names.flash_attn_func(q, k, v, q_descale=torch.ones(2, 2))


def test_what_has_no_gradient_is_refused_in_backward_as_the_original_does(monkeypatch):
    def refuse(*_):
        raise fa3.Unsupported("no backward kernel")

    monkeypatch.setattr("fa3.torch.operators.refuse_without_backward", refuse)
    q, k, v = (a.requires_grad_() for a in tensors("cpu", *[(2, 9, 4, 16)] * 3))
    with pytest.raises(fa3.Unsupported, match="no backward kernel"):
        fa3.attention(q, k, v)
    out = fa3_names.flash_attn_func(q, k, v, causal=True)
    with torch.no_grad():
        assert torch.equal(out, fa3.attention(q, k, v, causal=True))
    with pytest.raises(fa3.Unsupported, match="no backward kernel"):
        out.sum().backward()

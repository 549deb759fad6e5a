# SPDX-License-Identifier: Apache-2.0
"""vLLM's and sglang's own calls of attention: as they make them, held to float64 and to fa3."""

import pytest
from checks import signature_of

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from serving_batch import (  # noqa: E402
    DIM,
    HEADS,
    HEADS_K,
    NEW,
    PAGE,
    USED,
    Batch,
    sglang_call,
    vllm_call,
)

from fa3.compat import sglang, vllm  # noqa: E402

DESCALES = "q_descale=None, k_descale=None, v_descale=None, "
SGLANG_TAIL = (
    "pack_gqa=None, only_qv=False, sm_margin=0, return_softmax_lse=False, sinks=None, "
    "score_mod=None, aux_tensors=None, ver=3, out=None"
)

# From vllm/vllm_flash_attn/flash_attn_interface.py of vLLM 0.33, and from sgl_kernel/flash_attn.py
# of sglang-kernel 0.4.10, without annotations.
RECORDED = {
    vllm.flash_attn_varlen_func: "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, "
    "cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0, softmax_scale=None, causal=False, "
    "window_size=None, softcap=0.0, alibi_slopes=None, deterministic=False, "
    "return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, "
    f"scheduler_metadata=None, {DESCALES}num_splits=0, output_scale=None, fa_version=2, "
    "s_aux=None, cp_world_size=1, cp_rank=0, cp_tot_seqused_k=None, mask_mod=None, "
    "block_sparse_tensors=None, aux_tensors=None, aux_tensor_leading_dims=None, "
    "dynamic_causal=None, gather_kv_indices=None, gather_kv_valid_length=None",
    vllm.compile_flash_attn_varlen_func_from_specs: "*, q_shape, k_shape, v_shape, q_dtype, "
    "v_stride=None, k_stride=None, cu_seqlens_q_shape=None, cu_seqlens_k_shape=None, "
    "max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0, softmax_scale=None, causal=False, "
    "window_size=None, deterministic=False, return_softmax_lse=False, num_splits=0, fa_version=2, "
    "seqused_k_shape=None, page_table_shape=None, softcap=None",
    vllm.get_scheduler_metadata: "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, "
    "num_heads_kv, headdim, cache_seqlens, qkv_dtype=torch.bfloat16, headdim_v=None, "
    "cu_seqlens_q=None, cu_seqlens_k_new=None, cache_leftpad=None, page_size=None, "
    "max_seqlen_k_new=0, causal=False, window_size=(-1, -1), has_softcap=False, num_splits=0, "
    "pack_gqa=None, sm_margin=0",
    sglang.flash_attn_with_kvcache: "q, k_cache, v_cache, k=None, v=None, qv=None, "
    "rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None, "
    "cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
    f"max_seqlen_q=None, rotary_seqlens=None, {DESCALES}softmax_scale=None, causal=False, "
    "window_size=(-1, -1), attention_chunk=None, softcap=0.0, rotary_interleaved=True, "
    f"scheduler_metadata=None, num_splits=0, {SGLANG_TAIL}",
    sglang.flash_attn_varlen_func: "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, "
    "max_seqlen_k=None, seqused_q=None, seqused_k=None, page_table=None, softmax_scale=None, "
    f"causal=False, qv=None, {DESCALES}window_size=(-1, -1), attention_chunk=0, softcap=0.0, "
    f"num_splits=1, {SGLANG_TAIL}",
    sglang.get_scheduler_metadata: "batch_size, max_seqlen_q, max_seqlen_k, num_heads, "
    "num_heads_k, headdim, cache_seqlens, qkv_dtype=torch.bfloat16, headdim_v=None, "
    "cu_seqlens_q=None, cu_seqlens_k=None, cu_seqlens_k_new=None, seqused_q=None, "
    "leftpad_k=None, page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), "
    "attention_chunk=0, has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0",
}


@pytest.mark.parametrize("function", RECORDED, ids=lambda x: f"{x.__module__}.{x.__name__}")
def test_signature_is_the_recorded_one(function):
    assert signature_of(function) == f"({RECORDED[function]})"


@pytest.fixture
def batch(device):
    return Batch(device)


MASKS = {
    "causal": ({}, {}, {"causal": True}),
    "bidirectional": ({"causal": False}, {"causal": False}, {}),
    "window": (
        {"window_size": [6, 0]},
        {"window_size": (6, 0)},
        {"causal": True, "window": (6, 0)},
    ),
    "half a window": (
        {"window_size": (None, 3), "causal": False},
        {"window_size": (-1, 3), "causal": False},
        {"window": (-1, 3)},
    ),
    "softcap": ({"softcap": 1.5}, {"softcap": 1.5}, {"causal": True, "softcap": 1.5}),
    "none": ({"softcap": None}, {"softcap": None, "attention_chunk": None}, {"causal": True}),
    "parts": ({"num_splits": 3}, {"num_splits": 3}, {"causal": True}),
    "scale": ({"softmax_scale": 0.2}, {"softmax_scale": 0.2}, {"causal": True, "scale": 0.2}),
}


@pytest.mark.parametrize("mask", MASKS)
def test_vllm_attends_to_pages(batch, mask):
    changes, _, options = MASKS[mask]
    out = torch.full_like(batch.q, float("nan"))
    result, lse = vllm_call(batch, **changes, out=out, return_softmax_lse=True)
    assert result is out
    for actual, expected in zip((out, lse), batch.expected(**options), strict=True):
        batch.close(actual, expected)


@pytest.mark.parametrize("mask", MASKS)
def test_sglang_attends_to_pages(batch, mask):
    _, changes, options = MASKS[mask]
    out, lse, *_ = sglang_call(batch, **changes, return_softmax_lse=True)
    for actual, expected in zip((out, lse), batch.expected(**options), strict=True):
        batch.close(actual, expected)


def test_sinks_may_have_sixteen_bits(batch):
    expected, _ = batch.expected(causal=True, sink=batch.sinks.double().cpu().numpy())
    batch.close(vllm_call(batch, s_aux=batch.sinks), expected)
    batch.close(sglang_call(batch, sinks=batch.sinks), expected)


def spread(table):
    """The table's entries, as every third number of a wider int64 table."""
    wide = torch.full((table.shape[0], 3 * table.shape[1]), -7, device=table.device)
    wide[:, ::3] = table
    return wide[:, ::3]


def test_lengths_and_tables_may_have_64_bits_and_gaps(batch):
    expected = vllm_call(batch)
    wide = {"cu_seqlens_q": batch.starts.long()}
    out = vllm_call(batch, **wide, seqused_k=batch.used.long(), block_table=spread(batch.table))
    assert torch.equal(out, expected)
    wide["cache_seqlens"] = batch.used.long()
    assert torch.equal(sglang_call(batch, **wide, page_table=spread(batch.table)), expected)


def test_conversions_wait_for_nothing(batch):
    if batch.device == "cpu":
        pytest.skip("a CPU has no stream to wait for")
    torch.cuda.set_sync_debug_mode("error")
    try:
        wide = {"seqused_k": batch.used.long(), "block_table": spread(batch.table)}
        vllm_call(batch, **wide, s_aux=batch.sinks)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_vllm_compiles_nothing_ahead_of_a_server():
    pages, others = (256, 128, 1, 256), {"window_size": [-1, -1], "fa_version": 4}
    found = vllm.compile_flash_attn_varlen_func_from_specs(
        q_shape=(129, 4, 256), k_shape=pages, v_shape=pages, q_dtype=torch.bfloat16, **others
    )
    assert found is None


def test_vllm_packed_keys_may_be_used_in_part(batch):
    k, v, starts = batch.packed_keys()
    used = batch.used - torch.tensor([3, 1, 0, 2], device=batch.device, dtype=torch.int32)
    pages = {"k": k, "v": v, "block_table": None, "cu_seqlens_k": starts}
    found = vllm_call(batch, **pages, seqused_k=used, fa_version=4)
    batch.close(found, vllm_call(batch, seqused_k=used).double().cpu())


def test_vllm_prefills_without_a_cache(batch):
    k, v, starts = batch.packed_keys()
    pages = {"block_table": None, "seqused_k": None, "cu_seqlens_k": starts}
    for version in (2, 3, 4):
        out = vllm_call(batch, k=k, v=v, **pages, fa_version=version)
        batch.close(out, batch.expected(causal=True)[0])
    by_place = vllm.flash_attn_varlen_func(
        batch.q, k, v, max(NEW), batch.starts, max(USED), starts, causal=True
    )
    assert torch.equal(by_place, out)


def test_tensors_whose_last_dimension_has_another_stride_are_copied(batch):
    expected = vllm_call(batch)
    k = batch.k_pages.transpose(-1, -2).contiguous().transpose(-1, -2)
    q = batch.q.repeat_interleave(2, -1)[..., ::2]
    assert torch.equal(vllm_call(batch, q=q, k=k), expected)
    assert torch.equal(sglang_call(batch, q=q), expected)


def test_factors_count_beside_float8_alone(batch):
    scale = torch.full((1,), 0.5, device=batch.device).expand(len(NEW), HEADS_K)
    scales = {"q_descale": scale, "k_descale": scale, "v_descale": scale}
    assert torch.equal(vllm_call(batch, **scales), vllm_call(batch))
    assert torch.equal(sglang_call(batch, **scales), vllm_call(batch))
    e4m3 = [x.to(torch.float8_e4m3fn) for x in (batch.q, batch.k_pages, batch.v_pages)]
    options = {"cu_seqlens_q": batch.starts, "max_seqlen_q": max(NEW), "seqused_k": batch.used}
    options |= {"page_table": batch.table, "causal": True}
    for q, given in ((e4m3[0], scales), (batch.q, {**scales, "q_descale": None})):
        expected = fa3.attention(q, *e4m3[1:], **options, **given)
        out = vllm_call(batch, q=q, k=e4m3[1], v=e4m3[2], out=None, **scales)
        assert torch.equal(out, expected)
        caches = {"k_cache": e4m3[1], "v_cache": e4m3[2]}
        assert torch.equal(sglang_call(batch, q=q, **caches, **scales), expected)


def test_the_lse_merges_a_prefix_and_what_follows_it(batch):
    """vLLM's cascade attention: the shared prefix as one sequence of all queries."""
    batch.table[:, 0] = batch.table[0, 0]
    long = torch.tensor([16 + n for n in (8, 3, 1, 7)], dtype=torch.int32, device=batch.device)
    all_queries = torch.tensor([0, sum(NEW)], dtype=torch.int32, device=batch.device)
    shared = torch.full_like(long[:1], PAGE)
    prefix = vllm_call(
        batch,
        cu_seqlens_q=all_queries,
        seqused_k=shared,
        max_seqlen_q=sum(NEW),
        max_seqlen_k=PAGE,
        causal=False,
        block_table=batch.table[:1],
        q_descale=None,
        k_descale=None,
        v_descale=None,
        return_softmax_lse=True,
    )
    rest = {"seqused_k": long - PAGE, "block_table": batch.table[:, 1:]}
    suffix = vllm_call(batch, **rest, return_softmax_lse=True)
    lse = torch.stack([prefix[1], suffix[1]])
    weights = torch.softmax(lse, 0).transpose(1, 2)[..., None]
    merged = weights[0] * prefix[0].float() + weights[1] * suffix[0].float()
    batch.close(merged, vllm_call(batch, seqused_k=long).double().cpu())


def test_queries_that_see_no_key_have_minus_infinity(batch):
    none = torch.zeros_like(batch.used)
    out, lse = vllm_call(batch, seqused_k=none, return_softmax_lse=True)
    assert not out.any() and torch.isneginf(lse).all()


def test_scheduler_metadata_fits_the_buffer_of_a_graph(batch):
    metadata = vllm.get_scheduler_metadata(
        batch_size=len(NEW),
        max_seqlen_q=max(NEW),
        max_seqlen_k=max(USED),
        num_heads_q=HEADS,
        num_heads_kv=HEADS_K,
        headdim=DIM,
        cache_seqlens=batch.used,
        qkv_dtype=batch.dtype,
        cu_seqlens_q=batch.starts,
        page_size=PAGE,
        causal=True,
        window_size=(-1, -1),
        num_splits=16,
    )
    buffer = torch.zeros(33, dtype=torch.int32, device=batch.device)
    buffer[: metadata.shape[0]] = metadata
    with_metadata = vllm_call(batch, scheduler_metadata=buffer[: metadata.shape[0]])
    assert torch.equal(with_metadata, vllm_call(batch))


def test_vllm_finds_version_3():
    assert vllm.is_fa_version_supported(3) and vllm.fa_version_unsupported_reason(3) is None
    assert not vllm.is_fa_version_supported(2)
    assert "choose version 3" in vllm.fa_version_unsupported_reason(4)
    with pytest.raises(fa3.InvalidArgument, match="fa_version: expected one of .*, got 5"):
        vllm.is_fa_version_supported(5)


def test_sglang_asks_for_the_gpu():
    on_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    assert sglang.is_fa3_supported() == on_hopper


def test_sglang_writes_where_it_is_told(batch):
    out = torch.full_like(batch.q, float("nan"))
    assert sglang_call(batch, out=out) is out
    batch.close(out, batch.expected(causal=True)[0])


def test_sglang_decodes_without_packing(batch):
    """One query a sequence as (batch, 1, heads, dim); the LSE is (batch, heads, 1) there."""
    q = batch.q[: len(NEW), None]
    unpacked = {"cu_seqlens_q": None, "cu_seqlens_k_new": None, "max_seqlen_q": 1}
    out, lse, *_ = sglang_call(batch, q=q, **unpacked, return_softmax_lse=True)
    one_each = torch.arange(len(NEW) + 1, dtype=torch.int32, device=batch.device)
    packed = {"q": q[:, 0], "cu_seqlens_q": one_each, "max_seqlen_q": 1}
    packed_out, packed_lse, *_ = sglang_call(batch, **packed, return_softmax_lse=True)
    assert lse.shape == (len(NEW), HEADS, 1) and packed_lse.shape == (HEADS, len(NEW))
    assert torch.equal(out[:, 0], packed_out) and torch.equal(lse[..., 0].T, packed_lse)


def test_sglang_appends_first(batch):
    k, v, starts = batch.packed_keys()
    ends = zip(starts[1:], NEW, strict=True)
    new_rows = torch.cat([torch.arange(end - new, end) for end, new in ends])
    new_k, new_v = k[new_rows], v[new_rows]
    before = batch.used - batch.starts.diff()
    expected = sglang_call(batch)
    for sequence, (used, new) in enumerate(zip(USED, NEW, strict=True)):
        for position in range(used - new, used):
            page = batch.table[sequence, position // PAGE]
            batch.k_pages[page, position % PAGE] = batch.v_pages[page, position % PAGE] = 0
    assert not torch.equal(sglang_call(batch), expected)
    rows = {"k": new_k, "v": new_v, "cu_seqlens_k_new": batch.starts.long()}
    assert torch.equal(sglang_call(batch, **rows, cache_seqlens=before.long()), expected)


def test_sglang_varlen_takes_packed_keys_pages_and_batches(batch):
    k, v, starts = batch.packed_keys()
    lengths = {"max_seqlen_q": max(NEW), "max_seqlen_k": max(USED)}
    options = {"causal": True, "sinks": batch.sinks, "return_softmax_lse": True}
    sink = batch.sinks.double().cpu().numpy()
    expected = batch.expected(causal=True, sink=sink)
    out, lse, *_ = sglang.flash_attn_varlen_func(
        batch.q, k, v, batch.starts, starts, **lengths, **options
    )
    batch.close(out, expected[0])
    batch.close(lse, expected[1])
    pages = (batch.q, batch.k_pages, batch.v_pages, batch.starts.long())
    table = {"page_table": spread(batch.table)}
    for cu_seqlens_k, used in ((None, batch.used.long()), (starts.long(), None)):
        out = sglang.flash_attn_varlen_func(
            *pages, cu_seqlens_k, **lengths, **table, seqused_k=used, **options
        )[0]
        batch.close(out, expected[0])
    q, k, v = (x.unflatten(0, (2, 7)) for x in (batch.q, k[:14], v[:14]))
    into = torch.empty_like(q)
    out = sglang.flash_attn_varlen_func(q, k, v, None, None, causal=True, ver=4, out=into)
    assert out is into and torch.equal(out, fa3.attention(q, k, v, causal=True))


def test_sglang_takes_chunks(batch):
    chunked = sglang_call(batch, attention_chunk=8)
    batch.close(chunked, batch.expected(causal=True, attention_chunk=8)[0])


def test_sglang_leaves_sms_free(batch):
    same = {"rtol": 0, "atol": 1e-5 if batch.device == "cpu" else 2e-2}
    torch.testing.assert_close(sglang_call(batch, sm_margin=8), sglang_call(batch), **same)
    with pytest.raises(fa3.InvalidArgument, match="sm_margin: expected 0 to 1023 SMs, got -1"):
        sglang_call(batch, sm_margin=-1)


def test_e5m2_caches_are_read_as_the_numbers_they_stand_for(batch):
    scale = torch.full((1,), 0.5, device=batch.device).expand(len(NEW), HEADS_K)
    scales = {"k_descale": scale, "v_descale": scale}
    caches = [(x * 2).to(torch.float8_e5m2) for x in (batch.k_pages, batch.v_pages)]
    batch.k_pages, batch.v_pages = (x.float() / 2 for x in caches)
    expected = batch.expected(causal=True)[0]
    k, v = caches
    batch.close(vllm_call(batch, k=k, v=v, **scales), expected)
    batch.close(sglang_call(batch, k_cache=k, v_cache=v, **scales), expected)

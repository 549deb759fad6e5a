# SPDX-License-Identifier: Apache-2.0
"""vLLM's and sglang's own calls of attention: as they make them, held to float64 and to fa3."""

import inspect

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat import sglang, vllm  # noqa: E402

DESCALES = "q_descale=None, k_descale=None, v_descale=None, "
SGLANG_TAIL = (
    "pack_gqa=None, only_qv=False, sm_margin=0, return_softmax_lse=False, sinks=None, "
    "score_mod=None, aux_tensors=None, ver=3, out=None"
)

# From vllm/vllm_flash_attn/flash_attn_interface.py of vLLM, and flash_attention.py of sglang, which
# takes what sgl_kernel.flash_attn takes, as of November 2026, without annotations.
RECORDED = {
    vllm.flash_attn_varlen_func: "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, "
    "cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0, softmax_scale=None, causal=False, "
    "window_size=None, softcap=0.0, alibi_slopes=None, deterministic=False, "
    "return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, "
    f"scheduler_metadata=None, {DESCALES}num_splits=0, output_scale=None, fa_version=2, "
    "s_aux=None, cp_world_size=1, cp_rank=0, cp_tot_seqused_k=None, mask_mod=None, "
    "block_sparse_tensors=None, aux_tensors=None, aux_tensor_leading_dims=None, "
    "dynamic_causal=None",
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
}


@pytest.mark.parametrize("function", RECORDED, ids=lambda x: f"{x.__module__}.{x.__name__}")
def test_signature_is_the_recorded_one(function):
    assert str(inspect.signature(function)) == f"({RECORDED[function]})"


HEADS, HEADS_K, DIM = 4, 2, 16
NEW, USED = (5, 1, 1, 7), (37, 20, 1, 7)  # rows of queries and of keys, of each sequence
PAGE = 16


class Batch:
    """Some sequences in the middle of their answers: packed queries, keys in pages."""

    def __init__(self, device):
        generator = torch.Generator().manual_seed(0)
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.device = device

        def normal(*shape):
            return torch.randn(shape, generator=generator).to(device, self.dtype)

        self.q = normal(sum(NEW), HEADS, DIM)
        self.k_pages, self.v_pages = normal(2, 12, PAGE, HEADS_K, DIM)
        self.table = torch.randperm(12, generator=generator).view(4, 3).int().to(device)
        self.starts = torch.tensor([0, *np.cumsum(NEW)], dtype=torch.int32, device=device)
        self.used = torch.tensor(USED, dtype=torch.int32, device=device)
        self.sinks = normal(HEADS).bfloat16()

    def keys(self, sequence):
        """k and v of one sequence, in order."""
        pages = self.table[sequence].long()
        return [x[pages].flatten(0, 1)[: USED[sequence]] for x in (self.k_pages, self.v_pages)]

    def packed_keys(self):
        """k, v and cu_seqlens_k of all sequences."""
        k, v = (torch.cat(x) for x in zip(*map(self.keys, range(len(USED))), strict=True))
        starts = torch.tensor([0, *np.cumsum(USED)], dtype=torch.int32, device=self.device)
        return k, v, starts

    def expected(self, **options):
        """(out, lse) in float64: (total, heads, dim) and (heads, total)."""
        out, lse = [], []
        for sequence, rows in enumerate(self.q.split(NEW)):
            given = [x.double().cpu().numpy()[None] for x in (rows, *self.keys(sequence))]
            one_out, one_lse = oracle.forward(*given, **options)
            out.append(torch.from_numpy(one_out[0]))
            lse.append(torch.from_numpy(one_lse[0]))
        return torch.cat(out), torch.cat(lse, -1)

    def close(self, actual, expected):
        tolerance = 1e-5 if self.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(actual.double().cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def batch(device):
    return Batch(device)


def vllm_call(batch, **changes):
    """The call of vLLM's FlashAttentionImpl.forward, decoding beside prefills."""
    descale_shape = (len(NEW), HEADS_K)
    scale = torch.ones(1, device=batch.device).expand(descale_shape)
    call = {
        "q": batch.q,
        "k": batch.k_pages,
        "v": batch.v_pages,
        "out": torch.full_like(batch.q, float("nan")),
        "cu_seqlens_q": batch.starts,
        "max_seqlen_q": max(NEW),
        "seqused_k": batch.used,
        "max_seqlen_k": max(USED),
        "softmax_scale": DIM**-0.5,
        "causal": True,
        "alibi_slopes": None,
        "window_size": None,
        "block_table": batch.table,
        "softcap": 0,
        "scheduler_metadata": None,
        "fa_version": 3,
        "q_descale": scale,
        "k_descale": scale,
        "v_descale": scale,
        "num_splits": 0,
        "s_aux": None,
    }
    return vllm.flash_attn_varlen_func(**call | changes)


def sglang_call(batch, **changes):
    """The call of sglang's FlashAttentionBackend, forward_extend and forward_decode."""
    call = {
        "q": batch.q,
        "k_cache": batch.k_pages,
        "v_cache": batch.v_pages,
        "page_table": batch.table,
        "cache_seqlens": batch.used,
        "cu_seqlens_q": batch.starts,
        "cu_seqlens_k_new": batch.packed_keys()[2],
        "max_seqlen_q": max(NEW),
        "softmax_scale": DIM**-0.5,
        "causal": True,
        "window_size": (-1, -1),
        "softcap": 0.0,
        "k_descale": None,
        "v_descale": None,
        "return_softmax_lse": False,
        "num_splits": 0,
        "ver": 3,
    }
    return sglang.flash_attn_with_kvcache(**call | changes)


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
    """The same entries, every third number of a wider int64 table."""
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


REFUSED = {
    "q_v: expected None, got a tensor": (vllm_call, {"q_v": torch.zeros(1)}),
    "FlashMLA": (sglang_call, {"qv": torch.zeros(1)}),
    "only_qv: expected False": (sglang_call, {"only_qv": True}),
    "dropout_p: expected 0.0, got 0.1": (vllm_call, {"dropout_p": 0.1}),
    "sink: not together with bias or alibi_slopes": (
        vllm_call,
        {"alibi_slopes": torch.zeros(HEADS), "s_aux": torch.zeros(HEADS)},
    ),
    "output_scale: expected None": (vllm_call, {"output_scale": torch.ones(1)}),
    "mask_mod: expected None": (vllm_call, {"mask_mod": max}),
    "block_sparse_tensors: expected None": (vllm_call, {"block_sparse_tensors": ()}),
    "dynamic_causal: expected None": (vllm_call, {"dynamic_causal": torch.ones(4)}),
    "score_mod: expected None": (sglang_call, {"score_mod": max}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_fa3_lacks_is_refused_by_name(sentence):
    call, changes = REFUSED[sentence]
    with pytest.raises(fa3.Unsupported, match=sentence):
        call(Batch("cpu"), **changes)


def test_sglang_leaves_sms_free(batch):
    same = {"rtol": 0, "atol": 1e-5 if batch.device == "cpu" else 2e-2}
    torch.testing.assert_close(sglang_call(batch, sm_margin=8), sglang_call(batch), **same)
    with pytest.raises(fa3.InvalidArgument, match="sm_margin: expected 0 to 1023 SMs, got -1"):
        sglang_call(batch, sm_margin=-1)


def test_context_parallelism_of_one_rank_is_none():
    batch = Batch("cpu")
    alone = {"cp_world_size": 1, "cp_rank": 0, "cp_tot_seqused_k": batch.used}
    assert torch.equal(vllm_call(batch, **alone), vllm_call(batch))


def test_e5m2_caches_are_read_as_the_numbers_they_stand_for(batch):
    scale = torch.full((1,), 0.5, device=batch.device).expand(len(NEW), HEADS_K)
    scales = {"k_descale": scale, "v_descale": scale}
    caches = [(x * 2).to(torch.float8_e5m2) for x in (batch.k_pages, batch.v_pages)]
    batch.k_pages, batch.v_pages = (x.float() / 2 for x in caches)
    expected = batch.expected(causal=True)[0]
    k, v = caches
    batch.close(vllm_call(batch, k=k, v=v, **scales), expected)
    batch.close(sglang_call(batch, k_cache=k, v_cache=v, **scales), expected)


def test_e5m2_queries_are_refused():
    batch = Batch("cpu")
    e5m2 = [x.to(torch.float8_e5m2) for x in (batch.q, batch.k_pages, batch.v_pages)]
    with pytest.raises(fa3.InvalidArgument, match="q: expected .*got float8_e5m2, .* caches alone"):
        vllm_call(batch, **dict(zip("qkv", e5m2, strict=True)), out=None)


WORLD = 3
RANK_MASKS = [
    {"causal": True},
    {"causal": False},
    {"causal": True, "window": (9, 0)},
    {"causal": False, "window": (4, 3)},
    {"causal": False, "window": (-1, 2)},
]


def rank_call(batch, rank, **changes):
    """One rank's part of the batch's attention: its keys in pages of its own."""
    local = [torch.zeros_like(x) for x in (batch.k_pages, batch.v_pages)]
    for sequence in range(len(USED)):
        for keys, pages in zip(batch.keys(sequence), local, strict=True):
            for place, row in enumerate(keys[rank::WORLD]):
                pages[batch.table[sequence, place // PAGE], place % PAGE] = row
    used = (batch.used - rank + WORLD - 1) // WORLD
    call = {"k": local[0], "v": local[1], "seqused_k": used, "max_seqlen_k": max(USED)}
    call |= {"cp_world_size": WORLD, "cp_rank": rank, "cp_tot_seqused_k": batch.used}
    return vllm_call(batch, **{**call, **changes}, return_softmax_lse=True)


def merged(parts):
    """(out, lse) of all keys, from those of each rank's."""
    out, lse = (torch.stack(x).double().cpu() for x in zip(*parts, strict=True))
    weights = torch.softmax(lse, 0).nan_to_num().transpose(1, 2)[..., None]
    return (weights * out).sum(0), torch.logsumexp(lse, 0)


@pytest.mark.parametrize("mask", RANK_MASKS, ids=str)
def test_ranks_that_hold_keys_in_turn_merge_to_attention_over_all(batch, mask):
    call = {"causal": mask["causal"], "window_size": mask.get("window")}
    out, lse = merged([rank_call(batch, rank, **call) for rank in range(WORLD)])
    expected_out, expected_lse = batch.expected(**mask)
    batch.close(out, expected_out)
    batch.close(lse, expected_lse)


def test_ranks_decode_single_queries_as_they_are(batch):
    """No key is hidden from them, so lengths on all ranks are not needed."""
    single = {"q": batch.q[: len(NEW)], "max_seqlen_q": 1, "cp_tot_seqused_k": None}
    single |= {"cu_seqlens_q": torch.arange(len(NEW) + 1, device=batch.device), "out": None}
    assert torch.equal(
        rank_call(batch, 1, **single)[0], rank_call(batch, 1, **single, causal=False)[0]
    )


def test_ranks_take_queries_that_no_sequence_owns(batch):
    """The padding of a CUDA graph: rows behind the last sequence's."""
    q = torch.cat([batch.q, batch.q[:3]])
    out = rank_call(batch, 0, q=q, out=None)[0]
    assert torch.equal(out[: len(batch.q)], rank_call(batch, 0)[0])
    assert not out[len(batch.q) :].any()


def test_ranks_take_float8_and_batches_of_keys(batch):
    k, v = (x[batch.table.long()].flatten(1, 2) for x in (batch.k_pages, batch.v_pages))
    scale = torch.arange(1, 9, device=batch.device).view(4, 2) / 8
    k, v = (x.to(torch.float8_e4m3fn) for x in (k, v))
    call = {"q_descale": None, "k_descale": scale, "v_descale": scale, "block_table": None}
    call |= {"return_softmax_lse": True, "out": None, "cp_world_size": 2}
    ranks = []
    for rank in range(2):
        local = {"k": k[:, rank::2].contiguous(), "v": v[:, rank::2].contiguous()}
        used = (batch.used - rank + 1) // 2
        call |= {"seqused_k": used, "cp_rank": rank, "cp_tot_seqused_k": batch.used.long()}
        ranks.append(vllm_call(batch, **local, **call))
    factor = scale[:, None, :, None]
    wide = {"k": (k.float() * factor).to(batch.dtype), "v": (v.float() * factor).to(batch.dtype)}
    whole = {"block_table": None, "out": None, "return_softmax_lse": True}
    expected = vllm_call(batch, **wide, **whole)
    for ours, theirs in zip(merged(ranks), expected, strict=True):
        batch.close(ours, theirs.double().cpu())


@pytest.mark.parametrize(
    "error, sentence, changes",
    [
        (fa3.InvalidArgument, "cp_rank: expected a rank of the 2 .* got 2", {"cp_rank": 2}),
        (fa3.InvalidArgument, "cp_rank: .* the 0", {"cp_world_size": 0}),
        (fa3.InvalidArgument, "cp_tot_seqused_k: expected the lengths", {"cp_tot_seqused_k": None}),
        (
            fa3.Unsupported,
            "cu_seqlens_k: expected seqused_k",
            {"block_table": None, "seqused_k": None, "cu_seqlens_k": torch.zeros(5)},
        ),
    ],
)
def test_ranks_that_are_wrong_are_named(error, sentence, changes):
    batch = Batch("cpu")
    call = {"cp_world_size": 2, "cp_rank": 1, "cp_tot_seqused_k": batch.used}
    with pytest.raises(error, match=sentence):
        vllm_call(batch, **{**call, **changes})


@pytest.mark.parametrize(
    "sentence, changes",
    [
        ("expected one of them", {"seqused_k": None}),
        ("expected one of them", {"cu_seqlens_k": torch.zeros(5)}),
        ("seqused_k: expected the lengths", {"seqused_k": None, "cu_seqlens_k": torch.zeros(5)}),
        ("block_table: expected a page", {"block_table": torch.full((4, 3), 99)}),
        ("s_aux: .* query heads = 4", {"s_aux": torch.zeros(3)}),
    ],
)
def test_vllm_calls_that_are_wrong_are_named_in_its_words(sentence, changes):
    with pytest.raises(fa3.InvalidArgument, match=sentence):
        vllm_call(Batch("cpu"), **changes)

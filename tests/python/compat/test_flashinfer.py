# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's names for latent caches, and vLLM's writer of them.

The cases are FlashInfer's own in smaller sizes: lengths of 0, pages of 1, 16 and 64 rows, 1 to 17
new tokens, NaN behind lengths, caches without rope, e4m3, buffers of a CUDA graph.
"""

import math
import zlib

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat import flashinfer, vllm_cache  # noqa: E402

HEADS, SCALE = 16, 192**-0.5
WORKSPACE = torch.empty(0)
DTYPES = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


class Batch:
    """Sequences in pages; rows that no sequence uses are NaN."""

    def __init__(self, lengths, new, page_size, rope=64, seed=0):
        counts = [-(-n // page_size) for n in lengths]
        order = torch.randperm(sum(counts) + 1, generator=torch.Generator().manual_seed(seed))
        self.indptr = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
        self.indices = order[: sum(counts)].int()
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.cu = torch.tensor([0, *np.cumsum(new)], dtype=torch.int32)
        self.page_size, self.rope = page_size, rope
        self.ckv = torch.full((len(order), page_size, 512), torch.nan).bfloat16()
        self.kpe = torch.full((len(order), page_size, rope), torch.nan).bfloat16()
        self.q = random(sum(new), HEADS, 512, seed=1), random(sum(new), HEADS, rope, seed=2)
        self.rows = []
        for b, n in enumerate(lengths):
            ckv, kpe = random(n, 512, seed=3 + b), random(n, rope, seed=50 + b)
            flashinfer.append_paged_mla_kv_cache(
                *(ckv, kpe, torch.full((n,), b, dtype=torch.int32), torch.arange(n).int()),
                *(self.ckv, self.kpe, self.indices, self.indptr, None),
            )
            self.rows.append(torch.cat((ckv, kpe), -1).double())

    def plan(self, wrapper, causal):
        lists = self.cu, self.indptr, self.indices, self.lengths
        wrapper.plan(*lists, HEADS, 512, self.rope, self.page_size, causal, SCALE, **DTYPES)

    def check(self, out, lse, causal, rows=None, tolerance=8e-3):
        """lse: of base 2."""
        q = torch.cat(self.q, -1).double().numpy()
        for b, own in enumerate(self.rows if rows is None else rows):
            new = slice(self.cu[b], self.cu[b + 1])
            keys = own.numpy()[None, :, None]
            wanted, wanted_lse = oracle.forward(
                q[None, new], keys, keys[..., :512], causal=causal, scale=SCALE
            )
            close = {"rtol": tolerance, "atol": tolerance}
            np.testing.assert_allclose(out[new].double(), wanted[0], **close)
            np.testing.assert_allclose(
                lse[new].double().T * math.log(2), wanted_lse[0], rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("page_size, rope", [(1, 64), (16, 64), (64, 0)])
@pytest.mark.parametrize("new", [[1, 1, 1], [17, 0, 3]])
def test_a_planned_batch_attends_to_its_pages(new, page_size, rope, causal):
    batch = Batch([33, 0, 70], new, page_size, rope)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE)
    batch.plan(wrapper, causal)
    out, lse = wrapper.run(*batch.q, batch.ckv, batch.kpe, return_lse=True)
    assert out.dtype == torch.bfloat16 and lse.shape == out.shape[:2]
    batch.check(out, lse, causal)


def test_results_are_written_where_the_caller_says():
    batch = Batch([33, 5], [2, 1], 16)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE)
    batch.plan(wrapper, True)
    out, lse = torch.empty(3, HEADS, 512).bfloat16(), torch.empty(3, HEADS)
    tensors = *batch.q, batch.ckv, batch.kpe
    assert wrapper.run(*tensors, out, lse) is out
    batch.check(out, lse, True)
    _, natural = wrapper.run(*tensors, return_lse=True, return_lse_base_on_e=True)
    torch.testing.assert_close(natural, lse * math.log(2))


def test_a_graphs_buffers_are_written_by_later_plans():
    first, later = Batch([33, 70, 2], [1, 1, 1], 16), Batch([60, 1, 20], [1, 1, 1], 16, seed=1)
    int32 = {"dtype": torch.int32}
    buffers = torch.zeros(4, **int32), torch.zeros(4, **int32), torch.zeros(12, **int32)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(
        WORKSPACE, True, *buffers, torch.zeros(3, **int32)
    )
    first.plan(wrapper, False)
    captured = {**wrapper.planned}  # a graph reads these addresses for ever
    for batch in (first, later):
        batch.plan(wrapper, False)
        assert all(
            captured[name] is wrapper.planned[name]
            or captured[name].data_ptr() == wrapper.planned[name].data_ptr()
            for name in ("page_table", "seqused_k")
        )
        out, lse = wrapper.run(*batch.q, batch.ckv, batch.kpe, return_lse=True)
        batch.check(out, lse, False)
    with pytest.raises(fa3.InvalidArgument, match="plan: expected at most the 12 numbers"):
        Batch([250, 1, 1], [1, 1, 1], 16).plan(wrapper, False)
    with pytest.raises(fa3.InvalidArgument, match="qo_indptr: expected at most 1 queries in a seq"):
        Batch([60, 1, 20], [2, 1, 0], 16).plan(wrapper, False)


@pytest.mark.parametrize("rope", [64, 0])
def test_e4m3_caches_have_a_scale_for_each_part(rope):
    batch = Batch([33, 70], [1, 4], 16, rope)
    scales = {"ckv_scale": 0.03, **({"kpe_scale": 0.05} if rope else {})}
    stored = [
        (x.float() / s).to(torch.float8_e4m3fn)
        for x, s in zip((batch.ckv, batch.kpe), (0.03, 0.05), strict=True)
    ]
    rows = [
        torch.cat([(own[:, part].float() / s).to(torch.float8_e4m3fn).double() * np.float32(s)
                   for part, s in ((slice(512), 0.03), (slice(512, None), 0.05))], -1)
        for own in batch.rows
    ]  # fmt: skip
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE, backend="fa3")
    batch.plan(wrapper, True)
    out, lse = wrapper.run(*batch.q, *stored, return_lse=True, **scales)
    batch.check(out, lse, True, rows)
    with pytest.raises(fa3.InvalidArgument, match="ckv_scale: expected a finite number > 0"):
        wrapper.run(*batch.q, *stored, **{**scales, "ckv_scale": math.inf})


def test_a_plan_keeps_lengths_and_never_reads_other_sequences_pages():
    batch = Batch([4, 3], [1, 1], 3)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE)
    batch.plan(wrapper, True)
    out = wrapper.run(*batch.q, batch.ckv, batch.kpe)
    batch.lengths.fill_(1)
    assert torch.equal(wrapper.run(*batch.q, batch.ckv, batch.kpe), out)
    batch.lengths = torch.tensor([4, 5], dtype=torch.int32)  # the second has a page of three
    batch.plan(wrapper, True)
    with pytest.raises(fa3.InvalidArgument, match="^kv_indices"):
        wrapper.run(*batch.q, batch.ckv, batch.kpe)


def test_a_graphs_batch_size_stays():
    batch, other = Batch([4, 3], [1, 1], 3), Batch([4], [1], 3)
    buffers = (torch.full((n,), -7, dtype=torch.int32) for n in (3, 3, 9, 2))
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE, True, *buffers)
    batch.plan(wrapper, True)
    with pytest.raises(fa3.InvalidArgument, match="^kv_len_arr: expected 2 sequences"):
        other.plan(wrapper, True)


def test_what_fa3_lacks_is_refused_by_name():
    batch = Batch([3], [1], 1)
    tensors = *batch.q, batch.ckv, batch.kpe
    with pytest.raises(fa3.Unsupported, match="backend: expected one of auto, fa2, fa3, got 'cut"):
        flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE, backend="cutlass")
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE)
    with pytest.raises(fa3.InvalidArgument, match="plan: expected a call before run"):
        wrapper.run(*tensors)
    batch.plan(wrapper, False)
    for name in ("ckv_scale_arr", "kv_len", "page_table", "profiler_buffer", "o_scale"):
        with pytest.raises(fa3.Unsupported, match=f"{name}: expected None"):
            wrapper.run(*tensors, **{name: torch.ones(1)})


def test_what_contradicts_the_plan_is_refused_by_name():
    batch = Batch([3, 8], [1, 1], 4)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE)
    batch.plan(wrapper, True)
    tensors = {"q_nope": batch.q[0], "q_pe": batch.q[1]}
    tensors |= {"ckv_cache": batch.ckv, "kpe_cache": batch.kpe}
    wrong = {
        "ckv_cache: expected pages of 4 rows": {"ckv_cache": batch.ckv.view(-1, 2, 512)},
        "q_pe, kpe_cache: expected rope .* got 0 and 64": {"q_pe": batch.q[1][..., :0]},
        "q_pe, kpe_cache: expected rope .* got 64 and 0": {"kpe_cache": batch.kpe[..., :0]},
        "lse: expected float32": {"lse": torch.empty(2, HEADS).half()},
        "ckv_scale: expected None, got 2.0; numbers of torch.bfloat16": {"ckv_scale": 2.0},
        "kpe_scale: expected None, got 0.5; numbers of torch.bfloat16": {"kpe_scale": 0.5},
    }
    for sentence, changes in wrong.items():
        with pytest.raises((fa3.InvalidArgument, fa3.Unsupported), match=sentence):
            wrapper.run(**tensors | changes)
    wrapper.run(**tensors, ckv_scale=1.0, kpe_scale=1.0)


def test_rows_without_a_place_in_their_sequences_pages_are_not_written():
    ckv, kpe = torch.zeros(6, 4, 512), torch.zeros(6, 4, 64)
    indptr, indices = torch.tensor([0, 2, 3]).int(), torch.tensor([3, 1, 5]).int()
    places = {0: (0, 0), 1: (0, 7), 2: (1, 3), 3: (0, -1), 4: (0, 8), 5: (1, -1), 6: (1, 4)}
    places |= {7: (-1, 0), 8: (2, 0)}  # the last six are in no page of their sequence
    sequence, position = torch.tensor(list(places.values())).int().T
    numbers = torch.arange(1.0, 10.0)[:, None]
    rows = numbers.expand(9, 512).contiguous(), numbers.expand(9, 64).contiguous()
    lists = sequence, position, ckv, kpe, indices, indptr, None
    flashinfer.append_paged_mla_kv_cache(*rows, *lists)
    for cache in (ckv, kpe):
        written = {tuple(x): cache[tuple(x)][0].item() for x in cache[..., 0].nonzero().tolist()}
        assert written == {(3, 0): 1, (1, 3): 2, (5, 3): 3}
    with pytest.raises(fa3.InvalidArgument, match="append_kpe, kpe_cache: expected rope channels"):
        flashinfer.append_paged_mla_kv_cache(rows[0], rows[1][:, :0], *lists)


WAVE = (((37 * torch.arange(576)) % 101 - 50) / 16).bfloat16()
ROPE = ((torch.arange(64) - 32) / 8).bfloat16()


def vllm_row(kv_cache_dtype, bytes_of_row, k_pe, scale=1.0, dtype=torch.uint8, kv_c=WAVE[:512]):
    """What vLLM's writer leaves in row 2 of a block of 3, of tokens of which the second is none."""
    cache = torch.zeros(2, 3, bytes_of_row, dtype=dtype)
    tokens = kv_c.expand(4, 512).clone(), k_pe.expand(4, len(k_pe)).clone()
    slots = torch.tensor([2, -1])  # and two tokens of padding
    vllm_cache.concat_and_cache_mla(*tokens, cache, slots, kv_cache_dtype, torch.tensor(scale))
    assert not cache.flatten(0, 1)[[0, 1, 3, 4, 5]].any()
    return cache[0, 2]


def test_vllms_rows_of_656_bytes():
    row = vllm_row("fp8_ds_mla", 656, ROPE, scale=7.0)  # ignored
    assert zlib.crc32(row.numpy().tobytes()) == 0x8EB68992
    assert not vllm_row("fp8_ds_mla", 656, ROPE[:0])[528:].any()


def test_vllms_rows_of_656_bytes_of_numbers_that_are_none():
    kv_c = torch.zeros(512).bfloat16()
    kv_c[:3] = torch.tensor([torch.nan, 1, -2])
    kv_c[128:130] = torch.tensor([torch.inf, -3])
    kv_c[256:384] = torch.nan
    row = vllm_row("fp8_ds_mla", 656, ROPE, kv_c=kv_c)
    scales = "2549923b0000807f0000800000008000"  # the last group is zeros
    assert row[512:528].numpy().tobytes().hex() == scales
    assert row[:4].tolist() == [0x7F, 0x76, 0xFE, 0]
    assert row[128:130].tolist() == [0x7F, 0x80] and (row[256:384] == 0x7F).all()


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3"])
def test_vllms_rows_of_one_scale(name):
    row = vllm_row(name, 576, WAVE[512:], scale=0.05)
    assert zlib.crc32(row.numpy().tobytes()) == 0x2380FA89
    kv_c = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e9] * 128).bfloat16()
    row = vllm_row(name, 576, WAVE[512:], scale=0.05, kv_c=kv_c)
    assert row[:4].tolist() == [0x7E, 0xFE, 0x7F, 0x7E]


def test_vllms_plain_rows():
    row = vllm_row("auto", 576, ROPE, dtype=torch.bfloat16)
    assert torch.equal(row, torch.cat((WAVE[:512], ROPE)))
    with pytest.raises(fa3.InvalidArgument, match="kv_cache_dtype: expected auto, .* got 'nvfp4'"):
        vllm_row("nvfp4", 576, ROPE)

# SPDX-License-Identifier: Apache-2.0
"""The names of flash_mla, against float64 over caches that are spoilt wherever nobody may look.

The cases are those of FlashMLA's own test files in smaller sizes: heads, latent heads, lengths of
0, garbage behind lengths, pages of odd sizes, infinite sinks, two caches, gaps in tensors.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat import flash_mla  # noqa: E402

OUT, LSE = {"atol": 8e-4, "rtol": 2.01 / 128}, {"atol": 1e-6, "rtol": 8.01 / 65536}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).clamp(-10, 10) / 10


def expected(q, keys, scale, sink=None):
    """(h, d), (n, d) -> out and LSE as FlashMLA defines them."""
    scores = scale * q.double() @ keys.double().T
    lse = scores.logsumexp(-1)
    out = (scores - lse.nan_to_num(neginf=0.0)[:, None]).exp() @ keys[:, :512].double()
    if sink is not None:
        out = out * (1 / (1 + (sink.double() - lse).exp()))[:, None]
    out[lse == -torch.inf] = 0
    return out, lse.masked_fill(lse == -torch.inf, torch.inf)


@pytest.mark.parametrize("causal, dtype", [(False, torch.float16), (True, torch.bfloat16)])
@pytest.mark.parametrize(
    "heads, latent_heads, new", [(1, 1, 2), (9, 3, 4), (63, 1, 1), (128, 8, 2), (128, 1, 4)]
)
def test_dense_decoding(heads, latent_heads, new, causal, dtype):
    lengths = [0, 20, 140, 3]
    cache = random(16, 64, latent_heads, 576).to(dtype)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1)).int()
    table = order.view(4, 4).clone()
    sequences = []
    for b, length in enumerate(lengths):
        rows = cache[table[b].long()].flatten(0, 1)
        sequences.append(rows[:length].clone())
        rows[length:] = torch.nan
        cache[table[b].long()] = rows.view(4, 64, latent_heads, 576)
        table[b, -(-length // 64) :] = 2147480000
    q = random(4, new, heads, 576, seed=2).to(dtype)
    metadata, num_splits = flash_mla.get_mla_metadata()
    out, lse = flash_mla.flash_mla_with_kvcache(
        q,
        cache,
        table,
        torch.tensor(lengths, dtype=torch.int32),
        512,
        metadata,
        num_splits,
        causal=causal,
    )
    assert out.dtype == dtype and lse.shape == (4, heads, new)
    for b, rows in enumerate(sequences):
        for row in range(new):
            seen = max(len(rows) - new + 1 + row, 0) if causal else len(rows)
            for latent in range(latent_heads):
                group = slice(latent * heads // latent_heads, (latent + 1) * heads // latent_heads)
                o, one_lse = expected(q[b, row, group], rows[:seen, latent], 576**-0.5)
                torch.testing.assert_close(out[b, row, group].double(), o, **OUT)
                torch.testing.assert_close(lse[b, group, row].double(), one_lse, **LSE)


def fp8_cache(rows, pages, page_size, seed):
    """Random rows, written by fa3.mla; those that nobody names are spoilt afterwards."""
    cache = fa3.mla.empty_cache(pages, page_size, rows=rows, device="cpu")
    split = 512 if rows == "group128" else 448
    x = random(pages * page_size, split + 64, seed=seed).bfloat16()
    slots = torch.arange(len(x))
    fa3.mla.append(cache, x[:, :split], x[:, split:], slots=slots)
    return cache


def spoil(cache, rows, named):
    page_size = cache.shape[1]
    stride = cache.stride(0)
    memory = cache.as_strided((cache.shape[0] * stride,), (1,))
    for slot in set(range(cache.shape[0] * page_size)) - named:
        page, t = divmod(slot, page_size)
        if rows == "group128":
            memory[page * stride + 656 * t : page * stride + 656 * (t + 1)] = 0xFF
        else:
            memory[page * stride + 576 * t : page * stride + 576 * (t + 1)] = 0xFF
            scales = page * stride + 576 * page_size + 8 * t
            memory[scales : scales + 8] = 0xFF


@pytest.mark.parametrize("all_invalid", [False, True])
@pytest.mark.parametrize("has_counts", [False, True])
@pytest.mark.parametrize(
    "rows, heads, page_size, extra_page_size",
    [
        ("group128", 64, 64, None),
        ("group128", 128, 61, None),
        ("v4", 64, 69, 2),
        ("v4", 128, 2, 53),
    ],
)
def test_sparse_decoding(rows, heads, page_size, extra_page_size, has_counts, all_invalid):
    batch, new, topk, dim = 3, 2, 64, 576 if rows == "group128" else 512
    q = random(batch, new, heads + 1, dim, seed=3)[:, :, :heads].bfloat16() * 10
    sink = random(heads, seed=4) * 10
    sink[0], sink[1] = torch.inf, -torch.inf
    generator = torch.Generator().manual_seed(5)
    sets = []
    for size, seed in ((page_size, 6), (extra_page_size, 7)):
        if size is None:
            continue
        cache = fp8_cache(rows, -(-200 // size), size, seed)
        total = cache.shape[0] * size
        indices = torch.randint(0, total, (batch, new, topk + 1), generator=generator).int()
        indices[torch.rand(indices.shape, generator=generator) < 0.2] = -1
        if all_invalid:
            indices[1] = -1
        indices = indices[..., :topk]  # with a gap between rows
        counts = torch.tensor([0, 63, 64], dtype=torch.int32) if has_counts else None
        limit = [topk] * batch if counts is None else counts.tolist()
        lists = [
            [[s for s in indices[b, row, : limit[b]].tolist() if s >= 0] for row in range(new)]
            for b in range(batch)
        ]
        keys = fa3.mla.gather(cache, torch.arange(total), dtype="float32")
        spoil(cache, rows, {s for sequence in lists for one in sequence for s in one})
        sets.append((cache.unsqueeze(2), indices, counts, lists, keys))
    first, second = sets[0], (sets[1] if len(sets) > 1 else (None, None, None))
    scale = dim**-0.55
    out, lse = flash_mla.flash_mla_with_kvcache(
        q,
        first[0].view(torch.float8_e4m3fn),
        None,
        None,
        512,
        flash_mla.get_mla_metadata()[0],
        softmax_scale=scale,
        is_fp8_kvcache=True,
        indices=first[1],
        attn_sink=sink,
        extra_k_cache=second[0],
        extra_indices_in_kvcache=second[1],
        topk_length=first[2],
        extra_topk_length=second[2],
    )
    for b in range(batch):
        for row in range(new):
            keys = torch.cat([keys[lists[b][row]] for *_, lists, keys in sets])
            o, one_lse = expected(q[b, row], keys, scale, sink)
            torch.testing.assert_close(out[b, row].double(), o, atol=1e-3, rtol=2.01 / 128)
            torch.testing.assert_close(lse[b, :, row].double(), one_lse, **LSE)


@pytest.mark.parametrize("dim", [512, 576])
def test_sparse_prefill(dim):
    tokens, keys, heads, topk = 5, 95, 64, 128
    kv = random(keys, 2, dim + 8, seed=1).bfloat16()[:, :1, :dim]  # with gaps
    q = random(tokens, heads, dim, seed=2).bfloat16()
    indices = torch.randint(0, keys, (tokens, 1, topk), generator=torch.Generator().manual_seed(3))
    invalid = [-(2**31), -123456, -1, keys, 2147480000, 2**31 - 1]
    indices[:, 0, : len(invalid)] = torch.tensor(invalid)
    indices[4] = -1
    counts = torch.tensor([topk, 0, 7, 100, topk], dtype=torch.int32)
    sink = random(heads, seed=4)
    given = {"attn_sink": sink, "topk_length": counts}
    out, largest, lse = flash_mla.flash_mla_sparse_fwd(q, kv, indices.int(), 0.5, **given)
    assert largest.shape == lse.shape == (tokens, heads)
    for i in range(tokens):
        seen = [s for s in indices[i, 0, : counts[i]].tolist() if 0 <= s < keys]
        o, one_lse = expected(q[i], kv[seen, 0], 0.5, sink)
        torch.testing.assert_close(out[i].double(), o, atol=8e-4, rtol=3.01 / 128)
        torch.testing.assert_close(lse[i].double(), one_lse, **LSE)
        scores = 0.5 * q[i].double() @ kv[seen, 0].double().T
        most = scores.amax(-1) if seen else torch.full((heads,), -torch.inf).double()
        torch.testing.assert_close(largest[i].double(), most, **LSE)


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    """The names of torch's operators that run under it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("has_out", [False, True])
def test_results_of_sparse_prefill_are_written_in_place(has_out):
    q, kv = random(3, 4, 576), random(50, 1, 576, seed=2)
    indices = torch.arange(30, dtype=torch.int32).view(3, 1, 10)
    given = torch.empty(3, 4, 512) if has_out else None
    with Operators() as seen:
        out, *statistics = flash_mla.flash_mla_sparse_fwd(q, kv, indices, 0.5, out=given)
    assert all(x.is_contiguous() for x in (out, *statistics))
    assert given is None or out is given
    copies = [name for name in seen.names if "clone" in name or "copy" in name]
    assert copies == [] and any("fa3.mla_forward" in name for name in seen.names)


def test_the_first_indices_have_an_lse_of_their_own():
    q, kv = random(3, 4, 576), random(50, 1, 576, seed=2)
    indices = torch.randint(-1, 50, (3, 1, 20), generator=torch.Generator().manual_seed(1)).int()
    call = {"attn_sink": torch.ones(4), "topk_length": torch.tensor([20, 5, 0], dtype=torch.int32)}
    *both, lse_indexer = flash_mla.flash_mla_sparse_fwd(q, kv, indices, 0.5, **call, indexer_topk=8)
    alone = flash_mla.flash_mla_sparse_fwd(q, kv, indices[..., :8], 0.5, **call)[2]
    assert torch.equal(lse_indexer, alone) and not torch.equal(lse_indexer, both[2])
    for found, right in zip(
        both, flash_mla.flash_mla_sparse_fwd(q, kv, indices, 0.5, **call), strict=True
    ):
        assert torch.equal(found, right)


def test_sglangs_metadata_are_two_tensors():
    from fa3.compat import sgl_flash_mla

    used = torch.tensor([3, 4, 0], dtype=torch.int32)
    scheduler, num_splits = sgl_flash_mla.get_mla_metadata(used, 4, 1, num_heads_q=4)
    assert scheduler.shape[1] == 8 and num_splits.shape == (4,)
    assert scheduler.dtype == num_splits.dtype == torch.int32
    q, cache, table = random(3, 1, 4, 576), random(2, 64, 1, 576), torch.zeros(3, 1).int()
    call = {"block_table": table, "cache_seqlens": used, "head_dim_v": 512, "causal": True}
    given = {"tile_scheduler_metadata": scheduler, "num_splits": num_splits}
    found = sgl_flash_mla.flash_mla_with_kvcache(q=q, k_cache=cache, **call, **given)
    metadata, _ = flash_mla.get_mla_metadata()
    wanted = flash_mla.flash_mla_with_kvcache(q, cache, **call, tile_scheduler_metadata=metadata)
    assert all(map(torch.equal, found, wanted))


def test_calls_with_one_metadata_are_alike():
    metadata, _ = flash_mla.get_mla_metadata("any", arguments=1)
    cache, table = random(1, 64, 1, 576), torch.zeros(2, 1, dtype=torch.int32)
    used = torch.tensor([3, 4], dtype=torch.int32)
    call = (cache, table, used, 512, metadata)
    assert not metadata.have_initialized
    flash_mla.flash_mla_with_kvcache(random(2, 1, 4, 576), *call)
    assert metadata.have_initialized and metadata.config.h_q == 4
    with pytest.raises(AssertionError, match="h_q = 4, that of its first call, got 8"):
        flash_mla.flash_mla_with_kvcache(random(2, 1, 8, 576), *call)


def test_rows_of_vllm_are_read_with_the_scales_that_they_have():
    cache = fa3.mla.empty_cache(1, 64, rows="group128", device="cpu")
    x = random(64, 576, seed=8).bfloat16()
    fa3.mla.append(cache, x[:, :512], x[:, 512:], slots=torch.arange(64), scaling="exact")
    indices = torch.arange(64, dtype=torch.int32).view(1, 1, 64)
    q = random(1, 1, 64, 576, seed=9).bfloat16()
    metadata, _ = flash_mla.get_mla_metadata()
    call = {"is_fp8_kvcache": True, "indices": indices, "out": torch.empty(1, 1, 64, 512)}
    out, _ = flash_mla.flash_mla_with_kvcache(
        q, cache.unsqueeze(2), None, None, 512, metadata, **call
    )
    assert out is call["out"]
    keys = fa3.mla.gather(cache, torch.arange(64), dtype="float32")
    o, _ = expected(q[0, 0], keys, 576**-0.5)
    np.testing.assert_allclose(out[0, 0].double(), o, atol=1e-6, rtol=1e-5)


def test_wrong_calls_raise():
    cache, q = random(1, 64, 1, 576), random(1, 1, 4, 576)
    metadata, _ = flash_mla.get_mla_metadata()
    with pytest.raises(fa3.InvalidArgument, match="head_dim_v: expected 512"):
        flash_mla.flash_mla_with_kvcache(q, cache, None, None, 576, metadata)
    with pytest.raises(AssertionError, match="block_table: expected without indices"):
        flash_mla.flash_mla_with_kvcache(q, cache, None, None, 512, flash_mla.get_mla_metadata()[0])


@pytest.mark.parametrize("number", [-(2**63), 2**32, 2**40])
def test_an_index_beyond_32_bits_names_no_row(number):
    q, kv = random(1, 4, 512), random(4, 1, 512, seed=1)
    found, right = (
        flash_mla.flash_mla_sparse_fwd(q, kv, torch.tensor([[[1, other]]]), 0.5)
        for other in (number, -1)
    )
    for ours, theirs in zip(found, right, strict=True):
        assert torch.equal(ours, theirs)


def test_a_plan_takes_options_of_attention_alone():
    with pytest.raises(TypeError, match="unexpected keyword argument 'casual'"):
        fa3.mla.plan(random(1, 1, 4, 576), random(1, 64, 1, 576), casual=True)

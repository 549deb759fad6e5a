# SPDX-License-Identifier: Apache-2.0
"""qv of FlashAttention-3's, vLLM's, sglang's and FlashAttention-4's names, against float64."""

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat import flash_attn_4, flash_attn_interface, sglang, vllm  # noqa: E402

PAGES, PAGE = 8, 5
LENGTHS = [5, 0, 7, 10]
CU = torch.tensor([0, 2, 3, 6, 7], dtype=torch.int32)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected(q, k, v, qv, **options):
    """float64, of (b, s, h, d) tensors."""
    q, k, v, qv = (x.detach().double().numpy() for x in (q, k, v, qv))
    return oracle.forward(np.concatenate([qv, q], -1), np.concatenate([v, k], -1), v, **options)


def close(got, wanted, tolerance=2e-5):
    np.testing.assert_allclose(got.detach().double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("function", [flash_attn_interface, flash_attn_4], ids=["fa3", "fa4"])
@pytest.mark.parametrize("dim_v, heads_k", [(256, 6), (512, 2), (512, 1), (256, 1)])
def test_values_may_count_in_scores(dim_v, heads_k, function):
    q, qv = random(2, 9, 6, 64), random(2, 9, 6, dim_v, seed=1)
    k, v = random(2, 31, heads_k, 64, seed=2), random(2, 31, heads_k, dim_v, seed=3)
    both = {"return_attn_probs" if function is flash_attn_interface else "return_lse": True}
    out, lse = function.flash_attn_func(q, k, v, qv=qv, causal=True, **both)
    wanted, wanted_lse = expected(q, k, v, qv, causal=True)
    close(out, wanted)
    close(lse, wanted_lse)


def test_windows_chunks_and_softcap_stay():
    q, qv = random(1, 9, 6, 64), random(1, 9, 6, 256, seed=1)
    k, v = random(1, 31, 2, 64, seed=2), random(1, 31, 2, 256, seed=3)
    options = {"window": (4, 2), "softcap": 15.0, "scale": 0.2}
    out = flash_attn_interface.flash_attn_func(
        q, k, v, softmax_scale=0.2, qv=qv, window_size=(4, 2), softcap=15.0
    )
    close(out, expected(q, k, v, qv, **options)[0])
    out = flash_attn_interface.flash_attn_func(q, k, v, qv=qv, attention_chunk=7)
    close(out, expected(q, k, v, qv, attention_chunk=7)[0])


def test_packed_sequences_and_gradients():
    q, qv = (random(7, 4, d, seed=d).requires_grad_() for d in (64, 256))
    k, v = (random(7, 2, d, seed=d + 1).requires_grad_() for d in (64, 256))
    out = flash_attn_interface.flash_attn_varlen_func(q, k, v, CU, CU, 3, 3, causal=True, qv=qv)
    do = random(*out.shape, seed=5)
    gradients = torch.autograd.grad(out, (q, k, v, qv), do)
    for begin, end in zip(CU[:-1].tolist(), CU[1:].tolist(), strict=True):
        parts = [x[None, begin:end].detach().double().requires_grad_() for x in (q, k, v, qv)]
        q1, k1, v1, qv1 = parts
        k2, v2 = (x.repeat_interleave(2, 2) for x in (k1, v1))
        scores = torch.einsum("bihd,bjhd->bhij", torch.cat((qv1, q1), -1), torch.cat((v2, k2), -1))
        hidden = torch.ones(end - begin, end - begin).triu(1).bool()
        weights = (scores * 320**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        wanted = torch.einsum("bhij,bjhd->bihd", weights, v2)
        close(out[None, begin:end], wanted.detach())
        of_parts = torch.autograd.grad(wanted, parts, do[None, begin:end].double())
        for got, one in zip(gradients, of_parts, strict=True):
            close(got[None, begin:end], one, 1e-4)


def latent_pages():
    """A cache [latent | rope], its table, and the rows of each sequence."""
    cache = random(PAGES, PAGE, 1, 576, seed=4)
    table = torch.arange(PAGES, dtype=torch.int32).view(4, 2).flip(1)
    rows = [
        cache[own[: -(-n // PAGE)].long()].flatten(0, 1)[:n]
        for own, n in zip(table, LENGTHS, strict=True)
    ]
    return cache, table, rows


def decode(module, q, qv, cache, table, **options):
    """Two new tokens a sequence by each module's own call; q (4, 2, h, 64)."""
    used = torch.tensor(LENGTHS, dtype=torch.int32)
    k, v = cache[..., 512:], cache[..., :512]
    if module is vllm:
        cu = torch.arange(0, 9, 2, dtype=torch.int32)
        packed = (x.flatten(0, 1) for x in (q, qv))
        q, qv = packed
        call = {"q_v": qv, "seqused_k": used, "block_table": table, "causal": True}
        out = vllm.flash_attn_varlen_func(q, k, v, 2, cu, 20, **call, **options)
        return out.unflatten(0, (4, 2))
    options = {"cache_seqlens": used, "page_table": table, "causal": True, **options}
    return module.flash_attn_with_kvcache(q, k, v, qv=qv, **options)


@pytest.mark.parametrize("module", [flash_attn_interface, sglang, vllm], ids=lambda m: m.__name__)
def test_a_latent_cache_is_read_where_it_lies(module, monkeypatch):
    q, qv = random(4, 2, 16, 64), random(4, 2, 16, 512, seed=1)
    cache, table, rows = latent_pages()
    seen = []
    attend = fa3.attention

    def watched(q, k, v, **options):
        seen.extend((k, v))
        return attend(q, k, v, **options)

    monkeypatch.setattr(fa3, "attention", watched)
    out = decode(module, q, qv, cache, table)
    for x in seen:
        assert x.data_ptr() == cache.data_ptr() and x.stride() == cache.stride()
    scale = 64**-0.5 if module is vllm else 576**-0.5  # each name's own default
    for b, own in enumerate(rows):
        own = own[None]
        wanted, _ = expected(
            q[b : b + 1], own[..., 512:], own[..., :512], qv[b : b + 1], causal=True, scale=scale
        )
        close(out[b], wanted[0])


@pytest.mark.parametrize("k_first", [False, True])
def test_caches_that_lie_otherwise_give_the_same(k_first):
    q, qv = random(4, 2, 16, 64), random(4, 2, 16, 512, seed=1)
    cache, table, _ = latent_pages()
    wanted = decode(flash_attn_interface, q, qv, cache, table)
    apart = torch.cat((cache[..., 512:], cache[..., :512]), -1)
    k, v = (
        (apart[..., :64], apart[..., 64:])
        if k_first
        else (cache[..., 512:].clone(), cache[..., :512].clone())
    )
    used = torch.tensor(LENGTHS, dtype=torch.int32)
    out = flash_attn_interface.flash_attn_with_kvcache(
        q, k, v, qv=qv, cache_seqlens=used, page_table=table, causal=True
    )
    torch.testing.assert_close(out, wanted, rtol=0, atol=0)


def test_new_rows_are_turned_written_and_attended_to():
    q, qv = random(2, 3, 8, 64), random(2, 3, 8, 512, seed=1)
    k, v = random(2, 3, 1, 64, seed=2), random(2, 3, 1, 512, seed=3)
    cache = random(2, 12, 1, 576, seed=4)
    used = torch.tensor([4, 9], dtype=torch.int32)
    angles = torch.arange(16)[:, None] * torch.logspace(0, -2, 32)
    options = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "causal": True}
    copy = cache.clone()
    turned = fa3.append(
        copy[..., 512:], copy[..., :512], k, v, seqused=used, q=q, rotary_interleaved=True,
        rotary_cos=angles.cos(), rotary_sin=angles.sin(),
    )  # fmt: skip
    out = flash_attn_interface.flash_attn_with_kvcache(
        q, cache[..., 512:], cache[..., :512], k, v, qv=qv, cache_seqlens=used, **options
    )
    torch.testing.assert_close(cache, copy)
    for b, n in enumerate(used.tolist()):
        rows = copy[b : b + 1, : n + 3]
        one = slice(b, b + 1)
        wanted, _ = expected(turned[one], rows[..., 512:], rows[..., :512], qv[one], causal=True)
        close(out[b], wanted[0])


def test_scores_of_values_alone():
    qv, cache = random(2, 1, 4, 512), random(2, 9, 1, 512, seed=1)
    out = sglang.flash_attn_with_kvcache(None, None, cache, qv=qv, only_qv=True)
    close(out, oracle.forward(qv.double().numpy(), *[cache.double().numpy()] * 2)[0])


def test_what_does_not_fit_is_refused_by_name():
    q, k, v = random(1, 2, 4, 64), random(1, 3, 4, 64), random(1, 3, 4, 256)
    with pytest.raises(fa3.InvalidArgument, match=r"qv: expected .*\(1, 2, 4, 256\).*got .*64"):
        flash_attn_interface.flash_attn_func(q, k, v, qv=q)
    qv = random(1, 2, 4, 256)
    with pytest.raises(
        fa3.InvalidArgument, match="k, v: expected .*q's type torch.float32 with qv"
    ):
        flash_attn_interface.flash_attn_func(q, k.half(), v.half(), qv=qv)


def in_a_cache(cache, q, qv):
    k, v = cache[..., 256:], cache[..., :256]
    return flash_attn_interface.flash_attn_func(q, k, v, qv=qv, causal=True)


def test_a_trace_reads_other_caches_than_it_was_made_with():
    from torch.fx.experimental.proxy_tensor import make_fx

    q, qv = random(2, 3, 2, 64), random(2, 3, 2, 256, seed=1)
    padded = random(2, 9, 1, 328, seed=3)[..., :320]
    short, long = random(2, 9, 1, 320, seed=2), random(2, 12, 1, 320, seed=4)
    graph = make_fx(in_a_cache)(short, q, qv)
    close(graph(padded, q, qv), in_a_cache(padded, q, qv).double())
    traced = torch.jit.trace(in_a_cache, (short, q, qv), check_trace=False)
    close(traced(long, q, qv), in_a_cache(long, q, qv).double())


def test_transforms_of_torch_func_take_it():
    q, qv = random(2, 3, 2, 64), random(2, 3, 2, 256, seed=1)
    cache = random(2, 9, 1, 320, seed=2)
    each = torch.func.vmap(lambda *x: in_a_cache(*(y[None] for y in x))[0])
    close(each(cache, q, qv), in_a_cache(cache, q, qv).double())


def test_float8_beside_qv_and_other_lengths_are_refused_by_name():
    q, qv = random(1, 3, 2, 64), random(1, 3, 2, 256, seed=1)
    k, v = random(1, 9, 1, 64, seed=2), random(1, 9, 1, 256, seed=3)
    small = (x.to(torch.float8_e4m3fn) for x in (q, k, v, qv))
    call = flash_attn_interface.flash_attn_func
    with pytest.raises(fa3.InvalidArgument, match="^k, v: .*fa3.mla.attention"):
        call(*list(small)[:3], qv=qv.to(torch.float8_e4m3fn))
    with pytest.raises(fa3.InvalidArgument, match="^v: expected"):
        call(q, k, v[:, 1:], qv=qv)

# SPDX-License-Identifier: Apache-2.0
"""fa3.mla.sparse_attention and its gradients, against float64 and finite differences."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import mla  # noqa: E402

DIM_V = 512


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected(q, kv, indices, counts, scale, sink, do, dlse, with_sink):
    """out, lse, max, dq, dkv, dsink of float64 arrays; key by key, each rule by itself."""
    rows, heads, _ = q.shape
    out = np.zeros((rows, heads, DIM_V))
    lse, largest = np.full((2, heads, rows), -np.inf)
    dq, dkv, dsink = np.zeros_like(q), np.zeros_like(kv), np.zeros(heads)
    sink = np.full(heads, -np.inf) if sink is None else sink
    for i, of_query in enumerate(indices):
        count = len(of_query) if counts is None else max(counts[i], 0)
        keys = [j for j in of_query[:count] if 0 <= j < len(kv)]
        if with_sink:
            lse[:, i] = sink
        if not keys:
            if with_sink:  # which is the LSE
                dsink += np.where(np.isinf(sink), 0, dlse[:, i])
            continue
        k = kv[keys]
        scores = scale * q[i] @ k.T
        largest[:, i] = scores.max(1)
        own = np.logaddexp.reduce(scores, axis=1)
        both = np.logaddexp(own, sink)
        lse[:, i] = both if with_sink else own
        p = np.exp(scores - both[:, None])
        out[i] = p @ k[:, :DIM_V]
        delta = (do[i] * out[i]).sum(1)
        ds = p * (do[i] @ k[:, :DIM_V].T - delta[:, None])
        of_lse = p if with_sink else np.exp(scores - own[:, None])
        ds += of_lse * dlse[:, i, None]
        p_sink = np.where(np.isfinite(sink), np.exp(sink - both), 0)
        dsink -= p_sink * (delta - (dlse[:, i] if with_sink else 0))
        dq[i] = scale * ds @ k
        np.add.at(dkv, keys, scale * ds.T @ q[i])
        np.add.at(dkv[:, :DIM_V], keys, p.T @ do[i])
    return out, lse, largest, dq, dkv, dsink


SINK = torch.tensor([0.5, -torch.inf, torch.inf, 4.0, -30.0])
LISTS = {
    "repeated and invalid": (
        [[3, 3, -1, 7], [0, 1, 2, 3], [-(2**31), 2**31 - 1, 8, -1], [19, 9, 9, 9], [7, 19, 0, 5]],
        None,
    ),
    "counted": ([[3, 5, 6, 7], [9, 9, 8, 8], [1, 2, 3, 4], [5, 6, 7, 0], [19, 3, 2, 1]],
                [4, 0, 9, 1, -3]),
}  # fmt: skip


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("dim", [576, 512])
@pytest.mark.parametrize("sink, with_sink", [(None, True), (SINK, True), (SINK, False)])
def test_both_passes_beside_float64(sink, with_sink, dim, lists):
    lists, counts = LISTS[lists]
    q, kv = random(5, 5, dim), random(20, dim, seed=1)
    kv[8] = 0 if any(8 in x for x in lists) else torch.nan  # never named
    kv[11:18] = torch.nan
    leaves = [x.clone().requires_grad_() for x in (q, kv, *([] if sink is None else [sink]))]
    call = {
        "index_count": None if counts is None else torch.tensor(counts, dtype=torch.int32),
        "sink": None if sink is None else leaves[2],
        "scale": 0.07,
        "lse_with_sink": with_sink,
        "return_lse": True,
        "return_max": True,
    }
    out, lse, largest = mla.sparse_attention(*leaves[:2], torch.tensor(lists), **call)
    do, dlse = random(*out.shape, seed=2), random(*lse.shape, seed=3)
    gradients = torch.autograd.grad((out, lse), leaves, (do, dlse))
    of_sink = None if sink is None else sink.double().numpy()
    arrays = (x.double().numpy() for x in (do, dlse))
    with np.errstate(invalid="ignore"):  # inf - inf where a sink is inf
        wanted = expected(
            *(q.double().numpy(), np.nan_to_num(kv.double().numpy()), lists, counts, 0.07),
            *(of_sink, *arrays, with_sink),
        )
    for got, right in zip((out, lse, largest, *gradients), wanted, strict=False):
        np.testing.assert_allclose(got.detach().double(), right, rtol=2e-5, atol=2e-5)
    assert not gradients[1][11:18].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_have_their_inputs_types(dtype):
    q, kv = random(6, 3, 576).to(dtype), random(40, 576, seed=1).to(dtype)
    indices = torch.randint(40, (6, 33), generator=torch.Generator().manual_seed(0))
    leaves = [x.requires_grad_() for x in (q, kv)]
    out = mla.sparse_attention(*leaves, indices)
    do = random(*out.shape, seed=2).to(dtype)
    gradients = torch.autograd.grad(out, leaves, do)
    wide = [x.detach().float().requires_grad_() for x in leaves]
    wanted = torch.autograd.grad(mla.sparse_attention(*wide, indices), wide, do.float())
    assert out.dtype == dtype and all(x.dtype == dtype for x in gradients)
    tolerance = 2**-6 if dtype == torch.bfloat16 else 2**-9
    for got, right in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got.float(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:Input #.* is not a double precision")
def test_gradients_agree_with_finite_differences():
    q, kv, sink = random(2, 2, 576), random(5, 576, seed=1), random(2, seed=2)
    indices = torch.tensor([[0, 3, 3, -1], [4, 1, 2, 0]])
    leaves = [x.requires_grad_() for x in (q, kv, sink)]

    def attend(q, kv, sink):
        given = {"sink": sink, "scale": 0.05, "return_lse": True}
        return mla.sparse_attention(q, kv, indices, **given)

    how = {"eps": 3e-2, "atol": 2e-3, "rtol": 2e-3, "nondet_tol": 0.0, "fast_mode": True}
    assert torch.autograd.gradcheck(attend, leaves, **how)


def test_gradients_are_the_same_on_any_number_of_threads():
    q, kv = random(23, 4, 576), random(64, 576, seed=1)
    indices = torch.randint(64, (23, 50), generator=torch.Generator().manual_seed(0))

    def gradients(num_threads):
        leaves = [x.clone().requires_grad_() for x in (q, kv)]
        out = mla.sparse_attention(*leaves, indices, num_threads=num_threads, deterministic=True)
        return torch.autograd.grad(out.square().sum(), leaves)

    one = gradients(1)
    for num_threads in (2, 3, 8):
        assert all(map(torch.equal, gradients(num_threads), one))


def test_a_batch_has_sequences_of_its_own():
    q, kv = random(2, 5, 3, 576), random(2, 9, 1, 576, seed=1)
    indices = torch.randint(-2, 12, (2, 5, 1, 7), generator=torch.Generator().manual_seed(0))
    counts, call = (
        torch.randint(8, (2, 5)),
        {"return_lse": True, "return_max": True, "causal": True},
    )
    leaves = [x.requires_grad_() for x in (q, kv)]
    results = mla.sparse_attention(*leaves, indices, index_count=counts, **call)
    gradients = torch.autograd.grad(results[0].sum(), leaves)
    assert [tuple(x.shape) for x in results] == [(2, 5, 3, 512), (2, 3, 5), (2, 3, 5)]
    for b in range(2):
        own = [x[b].detach().requires_grad_() for x in (q, kv)]
        last = 9 - 5 + torch.arange(5)[:, None, None]
        seen = indices[b].where(indices[b] <= last, -1)  # what causal hides
        wanted = mla.sparse_attention(
            *own, seen, index_count=counts[b], **{**call, "causal": False}
        )
        for got, right in zip(results, wanted, strict=True):
            assert torch.equal(got[b], right)
        for got, right in zip(gradients, torch.autograd.grad(wanted[0].sum(), own), strict=True):
            torch.testing.assert_close(got[b], right, rtol=1e-6, atol=1e-6)


def test_compilers_and_torchs_own_checks():
    q, kv, sink = random(4, 3, 576), random(9, 576, seed=1), random(3, seed=2)
    indices = torch.randint(-1, 9, (4, 5), generator=torch.Generator().manual_seed(0)).int()
    leaves = [x.requires_grad_() for x in (q, kv, sink)]

    def loss(q, kv, sink):
        out, lse = mla.sparse_attention(q * 2, kv, indices, sink=sink, return_lse=True)
        return out.sin().sum() + lse.sum()

    wanted = torch.autograd.grad(loss(*leaves), leaves)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for got, right in zip(torch.autograd.grad(compiled(*leaves), leaves), wanted, strict=True):
        torch.testing.assert_close(got, right)
    numbers = 0.1, True, False, 0, 0
    torch.library.opcheck(
        torch.ops.fa3.sparse_attention.default, (q, kv, indices, None, sink, *numbers)
    )
    q, kv, sink = (x.detach() for x in leaves)
    out, lse, _ = torch.ops.fa3.sparse_attention(q, kv, indices, None, None, *numbers)
    torch.library.opcheck(
        torch.ops.fa3.sparse_attention_backward.default,
        (torch.ones_like(out), q, kv, indices, None, None, out, lse, None, *numbers),
    )
    on_meta = mla.sparse_attention(*(x.to("meta") for x in (q, kv, indices)), return_max=True)
    assert [tuple(x.shape) for x in on_meta] == [(4, 3, 512), (3, 4)]


def test_gradients_of_torch_func():
    q, kv = random(4, 3, 576), random(9, 576, seed=1)
    indices = torch.randint(-1, 9, (4, 5), generator=torch.Generator().manual_seed(0))

    def loss(q, kv):
        return mla.sparse_attention(q, kv, indices).sin().sum()

    leaves = [x.clone().requires_grad_() for x in (q, kv)]
    wanted = torch.autograd.grad(loss(*leaves), leaves)
    for got, right in zip(torch.func.grad(loss, (0, 1))(q, kv), wanted, strict=True):
        assert torch.equal(got, right)


def test_autocast_makes_16_bit_calls():
    q, kv = random(4, 3, 576).requires_grad_(), random(9, 576, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = mla.sparse_attention(q, kv, torch.zeros(4, 2, dtype=torch.int64))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32


def test_what_cannot_be_is_refused_by_name():
    q, kv, indices = random(4, 3, 576), random(9, 576), torch.zeros(4, 2, dtype=torch.int32)
    with pytest.raises(TypeError, match="q: expected a torch tensor, got ndarray"):
        mla.sparse_attention(q.numpy(), kv, indices)
    with pytest.raises(fa3.InvalidArgument, match=r"kv: expected rank 2, or rank 3 with one head"):
        mla.sparse_attention(q, random(9, 2, 576), indices)
    with pytest.raises(fa3.InvalidArgument, match=r"q: expected head dim 512"):
        mla.sparse_attention(q, kv[:, :512], indices)
    leaf = q.clone().requires_grad_()
    with pytest.raises(fa3.Unsupported, match="reference: no gradients of latent rows"):
        mla.sparse_attention(leaf, kv, indices, engine="reference").sum().backward()
    (gradient,) = torch.autograd.grad(
        mla.sparse_attention(leaf, kv, indices).square().sum(), leaf, create_graph=True
    )
    with pytest.raises(fa3.Unsupported, match="no second derivatives"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    "name, value",
    [
        ("kv", random(1, 7, 576)),
        ("indices", torch.zeros(1, 3, 4, dtype=torch.int32)),
        ("indices", torch.zeros(2, 3, 4)),
        ("indices", torch.zeros(2, 3, 4, dtype=torch.bool)),
        ("index_count", torch.ones(3, 2, dtype=torch.int32)),
        ("index_count", torch.ones(6, dtype=torch.int32)),
    ],
    ids=lambda x: x if isinstance(x, str) else f"{tuple(x.shape)} {x.dtype}",
)
def test_shapes_that_would_be_spread_out_are_refused(name, value):
    given = {"kv": random(2, 7, 576), "indices": torch.zeros(2, 3, 4, dtype=torch.int64)}
    given |= {"q": random(2, 3, 2, 576), name: value}
    with pytest.raises(fa3.InvalidArgument, match=f"^{name}: expected"):
        mla.sparse_attention(**given)


@pytest.mark.parametrize("shape", [(0, 3, 2, 576), (2, 3, 2, 576), (3, 2, 576)])
def test_nothing_to_attend_to_gives_zeros_and_gradients_of_zero(shape):
    q = random(*shape).requires_grad_()
    kv = torch.empty(*shape[:-3], 0, 576, requires_grad=True)
    indices = torch.zeros(*shape[:-2], 4, dtype=torch.int64)
    out, lse = mla.sparse_attention(q, kv, indices, return_lse=True)
    assert out.shape == (*shape[:-1], DIM_V) and not out.any() and (lse == -torch.inf).all()
    out.sum().backward()
    assert kv.grad.shape == kv.shape and not q.grad.any()


def test_gradients_on_a_gpu_have_shapes_deterministic_or_not():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, kv = (torch.empty(n, *rest, device="cuda") for n, rest in ((4, (3, 576)), (9, (576,))))
        indices = torch.zeros(4, 2, dtype=torch.int32, device="cuda")
        assert mla.sparse_attention(q, kv, indices).shape == (4, 3, 512)
        out, lse = mla.sparse_attention(q, kv, indices, return_lse=True)
        call = out, q, kv, indices, None, None, out, lse, None, 0.1, True, False, 0, 0
        dq, dkv, _ = torch.ops.fa3.sparse_attention_backward(*call)
        assert (dq.shape, dkv.shape) == (q.shape, kv.shape) and dq.is_cuda
        q.requires_grad_()
        assert mla.sparse_attention(q, kv, indices).requires_grad
        assert mla.sparse_attention(q, kv, indices, deterministic=True).requires_grad

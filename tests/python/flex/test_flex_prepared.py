# SPDX-License-Identifier: Apache-2.0
"""What is decided of a call serves calls that are alike, and no others: each change that a result
could depend on is seen."""

import contextlib
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")


from warm_calls import (  # noqa: E402
    BIAS,
    BLOCKS,
    CALLS,
    DIM,
    HEADS,
    PACKED,
    ROWS,
    SLOPES,
    STARTS,
    USED,
    K,
    Q,
    V,
    alibi,
    attend,
    decided,  # noqa: F401
    documents,
    flex,
    forget,
    is_recorded,
    is_seen,
    new_table,  # noqa: F401
    softcap,
)

from fa3.flex import functions, kept  # noqa: E402
from fa3.flex.decisions import Decision  # noqa: E402


def decisions():
    return [e for e in kept.table.entries.values() if isinstance(e.value, Decision)]


@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_decides_nothing(decided, name):  # noqa: F811
    first = CALLS[name]()
    cold = len(decided)
    assert cold > 0
    assert all(torch.equal(CALLS[name](), first) for _ in range(2))
    assert len(decided) == cold


@pytest.mark.parametrize("kind", ["function", "bias"])
def test_gradients_are_recorded_where_they_are_wanted(kind):
    slopes = torch.tensor([0.5, 0.25])
    q = Q.clone()

    def call():
        if kind == "bias":
            return attend((q, K, V), alibi_slopes=slopes)
        return flex(lambda s, b, h, i, j: s + slopes[h] * j, tensors=(q, K, V))

    for _ in range(2):
        assert not is_recorded(call())
    for tensor in (slopes, q):
        tensor.requires_grad_()
        for _ in range(2):
            out = call()
            (grad,) = torch.autograd.grad(out.sum(), tensor)
            assert is_recorded(out) and grad.shape == tensor.shape and grad.abs().sum() > 0
        with torch.no_grad():
            assert not is_recorded(call())
        with torch.inference_mode():
            assert call().is_inference()
        assert is_recorded(call())
        tensor.requires_grad_(False)
        assert not is_recorded(call())
    assert not call().is_inference()


def test_lists_of_inference_mode_and_out_of_it_are_the_same(decided):  # noqa: F811
    with torch.inference_mode():
        inside = flex(mask_mod=documents)
    q = Q.clone().requires_grad_()
    for _ in range(2):
        out = flex(mask_mod=documents, tensors=(q, K, V))
        torch.testing.assert_close(out, inside.clone())
        assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()


@contextlib.contextmanager
def elsewhere():
    """Autocast of a GPU, which torch.autocast leaves off where there is none."""
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def gradients_of_a_softcap():
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    return torch.autograd.grad(flex(softcap, tensors=leaves).square().sum(), leaves)


def test_autocast_is_looked_at():
    """Masks are no lists there: these would be cast, and score functions are not."""
    for call in (lambda: flex(mask_mod=documents), lambda: flex(softcap)):
        outside = call()
        for _ in range(2):
            with elsewhere():
                assert torch.equal(call(), outside)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert call().dtype == torch.float32
                torch.testing.assert_close(call(), outside)
            assert torch.equal(call(), outside)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine = gradients_of_a_softcap()
    assert all(map(torch.equal, mine, gradients_of_a_softcap()))
    for _ in range(2):
        assert attend(bias=BIAS).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert attend(bias=BIAS).dtype == torch.bfloat16


def test_what_a_switch_of_torchs_may_refuse_is_not_kept(decided):  # noqa: F811
    for _ in range(2):
        attend(bias=BIAS, deterministic=True)
    assert len(decided) == 2 and not decisions()


OPTIONS = {
    "scale": [0.1, 0.2, None],
    "causal": [True, False],
    "window": [(3, 0), (3, 1), (None, 0), (None, None)],
    "softcap": [0.5, 1.0, None],
    "seqused_k": [USED, torch.tensor([3, 24], dtype=torch.int32), None],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_looked_at(name):
    calls = [lambda **o: attend(alibi_slopes=SLOPES, **o), lambda **o: attend(bias=BIAS > 0, **o)]
    if name != "softcap":
        calls.append(lambda **o: flex(alibi, **o))
        calls.append(lambda **o: flex(mask_mod=documents, **o))
        calls.append(lambda **o: flex(softcap, mask_mod=documents, **o))
    for call in calls:
        first = []
        for value in OPTIONS[name]:
            forget()
            first.append(call(**{name: value}))
        for value, right in [*zip(OPTIONS[name], first, strict=True)] * 2:
            assert torch.equal(call(**{name: value}), right)
        assert not any(torch.equal(a, b) for a, b in itertools.pairwise(first))


WITH_SHAPES = {
    "bias": lambda tensors, added: attend(tensors, bias=added),
    "bias and slopes": lambda tensors, added: attend(tensors, bias=added, alibi_slopes=SLOPES),
    "documents": lambda tensors, _: flex(None, tensors, mask_mod=documents, causal=True),
    "documents and a function": lambda tensors, _: flex(softcap, tensors, mask_mod=documents),
}


@pytest.mark.parametrize("name", WITH_SHAPES)
def test_shapes_types_and_strides_are_looked_at(name):
    wide = BIAS[:1, :1].expand(HEADS, ROWS, ROWS)
    given = [
        ((Q, K, V), BIAS),
        ((Q[:, :9].contiguous(), K, V), BIAS[:, :9].contiguous()),
        ((Q, K[:, :9].contiguous(), V[:, :9].contiguous()), BIAS[..., :9].contiguous()),
        ((Q[..., :4].contiguous(), K[..., :4].contiguous(), V), BIAS),
        ((Q, K[:, :, :1], V[:, :, :1]), BIAS[:1]),
        ((Q.transpose(1, 2).contiguous().transpose(1, 2), K, V), BIAS.to(torch.bfloat16)),
        ((Q.double(), K.double(), V.double()), wide),
        ((Q, K, V[..., :3]), wide),
        ((Q, K, V), wide),
        ((Q, K, V), BIAS.transpose(1, 2)),
    ]
    right = []
    for tensors, added in given:
        forget()
        right.append(WITH_SHAPES[name](tensors, added))
    forget()
    for (tensors, added), expected in zip(given * 2, right * 2, strict=True):
        out = WITH_SHAPES[name](tensors, added)
        assert torch.equal(out, expected) and out.stride() == expected.stride()


def test_whether_columns_lie_side_by_side_is_looked_at():
    """A mask of such tensors goes by block lists, which no others do."""
    wide = torch.randn(1, 256, 2, 128)
    apart = wide[..., ::2]

    def causal(batch, head, query, key):
        return query >= key

    together = [apart.contiguous() for _ in range(3)]
    expected = fa3.attention(*together, causal=True)
    for x in (together, [apart] * 3):
        out = fa3.flex_attention(*x, mask_mod=causal)
        torch.testing.assert_close(out, expected)


def test_a_tensor_that_stands_for_a_number_is_read_in_each_call():
    scale = torch.tensor(0.1)
    for call in (lambda: flex(softcap, scale=scale), lambda: attend(bias=BIAS, scale=scale)):
        assert is_seen(call, lambda: scale.mul_(3))
    left = torch.tensor(3)
    assert is_seen(lambda: flex(softcap, window=(left, None)), lambda: left.add_(4))


def test_lengths_that_are_one_tensor_for_queries_and_keys_are_looked_at():
    def call(of_keys):
        options = {**PACKED, "cu_seqlens_k": of_keys, "alibi_slopes": SLOPES}
        return attend((Q[0], K[0], V[0]), **options)

    def of_parts(*rows):
        parts = [
            attend((Q[:1, a:b], K[:1, c:d], V[:1, c:d]), alibi_slopes=SLOPES)[0]
            for (a, b), (c, d) in zip([(0, 10), (10, 24)], rows, strict=True)
        ]
        return torch.cat(parts)

    other = torch.tensor([0, 4, 24], dtype=torch.int32)
    same, unequal = of_parts((0, 10), (10, 24)), of_parts((0, 4), (4, 24))
    for _ in range(2):
        torch.testing.assert_close(call(STARTS), same)
        torch.testing.assert_close(call(other), unequal)
        torch.testing.assert_close(call(STARTS.clone()), same)


def test_what_watches_calls_is_asked_in_each():
    call = lambda q: flex(softcap, tensors=(q, K, V))  # noqa: E731
    call(Q)
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(fa3.Unsupported, match="forward-mode"),
    ):
        call(torch.autograd.forward_ad.make_dual(Q, Q))
    others = [lambda q: attend(bias=BIAS, tensors=(q, K, V)), lambda q: attend(bias=BIAS > 0)]
    others.append(lambda q: flex(mask_mod=documents, tensors=(q, K, V)))
    for kind in (call, *others):
        for transformed in (
            torch.func.vmap(kind),
            torch.func.grad(lambda q, kind=kind: kind(q).sum()),
        ):
            with pytest.raises(fa3.Unsupported, match="^score_mod, .*torch.func's transforms"):
                transformed(Q)
    with pytest.raises(fa3.Unsupported, match="torch.func"):
        torch.func.vmap(lambda x: x + call(Q).sum())(torch.ones(2))
    by_lists = lambda q: flex(block_mask=BLOCKS, tensors=(q, K, V)).sum()  # noqa: E731
    leaf = Q.clone().requires_grad_()
    right = torch.autograd.grad(by_lists(leaf), leaf)[0]
    torch.testing.assert_close(torch.func.grad(by_lists)(Q), right)
    with torch.inference_mode():  # where torch shows the function other operations
        forget()
        torch.testing.assert_close(call(Q), flex(softcap))


def test_threads_have_calls_of_their_own():
    def call(number):
        row = torch.full((HEADS,), float(number))
        out = flex(lambda s, b, h, i, j: s * row[h] * number)
        return out, flex(scale=DIM**-0.5 * number**2)

    with ThreadPoolExecutor(4) as threads:
        for mine, right in threads.map(call, [1, 2, 3, 4] * 20):
            torch.testing.assert_close(mine, right)


def test_the_table_keeps_its_size_and_what_was_used_last(monkeypatch):
    monkeypatch.setattr(kept, "MOST", 4)
    made = []
    trace = functions.trace
    monkeypatch.setattr(functions, "trace", lambda f: made.append(f) or trace(f))
    for number in range(7):
        flex(softcap)
        flex(lambda s, b, h, i, j, n=number: s * n)
    assert len(kept.table.entries) == 4
    assert made.count(softcap) == 1 and len(made) == 8


def test_what_is_kept_keeps_no_tensor_alive(decided):  # noqa: F811
    tensors = [torch.arange(ROWS) // 5, torch.ones(HEADS), BIAS.clone()]
    times = lambda s, b, h, i, j, t=tensors[1]: s * t[h]  # noqa: E731
    same = lambda b, h, i, j, t=tensors[0]: t[i] == t[j]  # noqa: E731
    flex(times, mask_mod=same)
    attend(bias=tensors[2], alibi_slopes=tensors[1], seqused_k=USED)
    gone = [weakref.ref(t) for t in tensors]
    assert decisions()
    del tensors, times, same
    decided.clear()
    assert [t() for t in gone] == [None] * 3


def test_a_refusal_is_not_kept():
    for _ in range(2):
        with pytest.raises(fa3.Unsupported, match="no gradients? through|no gradient goes"):
            attend(alibi_slopes=SLOPES.clone().requires_grad_(), **pages())
        with contextlib.suppress(fa3.Unsupported), torch.no_grad():
            attend(alibi_slopes=SLOPES.clone().requires_grad_(), **pages())


def pages():
    table = torch.arange(4, dtype=torch.int32).view(2, 2)
    k, v = (x.reshape(4, 12, HEADS, DIM) for x in (K, V))
    return {"tensors": (Q[:, :1], k, v), "page_table": table, "seqused_k": USED}


def test_what_cannot_be_told_apart_is_looked_up_in_each_call():
    table, items = {"factor": 1.0}, [1.0]
    get = table.get
    by_dict = lambda s, b, h, i, j: s * table["factor"]  # noqa: E731
    by_method = lambda s, b, h, i, j: s * get("factor")  # noqa: E731
    by_list = lambda s, b, h, i, j: s * items[0]  # noqa: E731
    assert kept.signature(by_method) is kept.signature(by_list) is None
    assert is_seen(lambda: flex(by_dict), lambda: table.update(factor=2.0))
    assert is_seen(lambda: flex(by_method), lambda: table.update(factor=3.0))
    assert is_seen(lambda: flex(by_list), lambda: items.append(items.pop() + 1))


def test_a_number_is_known_by_its_type_and_value():
    np = pytest.importorskip("numpy", reason="NumPy is not installed")
    values = [2.0, 2, True, "2", None, 2**70, np.float64(2), np.float64(3), (2,), (2.0,), {2: 2}]
    made = [kept.signature((value,)) for value in values]
    assert made[5] is None  # more than 64 bits
    assert len({*made}) == len(values)
    assert made == [kept.signature((value,)) for value in values]
    nested = [((1,), 2), ((1, 2),), (1, (2,)), ({1: 2}, 3), ({1: 2, 3: ()},), ((1, 2), ())]
    assert len({kept.signature(*value) for value in nested}) == len(nested)


class Otherwise(torch.Tensor):
    """Shows itself as tensors of older torch do."""

    __dlpack_c_exchange_api__ = None


def test_a_tensor_without_an_exchange_table_is_known_too(decided):  # noqa: F811
    slopes = torch.tensor([0.5, 0.25]).as_subclass(Otherwise)
    score_mod = lambda s, b, h, i, j: s * slopes.shape[0] + slopes[h]  # noqa: E731
    first = kept.signature(score_mod)
    assert first is not None and kept.signature(score_mod) == first
    slopes.data = torch.ones(3)
    assert kept.signature(score_mod) != first
    assert kept.signature(slopes) is None

# SPDX-License-Identifier: Apache-2.0
"""The memory of a lazily negated view has its numbers without the sign: whoever reads memory gets
tensors that hold their numbers themselves, however such a view comes in, and whatever was decided
for a call that is like it but for that."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import _native  # noqa: E402
from fa3.distributed import backward_step, forward_step  # noqa: E402
from fa3.flex import attention  # noqa: E402
from fa3.flex.kept import signature  # noqa: E402

ROWS, HEADS = 12, 2
DRAW = torch.Generator().manual_seed(1)
Q, K, V = (torch.randn(2, ROWS, HEADS, 8, generator=DRAW) for _ in range(3))
BIAS = torch.randn(HEADS, ROWS, ROWS, generator=DRAW)
SLOPES = torch.tensor([0.5, 0.25])
STARTS = torch.tensor([0, 7, 24], dtype=torch.int32)
PACKED = {
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), STARTS),
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), 17),
}
PAGES = {
    "page_table": torch.tensor([[1, 0], [0, 1]], dtype=torch.int32),
    "seqused_k": torch.tensor([20, 24], dtype=torch.int32),
}


def negated(tensor):
    """-tensor as a view, of the tensor's own strides."""
    return torch._neg_view(tensor.clone())


def conjugate(tensor):
    """-tensor as a view that torch's public functions make: every second number of a memory."""
    return torch.complex(torch.zeros_like(tensor), tensor).conj().imag


def alibi(s, b, h, i, j):
    return s + SLOPES[h] * (j - i)


def added(bias):
    return lambda s, b, h, i, j: s + bias[h, i, j]


CALLS = {
    "q": lambda x: fa3.flex_attention(x(Q), K, V, score_mod=alibi, causal=True),
    "k": lambda x: fa3.flex_attention(Q, x(K), V, score_mod=alibi),
    "v": lambda x: fa3.flex_attention(Q, K, x(V), score_mod=alibi),
    "captured": lambda x: fa3.flex_attention(Q, K, V, score_mod=added(x(BIAS))),
    "captured, with a mask": lambda x: fa3.flex_attention(
        Q, K, V, score_mod=added(x(BIAS)), mask_mod=lambda b, h, i, j: i >= j
    ),
    "bias": lambda x: fa3.attention(Q, K, V, bias=x(BIAS)),
    "q with a bias": lambda x: fa3.attention(x(Q), K, V, bias=BIAS),
    "slopes": lambda x: fa3.attention(Q, K, V, alibi_slopes=x(SLOPES), causal=True),
    "packed": lambda x: fa3.flex_attention(
        *(y.flatten(0, 1) for y in (Q, x(K), V)), score_mod=alibi, **PACKED
    ),
    "pages": lambda x: fa3.attention(Q, x(K), V, alibi_slopes=SLOPES, causal=True, **PAGES),
}


@pytest.fixture
def given(monkeypatch):
    """What a GPU's kernels would be given: tensors of calls with a score function."""
    found = []
    for name in ("forward", "backward"):
        own = getattr(attention.device, name)

        def record(*arguments, own=own):
            for x in arguments:
                found.extend(x if isinstance(x, (list, tuple)) else [x])
            return own(*arguments)

        monkeypatch.setattr(attention.device, name, record)
    return found


@pytest.fixture
def qkv(device):
    shapes = (2, ROWS, 6, 16), (2, ROWS, 2, 16), (2, ROWS, 2, 16)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return [torch.randn(*shape, generator=DRAW).to(device, dtype) for shape in shapes]


def test_passes_and_merge_read_them_with_their_sign(qkv):
    """Also the imaginary part of a conjugated tensor is such a view."""
    q, k, v = qkv
    assert torch.complex(q.float(), q.float()).conj().imag.is_neg()
    out, lse = fa3.attention(q, k, v, return_lse=True)
    arguments = {"do": out, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    for name, value in arguments.items():
        lazy = fa3.attention_backward(**{**arguments, name: negated(value)})
        computed = fa3.attention_backward(**{**arguments, name: -value})
        assert all(map(torch.equal, lazy[:3], computed[:3])), name
    o_partial, lse_partial = out.float()[None], lse[None]
    for lazy, computed in (
        (fa3.merge(negated(o_partial), lse_partial), fa3.merge(-o_partial, lse_partial)),
        (fa3.merge(o_partial, negated(lse_partial)), fa3.merge(o_partial, -lse_partial)),
    ):
        assert all(map(torch.equal, lazy, computed))
    sink = torch.ones(6, device=q.device)
    for name in ("q", "k", "v"):
        call = {"q": q, "k": k, "v": v, "sink": sink}
        computed = fa3.attention(**{**call, name: -call[name]})
        assert torch.equal(fa3.attention(**{**call, name: negated(call[name])}), computed)
    assert torch.equal(
        fa3.attention(q, k, v, sink=negated(sink)), fa3.attention(q, k, v, sink=-sink)
    )


def test_views_beside_numpy_arrays_are_read_with_their_sign():
    q, k, v = Q, K, V
    mixed = fa3.attention(q.numpy(), negated(k), v.numpy())
    np.testing.assert_array_equal(mixed, fa3.attention(q, -k, v).numpy())
    with pytest.raises(fa3.InvalidArgument, match="out: .*lazily negated view"):
        fa3.attention(q.numpy(), k.numpy(), v.numpy(), out=negated(q))


def test_such_a_view_is_no_output(qkv):
    q, k, v = qkv
    with pytest.raises(fa3.InvalidArgument, match="out: .*lazily negated view"):
        fa3.attention(q, k, v, out=negated(torch.empty_like(q)))


@pytest.mark.parametrize("lazily", [negated, conjugate])
@pytest.mark.parametrize("door", CALLS)
def test_kernels_of_score_functions_get_tensors_with_their_signs(given, door, lazily):
    call = CALLS[door]
    assert lazily(BIAS).is_neg() and torch.equal(lazily(BIAS), -BIAS)
    call(torch.clone), call(torch.clone)  # what is decided now is not for the views
    for _ in range(2):
        assert torch.equal(call(lazily), call(torch.neg))
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    assert len(tensors) > 6 * 3 and not any(x.is_neg() for x in tensors)


@pytest.mark.parametrize("loss", ["out", "lse"])
def test_gradients_of_score_functions_get_them_too(given, loss):
    def gradients(lazily):
        leaves = [x.clone().requires_grad_() for x in (Q, K, V, BIAS)]
        q, k, v, bias = leaves
        results = fa3.flex_attention(q, k, v, score_mod=added(lazily(bias)), return_lse=True)
        result = results[loss == "lse"]
        do = lazily(torch.ones_like(result))
        return torch.autograd.grad(result, leaves, do, allow_unused=True)

    for mine, right in zip(gradients(negated), gradients(torch.neg), strict=True):
        assert mine is right is None or torch.equal(mine, right)
    assert not any(x.is_neg() for x in given if isinstance(x, torch.Tensor))


@pytest.mark.parametrize("lazily", [negated, conjugate])
def test_what_is_decided_of_a_call_is_not_for_views_of_other_signs(lazily):
    assert signature(Q) is not None and signature(lazily(Q)) is None


def test_steps_of_a_ring_read_them_with_their_signs():
    out, lse = forward_step(Q, K, V)
    for place in range(3):
        given = [Q, K, V]
        given[place] = -given[place]
        right = forward_step(*given)
        given[place] = negated(-given[place])
        assert all(map(torch.equal, forward_step(*given), right))
    mine, right = ([torch.empty_like(x) for x in (Q, K, V)] for _ in range(2))
    backward_step(negated(-out), negated(-Q), negated(-K), negated(-V), out, lse, *mine)
    backward_step(out, Q, K, V, out, lse, *right)
    assert all(map(torch.equal, mine, right))


def test_a_captured_tensor_without_memory_is_refused():
    gone = torch.ones(3)
    gone.untyped_storage().resize_(0)
    score = (0, "", None, False), False, None, (gone,)
    with pytest.raises(fa3.InvalidArgument, match="^score_mod: expected data, got a captured"):
        _native.forward_with_score(None, score, Q, K, V, torch.empty_like(Q), None)

# SPDX-License-Identifier: Apache-2.0
"""Score functions, biases and masks where something of torch's watches: checkpoints, inference
mode, tensors without elements."""

import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from warm_calls import forget, new_table  # noqa: E402, F401

ROWS, HEADS = 9, 2
DRAW = torch.Generator().manual_seed(5)
Q, K, V = (torch.randn(1, ROWS, HEADS, 16, generator=DRAW).requires_grad_() for _ in range(3))
TABLE = torch.randn(HEADS, ROWS, generator=DRAW).requires_grad_()
NUMBER = torch.tensor(1.5).requires_grad_()
OWNER = torch.arange(ROWS) // 4
LEARNED = Q, K, V, TABLE, NUMBER


def documents(b, h, i, j):
    return OWNER[i] == OWNER[j]


MASK = create_block_mask(documents, 1, 1, ROWS, ROWS, device="cpu")

FUNCTIONS = {
    "a table": lambda s, b, h, i, j: s + TABLE[h, j],
    "a number": lambda s, b, h, i, j: s * NUMBER,
    "made of captured tensors": lambda s, b, h, i, j: (
        s * torch.exp(NUMBER) + torch.nn.functional.softplus(TABLE)[h, j]
    ),
}
CALLS = {name: functools.partial(fa3.flex_attention, score_mod=f) for name, f in FUNCTIONS.items()}
CALLS |= {
    "a bias": lambda q, k, v: fa3.attention(q, k, v, bias=TABLE[:, None]),
    "slopes": lambda q, k, v: fa3.attention(q, k, v, alibi_slopes=TABLE[:, 0]),
    "booleans": lambda q, k, v: fa3.attention(q, k, v, bias=(OWNER > 0)[None]),
    "a mask": functools.partial(fa3.flex_attention, mask_mod=documents),
    "a mask and a function": functools.partial(
        fa3.flex_attention, block_mask=MASK, score_mod=FUNCTIONS["a number"]
    ),
    "a block mask": functools.partial(fa3.attention, block_mask=MASK),
}
POLICIES = {
    "plain": None,
    "saves all": lambda context, op, *_, **__: CheckpointPolicy.MUST_SAVE,
    "saves attention": lambda context, op, *_, **__: (
        CheckpointPolicy.MUST_SAVE if "fa3" in str(op) else CheckpointPolicy.PREFER_RECOMPUTE
    ),
}


def gradients(call):
    out = call(Q, K, V)
    return out, *torch.autograd.grad(out.square().sum(), LEARNED, allow_unused=True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CALLS)
def test_a_checkpoint_has_the_gradients_of_the_call(name, policy):
    """The first call is traced, and lists are made, where a recomputation finds both."""
    options = {}
    if POLICIES[policy] is not None:
        contexts = functools.partial(create_selective_checkpoint_contexts, POLICIES[policy])
        options["context_fn"] = contexts
    for _ in range(2):
        mine = gradients(
            lambda q, k, v: checkpoint(CALLS[name], q, k, v, use_reentrant=False, **options)
        )
        for got, right in zip(mine, gradients(CALLS[name]), strict=True):
            assert (got is None) == (right is None)
            assert got is None or torch.equal(got, right)


@pytest.mark.parametrize("name", CALLS)
def test_what_inference_mode_meets_first_is_trained_with_later(name):
    for part in ("_fa3_block_mask", "_fa3_states"):
        if hasattr(MASK, part):
            delattr(MASK, part)
    with torch.inference_mode():
        CALLS[name](Q, K, V)
    assert gradients(CALLS[name])[1] is not None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_without_elements_have_shapes_of_gradients(name, capfd):
    with FakeTensorMode():
        q, k, v = (torch.randn(2, ROWS, HEADS, 16, requires_grad=True) for _ in range(3))
        table, number = (torch.randn(x.shape, requires_grad=True) for x in (TABLE, NUMBER))
        captured, function = {
            "a table": (table, lambda s, b, h, i, j: s + table[h, j]),
            "a number": (number, lambda s, b, h, i, j: s * number),
            "made of captured tensors": (table, lambda s, b, h, i, j: s + torch.exp(table)[h, j]),
        }[name]
        out = fa3.flex_attention(q, k, v, score_mod=function)
        learned = q, k, v, captured
        found = torch.autograd.grad(out.sum(), learned)
    assert out.shape == q.shape
    assert [x.shape for x in found] == [x.shape for x in learned]
    assert "FakeTensor" not in capfd.readouterr().err  # torch warns whoever asks for its memory


def test_masks_of_tensors_without_elements_are_not_kept():
    forget()
    with FakeTensorMode():
        q, k, v = (torch.randn(1, ROWS, HEADS, 16) for _ in range(3))
        assert fa3.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i >= j).shape == q.shape
    mine = fa3.flex_attention(Q, K, V, mask_mod=lambda b, h, i, j: i >= j)
    torch.testing.assert_close(mine, fa3.attention(Q, K, V, causal=True))

# SPDX-License-Identifier: Apache-2.0
"""Dropout beside score functions, biases and ALiBi: the mask of fa3.dropout_mask under the formula
in torch, in float64, with its gradients."""

import warnings
from contextlib import nullcontext

import pytest
from flex_functions import HEADS, KV_HEADS, inputs, randn

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import fa3.torch  # noqa: E402, F811
from fa3.compat import flash_attn  # noqa: E402

P, SEED = 0.3, (123, -7)
DROPOUT = {"dropout_p": P, "dropout_seed": SEED}
ROWS, KEYS = 40, 53


def device_module():
    from fa3.flex import device

    return device


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    from fa3.flex import tiles

    monkeypatch.setattr(tiles, "QUERIES", 24)
    monkeypatch.setattr(tiles, "KEYS", 35)


def formula(q, k, v, added, p=P, seed=SEED, sequence=0, scale=None):
    """added: to the scores (b, h, sq, sk), or a function of them."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    weights = (added(scores) if callable(added) else scores + added).softmax(-1)
    first = sequence, 0, 0, 0
    kept = torch.from_numpy(fa3.dropout_mask(p, seed, tuple(scores.shape), first=first))
    factor = 65536 / (65536 - round(p * 65536))  # docs/numerics.md
    return torch.einsum("bhij,bjhd->bihd", weights * kept * factor, v)


def close_with_gradients(found, expected, tensors):
    torch.testing.assert_close(found, expected)
    do = randn(*found.shape, seed=5)
    mine = torch.autograd.grad(found, tensors, do, retain_graph=True)
    for ours, right in zip(mine, torch.autograd.grad(expected, tensors, do), strict=True):
        torch.testing.assert_close(ours, right)


def distances():
    return torch.arange(KEYS) - torch.arange(ROWS)[:, None] - (KEYS - ROWS)


def test_of_a_score_function_and_what_it_captures():
    q, k, v = inputs(ROWS, KEYS)
    slopes = randn(HEADS, seed=1).requires_grad_()

    def bent(score, b, h, q_idx, kv_idx):
        return torch.tanh(score) + slopes[h] * (kv_idx - q_idx)

    added = slopes[:, None, None] * (distances() + KEYS - ROWS)
    found = fa3.flex_attention(q, k, v, score_mod=bent, **DROPOUT)
    expected = formula(q, k, v, lambda scores: scores.tanh() + added)
    close_with_gradients(found, expected, (q, k, v, slopes))


def test_of_a_bias_under_a_causal_mask():
    q, k, v = inputs(ROWS, KEYS)
    bias = randn(1, HEADS, ROWS, KEYS, seed=2).requires_grad_()
    found = fa3.attention(q, k, v, bias=bias, causal=True, **DROPOUT)
    hidden = torch.zeros(ROWS, KEYS).masked_fill(distances() > 0, -torch.inf)
    close_with_gradients(found, formula(q, k, v, bias + hidden), (q, k, v, bias))


@pytest.mark.parametrize("p", [0.2, 0.75])
def test_of_alibi_by_the_call_of_flash_attn(p):
    q, k, v = inputs(ROWS, KEYS)
    slopes = randn(HEADS, dtype=torch.float32, seed=3).abs()
    torch.manual_seed(3)
    found = flash_attn.flash_attn_func(q, k, v, p, alibi_slopes=slopes)
    torch.manual_seed(3)
    seed = tuple(fa3.torch.dropout.draw(q.device).tolist())
    added = -slopes.double()[:, None, None] * distances().abs()
    close_with_gradients(found, formula(q, k, v, added, p, seed), (q, k, v))


# What is added to scores, and the tensor that is captured, by heads and lengths.
def bias(heads, rows, keys):
    tensor = randn(1, heads, rows, keys, seed=2)
    return {"bias": tensor}, tensor, lambda t: t


def slopes(heads, rows, keys):
    tensor = randn(heads, seed=3).abs()
    return {"alibi_slopes": tensor}, tensor, lambda t: -t[:, None, None] * apart(rows, keys).abs()


def table(heads, rows, keys):
    tensor = randn(rows + keys, heads, seed=4)
    return {}, tensor, lambda t: t[rows - apart(rows, keys)].permute(2, 0, 1)


def apart(rows, keys):
    return torch.arange(keys) - torch.arange(rows)[:, None] - (keys - rows)


@pytest.mark.parametrize(
    "causal, p, keys", [(False, 0.3, 500), (True, 0.3, 504), (False, 0.75, 504)]
)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("kind", [bias, slopes, table])
def test_of_16_bits_with_gradients(kind, dim, causal, p, keys, device):
    """A kernel's on a GPU: nothing is computed by torch operations. It loads tiles of a bias whose
    rows are multiples of 16 bytes, as those of 504 keys, and stores their gradient."""
    rows, keys = (300, keys) if device == "cuda" else (30, keys // 10)
    dropout = {"dropout_p": p, "dropout_seed": SEED}
    options, tensor, added_of = kind(HEADS, rows, keys)
    q, k, v, do = (
        randn(2, n, heads, dim, seed=seed).bfloat16().to(device)
        for seed, (n, heads) in enumerate(
            ((rows, HEADS), (keys, KV_HEADS), (keys, KV_HEADS), (rows, HEADS))
        )
    )
    dtype = torch.float32 if kind is slopes else torch.bfloat16
    captured = tensor.to(device, dtype).requires_grad_(kind is not slopes)
    inputs = [x.requires_grad_() for x in (q, k, v)] + [captured] * captured.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error" if device == "cuda" else "ignore", device_module().SlowScores)
        if options:
            options = dict.fromkeys(options, captured)
            found = fa3.attention(q, k, v, causal=causal, **options, **dropout)
        else:
            found = fa3.flex_attention(
                *(q, k, v),
                score_mod=lambda s, b, h, i, j: s + captured[i - j + keys, h],
                causal=causal,
                **dropout,
            )
        mine = torch.autograd.grad(found, inputs, do)
    exact = [x.detach().double().cpu().requires_grad_() for x in inputs]
    of_tensor = exact[3] if captured.requires_grad else captured.double().cpu()
    hidden = torch.zeros(rows, keys).masked_fill(causal * (apart(rows, keys) > 0) > 0, -torch.inf)
    expected = formula(*exact[:3], added_of(of_tensor) + hidden, p)
    right = torch.autograd.grad(expected, exact, do.double().cpu())
    for ours, theirs in zip((found, *mine), (expected, *right), strict=True):
        error = (ours.double().cpu() - theirs).norm() / theirs.norm()
        assert error < 1e-2


@pytest.mark.parametrize("bias", [False, True])
def test_a_seed_that_changes_before_the_backward_is_noticed(bias):
    q, k, v = inputs()
    seed = torch.tensor(SEED)
    call = {"dropout_p": P, "dropout_seed": seed}
    if bias:
        out = fa3.attention(q, k, v, bias=torch.zeros(1), **call)
    else:
        out = fa3.flex_attention(q, k, v, score_mod=lambda s, *_: s + 1, **call)
    seed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_slope_has_gradients_by_torch_operations(device):
    """On a GPU with a warning, and of the mask that the forward's kernel drew."""
    rows, keys = (100, 200) if device == "cuda" else (10, 20)
    q, k, v = (
        randn(2, n, heads, 64, seed=seed).bfloat16().to(device).requires_grad_()
        for seed, (n, heads) in enumerate(((rows, HEADS), (keys, KV_HEADS), (keys, KV_HEADS)))
    )
    found = fa3.flex_attention(q, k, v, score_mod=lambda s, *_: 2 * s, **DROPOUT)
    slow = pytest.warns(device_module().SlowScores) if device == "cuda" else nullcontext()
    with slow:
        mine = torch.autograd.grad(found, (q, k, v), torch.ones_like(found))
    exact = [x.detach().double().cpu().requires_grad_() for x in (q, k, v)]
    expected = formula(*exact, lambda scores: 2 * scores)
    right = torch.autograd.grad(expected, exact, torch.ones_like(expected))
    for ours, theirs in zip((found, *mine), (expected, *right), strict=True):
        assert (ours.double().cpu() - theirs).norm() < 1e-2 * theirs.norm()


def test_of_packed_sequences_each_of_which_has_a_mask():
    q, k, v = (x.detach().flatten(0, 1).requires_grad_() for x in inputs(ROWS, ROWS))
    starts = torch.tensor([0, 31, 31, 80], dtype=torch.int32)
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 49}
    found = fa3.flex_attention(
        q, k, v, score_mod=lambda s, *_: 2 * s, max_seqlen_k=49, **lengths, **DROPOUT
    )
    parts = []
    for number, rows in ((0, slice(0, 31)), (2, slice(31, 80))):
        one = (x[None, rows] for x in (q, k, v))
        parts.append(formula(*one, lambda s: 2 * s, sequence=number)[0])
    close_with_gradients(found, torch.cat(parts), (q, k, v))


def test_of_masks_alone(device):
    q, k, v = inputs(ROWS, ROWS)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (x.detach().to(device, dtype) for x in (q, k, v))
    found = fa3.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i >= j, **DROPOUT)
    torch.testing.assert_close(found, fa3.attention(q, k, v, causal=True, **DROPOUT))


def test_each_call_draws_a_mask_from_torchs_generator():
    q, k, v = (x.detach() for x in inputs())

    def call():
        return fa3.flex_attention(q, k, v, score_mod=lambda s, *_: s + 1, dropout_p=P)

    torch.manual_seed(1)
    first, second = call(), call()
    torch.manual_seed(1)
    assert not torch.equal(first, second)
    assert torch.equal(first, call())


def test_of_probability_1_nothing_is_kept():
    q, k, v = (x.detach() for x in inputs())
    out, lse = fa3.flex_attention(
        q, k, v, score_mod=lambda s, *_: s + 1, dropout_p=1.0, return_lse=True
    )
    assert not out.any() and lse.isfinite().all()


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"dropout_p": -0.1}, "^dropout_p: expected a probability from 0 to 1, got -0.1"),
        ({"dropout_p": P, "dropout_seed": (1, 2, 3)}, "^dropout_seed: expected"),
    ],
)
def test_what_is_no_dropout_is_said(options, sentence):
    q, k, v = inputs()
    with pytest.raises(fa3.InvalidArgument, match=sentence):
        fa3.flex_attention(q, k, v, score_mod=lambda s, *_: s + 1, **options)


def test_caches_have_none():
    q, k, v = (x.detach() for x in inputs())
    cache = {"left_padding": torch.zeros(2).int(), "seqused_k": torch.ones(2).int()}
    with pytest.raises(fa3.Unsupported, match="^dropout_p: expected 0 beside left_padding, got 0"):
        fa3.attention(q, k, v, bias=torch.zeros(1), **cache, **DROPOUT)

# SPDX-License-Identifier: Apache-2.0
"""fa3.compat.flash_attn_4: the functions of flash_attn.cute, with functions of torch."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat.flash_attn_4 import flash_attn_func, flash_attn_varlen_func  # noqa: E402


def random(*shapes):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=draw) for shape in shapes]


Q, K, V = random((2, 30, 4, 16), (2, 40, 2, 16), (2, 40, 2, 16))


@pytest.mark.parametrize(
    "given, named",
    [
        ({}, {}),
        ({"window_size": (None, None), "causal": True}, {"causal": True}),
        ({"window_size": (5, None)}, {"window": (5, None)}),
        ({"window_size": (None, 0), "softcap": 3.0}, {"window": (None, 0), "softcap": 3.0}),
        ({"softmax_scale": 0.3, "pack_gqa": True, "return_lse": True}, {"scale": 0.3}),
    ],
)
def test_its_arguments_are_those_of_attention(given, named):
    out, lse = flash_attn_func(Q, K, V, **given)
    expected = fa3.attention(Q, K, V, return_lse=True, **named)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])


def test_a_sink_of_16_bits_and_its_gradient():
    sink = torch.arange(4).bfloat16().requires_grad_()
    out, _ = flash_attn_func(Q, K, V, learnable_sink=sink, causal=True)
    wide = sink.detach().float().requires_grad_()
    expected = fa3.attention(Q, K, V, sink=wide, causal=True)
    assert torch.equal(out, expected)
    (ours,) = torch.autograd.grad(out.sum(), sink)
    (right,) = torch.autograd.grad(expected.sum(), wide)
    assert torch.equal(ours, right.bfloat16())


@pytest.mark.filterwarnings("ignore::fa3.flex.device.SlowScores")
def test_functions_of_torch():
    slopes = torch.tensor([0.5, 0.25, 0.0, -0.5])

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (q_idx - kv_idx)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx < 9) & (kv_idx != b)

    out, lse = flash_attn_func(
        Q, K, V, score_mod=score_mod, mask_mod=mask_mod, window_size=(None, None)
    )
    expected = fa3.flex_attention(Q, K, V, score_mod=score_mod, mask_mod=mask_mod, return_lse=True)
    torch.testing.assert_close((out, lse), expected)
    found = flash_attn_func(Q, K, V, score_mod=score_mod, window_size=(20, 5))
    named = {"window": (20, 5), "return_lse": True}
    torch.testing.assert_close(found, fa3.flex_attention(Q, K, V, score_mod=score_mod, **named))


def test_packed_sequences_of_int64_lengths():
    q, k, v = (x.flatten(0, 1) for x in (Q, K, V))
    starts = torch.tensor([0, 20, 60]), torch.tensor([0, 25, 80])
    found = flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], causal=True
    )
    lengths = {f"cu_seqlens_{x}": s.int() for x, s in zip("qk", starts, strict=True)}
    expected = fa3.attention(q, k, v, causal=True, return_lse=True, **lengths)
    assert all(map(torch.equal, found, expected))


def test_pages():
    pages = K.reshape(10, 8, 2, 16), V.reshape(10, 8, 2, 16)
    table = torch.randperm(10).reshape(2, 5).int()
    used = torch.tensor([33, 12], dtype=torch.int32)
    q = Q[:, :3]
    out, _ = flash_attn_varlen_func(q, *pages, seqused_k=used, page_table=table, causal=True)
    assert torch.equal(
        out, fa3.attention(q, *pages, seqused_k=used, page_table=table, causal=True, num_splits=1)
    )


def of_cute(score, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
    return score


@pytest.mark.parametrize(
    "given, sentence",
    [
        ({"gather_kv_indices": Q}, "^gather_kv_indices: expected None, .* fa3 has block masks"),
        (
            {"aux_tensors": [Q]},
            "^aux_tensors: .* got a list of tensors; .* functions of torch here, which capture",
        ),
        ({"block_sparse_tensors": (Q,)}, "^block_sparse_tensors: .* pass mask_mod"),
        ({"block_sparse_tensors_bwd": (Q,)}, "^block_sparse_tensors_bwd: .* pass mask_mod"),
        ({"score_mod": of_cute}, "^score_mod: expected a function of torch with 5 arguments"),
        ({"score_mod": lambda s, b, h, i, j: s, "softcap": 2.0}, "^softcap: .* part of score_mod"),
        (
            {"mask_mod": lambda b, h, i, j: i > j, "learnable_sink": Q[0, 0, :, 0]},
            "^learnable_sink",
        ),
    ],
)
def test_what_it_lacks_is_a_sentence(given, sentence):
    with pytest.raises(fa3.Unsupported, match=sentence):
        flash_attn_func(Q, K, V, **given)


@pytest.mark.parametrize(
    "named, sentence",
    [
        ({"mask_mod": lambda b, h, q, k: k >= 0, "causal": True}, "mask_mod: expected neither"),
        (
            {"mask_mod": lambda b, h, q, k: k >= 0, "window_size": (3, 0)},
            "mask_mod: expected neith",
        ),
        ({"window_size": (0, -1)}, "window_size: expected sides >= 0"),
        ({"window_size": (-1, 1)}, "window_size: expected sides >= 0"),
    ],
)
def test_what_the_original_would_compute_otherwise_is_refused(named, sentence):
    with pytest.raises(fa3.Unsupported, match=sentence):
        flash_attn_func(Q, K, V, **named)

# SPDX-License-Identifier: Apache-2.0
"""Calls of trainers that cannot be installed here, in their own form: verl, unsloth, axolotl."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat import flash_attn  # noqa: E402
from fa3.compat.bert_padding import index_first_axis, pad_input, unpad_input  # noqa: E402

HEADS, DIM = 4, 32


def test_verl_drops_padding_and_puts_it_back():
    """Its actor: tokens and positions packed as (1, total), results padded by names."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 0]])
    tokens = torch.arange(15).view(3, 5)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    packed, indices, cu_seqlens, *_ = unpad_input(tokens.unsqueeze(-1), mask)
    packed = packed.transpose(0, 1)
    assert packed.shape == (1, 11) and packed[0].tolist() == tokens[mask.bool()].tolist()
    rows = index_first_axis(positions.unsqueeze(-1).flatten(0, 1), indices).transpose(0, 1)
    starts = [0, *(i for i in range(1, 11) if rows[0, i] == 0), 11]
    assert cu_seqlens.tolist() == starts  # Transformers finds the sequences by their positions

    log_probs = torch.randn(11, requires_grad=True)
    full = pad_input(hidden_states=log_probs.unsqueeze(-1), indices=indices, batch=3, seqlen=5)
    assert full.shape == (3, 5, 1)
    (gradient,) = torch.autograd.grad(full.squeeze(-1)[:, 1:].sum(), log_probs)
    assert gradient.tolist() == [1.0] * 3 + [0.0] + [1.0] * 7  # but for the column that was cut off


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_unsloth_calls_with_a_cap_that_may_be_none_and_two_equal_sides(softcap):
    """Views of (batch, heads, length), the config's cap as it is, a window as a tuple of ints."""
    q, k, v = (torch.randn(2, HEADS, 50, DIM, requires_grad=True) for _ in range(3))
    views = [x.transpose(1, 2) for x in (q, k, v)]
    out = flash_attn.flash_attn_func(
        *views, causal=True, softmax_scale=0.2, window_size=(16, 16), softcap=softcap
    )
    expected = fa3.attention(*views, causal=True, scale=0.2, window=(16, 16), softcap=softcap)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    assert all(x.grad.isfinite().all() and x.grad.any() for x in (q, k, v))


def test_axolotl_packs_samples_into_one_row():
    """Sample packing: one row of a batch, its samples by int32 offsets; qkv in one tensor."""
    qkv = torch.randn(50, 3, HEADS, DIM, requires_grad=True)
    starts = torch.tensor([0, 17, 18, 50], dtype=torch.int32)
    out = flash_attn.flash_attn_varlen_qkvpacked_func(
        qkv, starts, 32, dropout_p=0.0, softmax_scale=None, causal=True
    )
    for begin, end in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        alone = fa3.attention(*(x[None, begin:end] for x in qkv.unbind(1)), causal=True)
        torch.testing.assert_close(out[begin:end], alone[0])
    out.sum().backward()
    assert qkv.grad.isfinite().all()

# SPDX-License-Identifier: Apache-2.0
"""nn.MultiheadAttention and nn.TransformerEncoder in eval, under the switch: torch's fast path is
one operator, which is fa3's there."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
front = pytest.importorskip("fa3.torch")

from torch import nn  # noqa: E402

from fa3.torch import multi_head, switch  # noqa: E402

if not hasattr(nn.attention, "register_flash_attention_impl"):
    pytest.skip("this torch has no registry of flash attentions", allow_module_level=True)

WIDTH, HEADS, ROWS = 64, 4, 150
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


@pytest.fixture
def calls(monkeypatch):
    """Shapes of q in calls of the library under the operator."""
    seen = []

    def watched(q, *rest):
        seen.append(tuple(q.shape))
        return run(q, *rest)

    run = multi_head.run_forward
    monkeypatch.setattr(multi_head, "run_forward", watched)
    switch.warned.clear()
    return seen


def padding(device):
    """True where a row does not count."""
    return torch.arange(ROWS, device=device) >= torch.tensor([[ROWS], [70]], device=device)


def later(device):
    return nn.Transformer.generate_square_subsequent_mask(ROWS, device=device).bool()


def of_heads(device):
    return torch.rand(2 * HEADS, ROWS, ROWS, generator=torch.Generator().manual_seed(1)) < 0.4


MASKS = {
    "none": lambda device: {},
    "padding": lambda device: {"key_padding_mask": padding(device)},
    "later": lambda device: {"attn_mask": later(device)},
    "of heads": lambda device: {"attn_mask": of_heads(device).to(device)},
    "both": lambda device: {"attn_mask": later(device), "key_padding_mask": padding(device)},
}


def made(module, device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(2, ROWS, WIDTH, generator=draw).to(device, dtype)
    return module.eval().to(device, dtype), x


def same(actual, expected):
    absolute, relative = (2e-2, 2**-6) if expected.dtype == torch.bfloat16 else (1e-5, 0)
    torch.testing.assert_close(actual, expected, rtol=relative, atol=absolute)


@pytest.mark.filterwarnings("error:fa3 leaves")
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@torch.no_grad()
def test_multihead_attention_in_eval_is_fa3s(device, calls, masks):
    layer, x = made(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), device)
    options = {"need_weights": False, **masks(device)}
    expected, _ = layer(x, x, x, **options)
    assert not calls
    with front.sdpa():
        actual, weights = layer(x, x, x, **options)
    assert weights is None and calls == [(2, ROWS, HEADS, WIDTH // HEADS)]
    same(actual, expected)


@pytest.mark.filterwarnings("error:fa3 leaves")
@pytest.mark.parametrize("masks", ["none", "padded", "later"])
@torch.inference_mode()
def test_an_encoder_in_eval_is_fa3s(device, calls, masks):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
    encoder, x = made(nn.TransformerEncoder(layer, 2), device)
    options = {
        "none": {},
        "padded": {"src_key_padding_mask": padding(device)},  # nested tensors
        "later": {"mask": later(device)},
    }[masks]
    expected = encoder(x, **options)
    with front.sdpa():
        actual = encoder(x, **options)
    rows = (ROWS + 70,) if masks == "padded" else (2, ROWS)
    assert calls == [(*rows, HEADS, WIDTH // HEADS)] * 2
    same(actual, expected)


@torch.no_grad()
def test_what_the_operator_has_beside_is_torchs_with_a_warning(calls):
    layer, x = made(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), "cpu")
    expected = layer(x, x, x)
    double = layer.double()
    with front.sdpa():
        with pytest.warns(UserWarning, match="fa3 leaves aten::_native_multi_head.*need_weights"):
            out, weights = layer.float()(x, x, x)
        same(out, expected[0])
        same(weights, expected[1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer(x, x, x)  # one warning for each reason
        with pytest.warns(UserWarning, match="fa3 leaves aten::_native_multi_head.*float64"):
            double.double()(*(x.double(),) * 3, need_weights=False)


@torch.no_grad()
def test_an_additive_mask_which_torch_does_not_add_has_a_warning(calls):
    layer, x = made(nn.TransformerEncoderLayer(WIDTH, HEADS, WIDTH, batch_first=True), "cpu")
    slopes = -torch.arange(ROWS).float().sub(torch.arange(ROWS)[:, None]).abs()
    with front.sdpa():
        with pytest.warns(UserWarning, match="a mask that adds to scores.*addend is not 0"):
            layer(x, src_mask=slopes)
        assert not calls
        layer(x, src_mask=later("cpu").float().masked_fill(later("cpu"), -torch.inf))
        assert calls

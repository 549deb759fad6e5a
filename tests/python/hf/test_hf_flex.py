# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fa3_flex": every family of hf_models.py beside eager attention, also those
whose masks or scores "fa3" refuses; masks of the caller's own; gradients of what is added.
"""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import hf_models  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402
from transformers import AttentionInterface  # noqa: E402

from fa3 import hf  # noqa: E402

NAME = hf.flex.NAME

# No layer asks for an implementation: the mask alone is fa3's.
OWN_ATTENTION = {"bloom", "codegen", "git", "led", "mpnet", "mpt", "xglm"}


@pytest.fixture
def calls(one_thread):
    """The layers that called fa3."""
    seen = []

    def recorded(module, *arguments, **keywords):
        seen.append(module)
        return hf.flex.attention_forward(module, *arguments, **keywords)

    AttentionInterface.register(NAME, recorded)
    yield seen
    AttentionInterface.register(NAME, hf.flex.attention_forward)


@pytest.mark.parametrize(
    "family, name, call", hf_models.every_call(), ids=[" ".join(c) for c in hf_models.every_call()]
)
def test_fa3_flex_equals_eager_or_says_why_not(calls, family, name, call):
    model = hf_models.model(family, name)
    hf_models.use(model, "eager")
    expected = hf_models.outputs(model, call)
    hf_models.use(model, NAME)
    words = hf_models.refusal(family, name, call, hf_models.REFUSED_BY_FLEX)
    if words is not None:
        with pytest.raises(fa3.Unsupported, match=words):
            hf_models.outputs(model, call)
        return
    actual = hf_models.outputs(model, call)
    assert bool(calls) == (name not in OWN_ATTENTION)
    scale = expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=3e-6 * scale)


ONE_OF_EACH = [(family, next(iter(models))) for family, (models, _) in hf_models.CALLS.items()]
OTHERS = [("own mask", name) for name in [*hf_models.OWN_MASK][1:] if name != "git"]


@pytest.mark.parametrize("family, name", ONE_OF_EACH + OTHERS)
def test_a_model_that_never_calls_fa3_says_so(family, name):
    made = hf_models.model(family, name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        type(made)._from_config(made.config, attn_implementation=NAME)
    sentence = "compute attention themselves, so fa3 is not called"
    assert any(sentence in str(x.message) for x in said) == (name in OWN_ATTENTION)


class Layer:
    """What attention_forward() looks at of a module."""

    is_causal = False


def tensors(dtype=torch.float64):
    torch.manual_seed(0)
    shapes = (2, 4, 40, 16), (2, 2, 50, 16), (2, 2, 50, 16)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def eager(q, k, v, seen=None, bias=None, softcap=None, sinks=None, head_mask=None, score=None):
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    scores = q @ k.mT * 0.3
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores if score is None else score(scores)
    scores = scores if bias is None else scores + bias
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    p = scores.softmax(-1)[..., : k.shape[2]]
    p = p if head_mask is None else p * head_mask[None, :, None, None]
    return (p @ v).transpose(1, 2)


def causal(b, h, q, k):
    return k <= q + 10


EVERY_CALL = {
    "booleans": {"attention_mask": torch.ones(40, 50).tril(10).bool()[None, None]},
    "booleans of a longer cache": {
        "attention_mask": torch.ones(40, 64).tril(10).bool()[None, None]
    },
    "additive": {"attention_mask": torch.ones(40, 50).triu(11)[None, None] * -3.0e38},
    "torch's BlockMask": {
        "attention_mask": create_block_mask(causal, 2, None, 40, 50, device="cpu", BLOCK_SIZE=16)
    },
    "position bias": {"position_bias": torch.randn(1, 4, 40, 50).double()},
    "position bias of a head": {"position_bias": torch.randn(1, 4, 1, 50).double()},
    "softcap": {"softcap": 2.0},
    "sinks": {"s_aux": torch.randn(4).double()},
    "head mask": {"head_mask": torch.tensor([1.0, 0.0, 0.5, 1.0])},
    "a function": {"score_mod": lambda s, b, h, q, k: s * s},
}
SEEN = torch.ones(40, 50).tril(10).bool()


@pytest.mark.parametrize("second", EVERY_CALL)
@pytest.mark.parametrize("first", [*EVERY_CALL][:4])
def test_masks_beside_scores_and_their_gradients(first, second):
    call = {**EVERY_CALL[first], **EVERY_CALL[second]}
    bias = call.get("position_bias")
    learned = [t.requires_grad_() for t in (bias, call.get("s_aux")) if t is not None]
    q, k, v = tensors()
    out, weights = hf.flex.attention_forward(Layer(), q, k, v, scaling=0.3, **call)
    others = {"softcap": call.get("softcap"), "sinks": call.get("s_aux")}
    others["score"] = None if "score_mod" not in call else torch.square
    right = eager(q, k, v, SEEN, bias, head_mask=call.get("head_mask"), **others)
    assert weights is None
    tolerance = {"rtol": 1e-5, "atol": 1e-6}  # sinks are float32
    torch.testing.assert_close(out, right, **tolerance)
    weight = torch.randn(out.shape, dtype=out.dtype)
    mine, theirs = (
        torch.autograd.grad((x * weight).sum(), (q, k, v, *learned)) for x in (out, right)
    )
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def test_layers_without_a_mask_say_who_sees_whom():
    q, k, v = tensors()
    bias = EVERY_CALL["position bias"]["position_bias"].detach()
    out, _ = hf.flex.attention_forward(
        Layer(), q, k, v, None, scaling=0.3, position_bias=bias, is_causal=True
    )
    torch.testing.assert_close(out, eager(q, k, v, SEEN, bias), rtol=1e-6, atol=1e-6)


def test_masks_of_a_mask_function_have_lists_on_the_kernels(monkeypatch):
    """What "fa3" has no option for reaches fa3.attention as a block mask, not as a bias."""
    from transformers import masking_utils

    given = []
    monkeypatch.setattr(
        hf.flex, "attention", lambda *a, **k: given.append(k) or fa3.attention(*a, **k)
    )
    window = masking_utils.sliding_window_overlay(5)
    either = masking_utils.or_masks(window, lambda b, h, q, k: k < 3)
    mask = hf.flex.attention_mask(
        batch_size=2, q_length=40, kv_length=50, q_offset=10, mask_function=either, device="cpu"
    )
    q, k, v = tensors(torch.float32)
    out, _ = hf.flex.attention_forward(Layer(), q, k, v, mask, scaling=0.3)
    seen = torch.ones(40, 50).triu(6).bool() | (torch.arange(50) < 3)
    torch.testing.assert_close(out, eager(q, k, v, seen), rtol=1e-5, atol=1e-5)
    assert isinstance(given[0]["block_mask"], fa3.masks.BlockMask)


def test_dropout_goes_with_scores_of_the_models_own():
    q, k, v = tensors()

    def capped(score, b, h, i, j):
        return 2.0 * torch.tanh(score / 2.0)

    mask = EVERY_CALL["booleans"]["attention_mask"]
    torch.manual_seed(4)
    out, _ = hf.flex.attention_forward(Layer(), q, k, v, mask, softcap=2.0, dropout=0.5)
    torch.manual_seed(4)
    turned = (x.transpose(1, 2) for x in (q, k, v))
    expected = fa3.flex_attention(
        *turned, score_mod=capped, block_mask=fa3.masks.from_dense(mask), dropout_p=0.5
    )
    torch.testing.assert_close(out, expected)


def test_what_it_cannot_do_is_refused_by_name():
    q, k, v = tensors()
    mask = EVERY_CALL["booleans"]["attention_mask"]

    def refused(words, attention_mask=mask, **call):
        with pytest.raises(fa3.Unsupported, match=words):
            hf.flex.attention_forward(Layer(), q, k, v, attention_mask, **call)

    refused("block_indices: expected None", block_indices=torch.zeros(1))
    refused(r"attention_mask: expected \(batch", mask[..., :30])
    refused(r"attention_mask: expected \(batch", mask[0, 0])
    refused("position_bias: expected", position_bias=torch.zeros(1, 4, 39, 50))

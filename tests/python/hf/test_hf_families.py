# SPDX-License-Identifier: Apache-2.0
"""Eager attention beside fa3 in the model families of Transformers (hf_models.py has the table).

Every call gives the hidden states of eager attention, or raises Unsupported in the words recorded.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import hf_models  # noqa: E402
from transformers import AttentionInterface  # noqa: E402

from fa3 import hf  # noqa: E402


@pytest.fixture
def calls(one_thread):
    """The layers that called fa3."""
    seen = []

    def recorded(module, *arguments, **keywords):
        seen.append(module)
        return hf.attention_forward(module, *arguments, **keywords)

    AttentionInterface.register(hf.NAME, recorded)
    yield seen
    AttentionInterface.register(hf.NAME, hf.attention_forward)


@pytest.mark.parametrize(
    "family, name, call", hf_models.every_call(), ids=[" ".join(c) for c in hf_models.every_call()]
)
def test_fa3_equals_eager_or_says_why_not(calls, family, name, call):
    model = hf_models.model(family, name)
    hf_models.use(model, "eager")
    expected = hf_models.outputs(model, call)
    hf_models.use(model, hf.NAME)
    words = hf_models.refusal(family, name, call)
    if words is not None:
        with pytest.raises(fa3.Unsupported, match=words) as refused:
            hf_models.outputs(model, call)
        is_taken = hf_models.refusal(family, name, call, hf_models.REFUSED_BY_FLEX) is None
        assert ('"fa3_flex"' in str(refused.value)) == is_taken
        return
    actual = hf_models.outputs(model, call)
    assert calls
    scale = expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6 * scale)

# SPDX-License-Identifier: Apache-2.0
"""Random conversations (hf_random.py) with fa3 and with eager attention: the same hidden states.

FA3_TEST_QUICK=1 has fewer of them, FA3_TEST_CONVERSATIONS=n has n of each model.
"""

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import hf_random  # noqa: E402

from fa3 import hf  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

CONVERSATIONS = 15 if os.environ.get("FA3_TEST_QUICK") else 40


def had(conversation, implementation):
    model = hf_random.model(conversation)
    model.set_attn_implementation(implementation)
    return hf_random.hidden_states(model, conversation)


def compare(conversation):
    expected = had(conversation, "eager")
    try:
        actual = had(conversation, hf.NAME)
    except fa3.Unsupported as error:
        if conversation.may_be_refused() and hf_random.REFUSED in str(error):
            return
        raise AssertionError(conversation) from error
    for step, (found, right) in enumerate(zip(actual, expected, strict=True)):
        scale = max(right.abs().max().item(), 1)
        torch.testing.assert_close(
            found,
            right,
            rtol=0,
            atol=4e-6 * scale,
            msg=lambda m, n=step: f"{conversation}, {n}: {m}",
        )


@pytest.mark.parametrize("name", hf_random.FAMILIES)
def test_random_conversations_equal_those_of_eager(name):
    for seed in range(int(os.environ.get("FA3_TEST_CONVERSATIONS", CONVERSATIONS))):
        compare(hf_random.drawn(name, seed))

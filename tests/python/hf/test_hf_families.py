# SPDX-License-Identifier: Apache-2.0
"""Eager attention beside fa3 in the model families of Transformers (hf_models.py has the table).

Every call gives the hidden states of eager attention, or raises Unsupported in the words recorded.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import hf_models  # noqa: E402
from transformers import CONFIG_MAPPING, AttentionInterface, AutoModel  # noqa: E402

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


@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize("implementation", ["fa3", "fa3_flex"])
def test_packed_sequences_have_chunks_where_their_positions_do(calls, implementation, with_lengths):
    """A sequence may begin within a chunk: the rest of one that began in another batch."""
    model = hf_models.model("chunked", "llama4_text")
    positions = torch.cat([torch.arange(5, 10), torch.arange(3), torch.arange(3, 17)])[None]
    ids = torch.arange(3, 3 + positions.shape[1])[None]
    inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    hf_models.use(model, "eager")
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        if with_lengths:  # which say nothing of chunks
            starts = torch.tensor([0, 5, 22], dtype=torch.int32)
            inputs |= {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
            inputs |= {"max_length_q": 17, "max_length_k": 17}
        hf_models.use(model, implementation)
        actual = model(**inputs).last_hidden_state
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


TABLES = {
    "falcon": "expected 'eager' or 'sdpa' or .*; 'sdpa' calls fa3 after fa3.torch.enable_sdpa",
    "gpt_neo": "expected 'eager' or .*; 'flash_attention_2' calls fa3 .* `fa3 adopt --flash-attn`",
    "gptj": "expected 'eager' or .*; 'flash_attention_2' calls fa3 .* `fa3 adopt --flash-attn`",
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("implementation", ["fa3", "flash_fa3", "fa3_flex"])
def test_layers_from_a_table_of_classes_are_refused_with_a_way_to_fa3(name, implementation):
    config = CONFIG_MAPPING[name]()
    config.num_hidden_layers = 1
    with pytest.raises(fa3.Unsupported, match=TABLES[name].replace("'", '"')):
        AutoModel.from_config(config, attn_implementation=implementation)


def test_falcon_runs_on_fa3_by_the_switch_of_sdpa(one_thread):
    config = CONFIG_MAPPING["falcon"](
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    inputs = hf_models.inputs_for(model, "left")
    expected = model(**inputs).last_hidden_state
    model.config._attn_implementation = "sdpa"
    with fa3.torch.sdpa(), torch.no_grad():
        actual = model(**inputs).last_hidden_state
    kept = inputs["attention_mask"].bool()
    torch.testing.assert_close(actual[kept], expected[kept], rtol=0, atol=3e-6)

# SPDX-License-Identifier: Apache-2.0
"""generate() over static caches and generate_batch() (continuous batching): the tokens of eager."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import hf_models  # noqa: E402

from fa3 import hf  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = 11
GREEDY = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, "pad_token_id": 0}

DECODERS = {
    "deepseek_v3": ("decoder", {}),
    "gemma2": ("softcapped", {}),
    "gemma3_text": ("windowed", {}),
    "gpt2": ("decoder", {}),
    "gpt_oss": ("sinks", {}),
    "llama": ("decoder", {}),
    "llama4_text": ("chunked", {}),
    "mistral": ("windowed", {}),
    "qwen3": ("decoder", {}),
}


def decoder(name):
    family, changes = DECODERS[name]
    return hf_models.model(family, name, "MODEL_FOR_CAUSAL_LM_MAPPING", **changes)


def prompts(padding):
    ids = torch.randint(3, 99, (3, PROMPT), generator=torch.Generator().manual_seed(1))
    if padding == "none":
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    mask[2, :1] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generated(model, implementation, **inputs):
    model.set_attn_implementation(implementation)
    torch.manual_seed(0)
    return model.generate(**inputs, **GREEDY)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_generate_gives_the_tokens_of_eager(name, cache, padding):
    model, inputs = decoder(name), prompts(padding)
    expected = generated(model, "eager", **inputs)
    actual = generated(model, hf.NAME, **inputs, cache_implementation=cache)
    assert expected.shape[1] == PROMPT + GREEDY["max_new_tokens"]
    assert torch.equal(actual, expected)


def test_generate_of_an_encoder_decoder_over_a_static_cache():
    model = hf_models.model("encoder-decoder", "bart", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING")
    inputs = prompts("left")
    expected = generated(model, "eager", **inputs)
    actual = generated(model, hf.NAME, **inputs, cache_implementation="static")
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("name", ["t5", "umt5"])
def test_a_position_bias_goes_with_a_static_cache(name):
    """The cache counts on in place before the first layer reads the mask's booleans."""
    model = hf_models.model("own mask", name, "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING")
    inputs = {**prompts("left"), "decoder_start_token_id": 1, "cache_implementation": "static"}
    logits = []
    for implementation in ("eager", hf.flex.NAME):
        asked = {"return_dict_in_generate": True, "output_logits": True}
        found = generated(model, implementation, **inputs, **asked)
        logits.append(torch.stack(found.logits))
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-5)


def test_generate_of_a_speech_model_over_a_static_cache():
    model = hf_models.model("speech", "whisper", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING")
    features = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(2))
    expected = generated(model, "eager", input_features=features)
    actual = generated(model, hf.NAME, input_features=features, cache_implementation="static")
    assert torch.equal(actual, expected)

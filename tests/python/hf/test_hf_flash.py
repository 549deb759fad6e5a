# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="flash_fa3": packed vision towers, and generate_batch()."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import hf_models  # noqa: E402

from fa3 import hf  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

if hf.VERSION < (5, 5):
    pytest.skip("flash_fa3 needs Transformers 5.5", allow_module_level=True)

NAME = hf.flash.NAME
PATCH = 4
GRIDS = ((1, 8, 12), (2, 4, 8))  # frames, rows and columns of patches: an image and a video
WINDOWS = 6 + 2 * 2  # of 4 by 4 patches
FRAMES = 1 + 2


@pytest.fixture
def calls(monkeypatch):
    """The shapes of q in the calls of fa3.attention."""
    seen = []

    def recorded(q, *arguments, **options):
        seen.append(tuple(q.shape))
        return fa3.torch.attention(q, *arguments, **options)

    monkeypatch.setattr(hf.attention, "attention", recorded)
    return seen


def tower(name, implementation):
    """Two layers; the first one of Qwen2.5-VL attends in windows."""
    changes = {
        "depth": 2,
        "embed_dim": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": PATCH,
    }
    if name == "qwen2_vl":
        from transformers.models.qwen2_vl import configuration_qwen2_vl, modeling_qwen2_vl

        config = configuration_qwen2_vl.Qwen2VLVisionConfig(hidden_size=32, **changes)
        made = modeling_qwen2_vl.Qwen2VisionTransformerPretrainedModel
    else:
        from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl, modeling_qwen2_5_vl

        config = configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig(
            hidden_size=32, out_hidden_size=32, window_size=16, fullatt_block_indexes=[1], **changes
        )
        made = modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel
    torch.manual_seed(0)
    return made._from_config(config, attn_implementation=implementation).float()


def features_and_gradients(model):
    patches = sum(frames * rows * columns for frames, rows, columns in GRIDS)
    width = 3 * model.config.temporal_patch_size * PATCH**2
    pixels = torch.randn(patches, width, generator=torch.Generator().manual_seed(1))
    features = model(pixels, grid_thw=torch.tensor(GRIDS)).pooler_output
    features.square().sum().backward()
    return [features, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize(
    "name, unpacked", [("qwen2_vl", FRAMES + FRAMES), ("qwen2_5_vl", WINDOWS + FRAMES)]
)
def test_a_vision_tower_calls_once_a_layer(calls, name, unpacked):
    expected = features_and_gradients(tower(name, "eager"))
    one_call_each = features_and_gradients(tower(name, hf.NAME))
    assert len(calls) == unpacked
    calls.clear()
    packed = features_and_gradients(tower(name, NAME))
    assert len(calls) == 2 and all(len(shape) == 3 for shape in calls)
    for actual, found, right in zip(packed, one_call_each, expected, strict=True):
        within = 2e-5 * max(right.abs().max().item(), 1)
        torch.testing.assert_close(actual, right, rtol=0, atol=within)
        torch.testing.assert_close(found, right, rtol=0, atol=within)


def test_the_functions_behind_the_name_are_those_of_fa3():
    from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

    from fa3.compat import flash_attn_interface

    plain, packed, with_cache = lazy_import_flash_attention(NAME)[0][:3]
    assert plain is flash_attn_interface.flash_attn_func
    assert packed is flash_attn_interface.flash_attn_varlen_func
    assert with_cache.__name__ == "flash_attn_with_kvcache"


def test_a_flash_attention_of_the_models_own_that_cannot_be_loaded_names_fa3(monkeypatch):
    def missing(*_, **__):
        raise ImportError("`kernels` is not installed")

    monkeypatch.setattr(transformers.modeling_utils, "lazy_import_flash_attention", missing)
    model = hf_models.model("sinks", "gpt_oss")
    with pytest.raises(fa3.Unsupported, match="which it cannot load; .fa3. runs this model"):
        model.set_attn_implementation(NAME)
    with pytest.raises(ImportError, match="is not installed"):  # not asked for by a name of fa3
        model.set_attn_implementation("kernels-community/vllm-flash-attn3")


PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18], [20, 21, 22], [30], [40, 41] * 5]
DECODERS = {
    "gemma2": "softcapped",  # a window in every other layer
    "gpt_oss": "sinks",
    "llama": "decoder",
    "mistral": "windowed",
}


def decoder(name, implementation):
    model = hf_models.model(DECODERS[name], name, "MODEL_FOR_CAUSAL_LM_MAPPING")
    model.set_attn_implementation("eager")
    # Not by its setter: GPT-OSS replaces flash attentions that are not on its own list.
    model.config._attn_implementation = implementation
    return model


def batch_generated(model, prompts, **config):
    """Tokens of generate_batch(): small pages, and prompts that must be cut to fit a batch."""
    settings = transformers.GenerationConfig(
        max_new_tokens=9, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    config = transformers.ContinuousBatchingConfig(
        page_size=4, num_blocks=64, max_batch_tokens=16, **config
    )
    results = model.generate_batch(
        prompts, generation_config=settings, continuous_batching_config=config
    )
    assert not any(result.error for result in results.values())
    return [result.generated_tokens for result in results.values()]


def generated(model, prompt):
    ids = torch.tensor([prompt])
    how = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **how)[
        0, ids.shape[1] :
    ].tolist()


@pytest.mark.skipif(hf.VERSION < (5, 20), reason="generate_batch() needs Transformers 5.20")
@pytest.mark.parametrize("name", DECODERS)
def test_continuous_batching_gives_the_tokens_of_eager(calls, name):
    expected = [generated(decoder(name, "eager"), prompt) for prompt in PROMPTS]
    assert batch_generated(decoder(name, NAME), PROMPTS) == expected
    assert calls


@pytest.mark.skipif(hf.VERSION < (5, 20), reason="generate_batch() needs Transformers 5.20")
def test_continuous_batching_over_a_block_table(monkeypatch):
    """What Transformers does on GPUs alone: one new token a request, into its page."""
    from transformers.generation.continuous_batching import initialization

    def recorded(q, *arguments):
        rows.append(q.shape[1])
        return attend(q, *arguments)

    rows, attend = [], hf.paged.attend
    monkeypatch.setattr(hf.paged, "attend", recorded)
    monkeypatch.setattr(initialization, "ensure_decode_fast_path_is_available", lambda *_: None)
    expected = [generated(decoder("llama", "eager"), prompt) for prompt in PROMPTS]
    found = batch_generated(decoder("llama", NAME), PROMPTS, max_blocks_per_request=8)
    assert found == expected
    assert max(rows) > 1

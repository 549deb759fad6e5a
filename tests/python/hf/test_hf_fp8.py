# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fa3_fp8": a model's layers in FP8, in training and in generation."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("fa3.hf")

from fa3 import fp8  # noqa: E402
from fa3.hf import attention  # noqa: E402


@pytest.fixture
def llama(one_thread):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture
def calls(monkeypatch):
    """(in FP8, queries, keys) of each call."""
    seen = []

    def watched(run, in_fp8):
        def call(q, k, v, **options):
            seen.append((in_fp8, q.shape[-3], k.shape[-3]))
            return run(q, k, v, **options)

        return call

    monkeypatch.setattr(fp8, "quantize_together", watched(fp8.quantize_together, True))
    monkeypatch.setattr(attention, "attention", watched(fa3.torch.attention, False))
    return seen


def batch(kind):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 97, (3, 12), generator=generator)
    given = {"input_ids": ids, "labels": ids}
    if kind == "padded":
        mask = torch.ones_like(ids)
        mask[0, :6] = 0
        # A padded position predicts nothing: its own output is arbitrary in eager attention.
        predicted = mask * torch.nn.functional.pad(mask, (1, -1))
        given |= {"attention_mask": mask, "labels": ids.masked_fill(predicted == 0, -100)}
    if kind == "packed":
        positions = torch.arange(12).remainder(5)[None]
        given = {name: x[:1] for name, x in given.items()}
        given |= {"position_ids": positions, "use_cache": False}
    return given


def gradients(model, implementation, given):
    model.set_attn_implementation(implementation)
    model.zero_grad()
    model(**given).loss.backward()
    return torch.cat([p.grad.flatten() for n, p in model.named_parameters() if "self_attn" in n])


@pytest.mark.parametrize("kind", ["dense", "padded", "packed"])
def test_training_follows_eager_within_the_error_of_fp8(llama, calls, kind):
    given = batch(kind)
    wanted = gradients(llama.train(), "eager", given)
    found = gradients(llama, "fa3_fp8", given)
    assert len(calls) == 2 and all(in_fp8 for in_fp8, *_ in calls)
    assert 0 < (found - wanted).norm() / wanted.norm() < 0.05


def test_generation_reads_its_prompt_in_fp8_and_its_cache_in_the_models_type(llama, calls):
    llama.set_attn_implementation("fa3_fp8")
    given = {name: x for name, x in batch("padded").items() if name != "labels"}
    llama.eval().generate(**given, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert {(in_fp8, rows) for in_fp8, rows, _ in calls} == {(True, 36), (False, 1)}


def test_dropout_is_refused_by_a_sentence(llama):
    llama.config.attention_dropout = 0.1
    for layer in llama.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(fa3.Unsupported, match="dropout_p: expected 0 with float8_e4m3"):
        gradients(llama.train(), "fa3_fp8", batch("dense"))

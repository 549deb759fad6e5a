# SPDX-License-Identifier: Apache-2.0
"""Transformers models under torch.compile, torch.export and torch.onnx.export.

No test allows a break of the graph: every one compiles with fullgraph=True, and counts graphs. The
reference is the same model with attn_implementation="eager", not compiled.
"""

import importlib.util
import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
hf = pytest.importorskip("fa3.hf")

import builds  # noqa: E402
import hf_models  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ["fa3", "flash_fa3", "fa3_flex"]
CLOSE = {"rtol": 0, "atol": 3e-5}
TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 5,
}
AT_LENGTH = pytest.mark.skipif(builds.QUICK, reason="compiles for seconds (make test FULL=1)")
NEEDS_ONNX = pytest.mark.skipif(
    not importlib.util.find_spec("onnxscript"), reason="onnxscript is not installed (make torch)"
)
ONE_EXPERT = {"num_local_experts": 1, "num_experts_per_tok": 1}
FAMILIES = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {}),
    "gemma2": ("Gemma2", {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}),
    "gpt_oss": ("GptOss", ONE_EXPERT),
    "llama4": (
        "Llama4Text",
        {"attention_chunk_size": 4, "intermediate_size_mlp": 48, **ONE_EXPERT},
    ),
}


def rarely(*case):
    return pytest.param(*case, marks=AT_LENGTH)


def model(family, implementation="eager", **changes):
    torch.manual_seed(0)
    name, special = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**TINY, **special, **changes})
    made = transformers.AutoModelForCausalLM.from_config(config).eval()
    made.set_attn_implementation(implementation)
    return made


def batch(padding, rows=11):
    """Arguments of a model: two sequences, the first one 4 tokens shorter."""
    ids = torch.randint(3, 64, (2, rows), generator=torch.Generator().manual_seed(1))
    if padding == "no mask":
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    if padding == "between":
        mask[0, 3:6] = 0
    elif padding != "ones":
        mask[0, :4] = 0
    return {"input_ids": ids, "attention_mask": mask.flip(1) if padding == "right" else mask}


def compiled(made):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(made, backend="aot_eager", fullgraph=True)


def graphs():
    assert not torch._dynamo.utils.counters["graph_break"]
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def training_step(made, call, inputs):
    """Logits of what is no padding, and gradients of the layers' attention."""
    made.zero_grad()
    kept = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    predicted = kept & torch.nn.functional.pad(kept, (1, -1))
    labels = inputs["input_ids"].masked_fill(~predicted, -100)
    result = call(**inputs, labels=labels)
    result.loss.backward()
    gradients = {n: p.grad.clone() for n, p in made.named_parameters() if "self_attn" in n}
    return result.logits.detach()[kept], gradients


TRAINED = {("fa3", 1, "no mask", False), ("fa3", 2, "ones", True), ("fa3", 2, "left", False)}
TRAINED |= {("flash_fa3", 2, "right", False), ("fa3_flex", 2, "left", True)}
TRAINING = [
    (case if case in TRAINED else rarely(*case))
    for case in itertools.product(
        NAMES, (1, 2), ("no mask", "ones", "left", "right"), (False, True)
    )
]


def compare_training(made, name, inputs):
    made.train()
    expected = training_step(made, made, inputs)
    made.set_attn_implementation(name)
    torch.testing.assert_close(training_step(made, compiled(made), inputs), expected, **CLOSE)
    assert graphs() == 1


@pytest.mark.parametrize("name, sequences, padding, cache", TRAINING)
def test_a_training_step_is_one_graph(name, sequences, padding, cache):
    inputs = {key: x[:sequences] for key, x in batch(padding).items()} | {"use_cache": cache}
    compare_training(model("llama"), name, inputs)


@pytest.mark.parametrize(
    "family, padding",
    [
        ("gemma2", "left"),
        ("gpt_oss", "no mask"),
        ("llama4", "left"),
        rarely("gemma2", "no mask"),
        rarely("gpt_oss", "left"),
        rarely("llama4", "no mask"),
        rarely("mistral", "left"),
        rarely("mistral", "no mask"),
    ],
)
def test_windows_softcaps_sinks_and_chunks_are_one_graph(family, padding):
    compare_training(model(family), "fa3", batch(padding))


class Nameless:
    """What torch 2.11 traces of a function: its identity."""


def test_plain_masks_are_known_without_their_names(monkeypatch):
    causal, bidirectional = Nameless(), Nameless()
    monkeypatch.setattr(hf.mask, "CAUSAL", causal)
    monkeypatch.setattr(hf.mask, "BIDIRECTIONAL", bidirectional)
    assert hf.mask.describe(causal) == {"causal": True}
    assert hf.mask.describe(bidirectional) == {}


def test_what_a_program_put_in_the_place_of_the_causal_mask_is_not_taken_for_it(monkeypatch):
    def even(batch, head, query, key):
        return (key <= query) & (key % 2 == 0)

    monkeypatch.setattr(hf.mask.masking_utils, "causal_mask_function", even)
    with pytest.raises(fa3.Unsupported):
        hf.mask.describe(even)


@pytest.mark.parametrize("name", ["fa3", rarely("flash_fa3"), rarely("fa3_flex")])
def test_packed_sequences_are_one_graph(name):
    compare_training(model("llama"), name, packed())


def packed():
    return {
        "input_ids": batch("no mask")["input_ids"],
        "position_ids": torch.tensor([[*range(4), *range(7)], [*range(9), *range(2)]]),
        "use_cache": False,
    }


QUESTIONS = "__bool__ __int__ __index__ __float__ item tolist nonzero equal".split()


class Asked(TorchFunctionMode):
    """Counts the questions that a device would have to answer."""

    count = 0

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        self.count += getattr(function, "__name__", "") in QUESTIONS
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padding", ["no mask", "ones", "left", "right", "between", "packed"])
def test_layers_ask_the_device_nothing(padding, name):
    inputs = packed() if padding == "packed" else batch(padding)
    counts = []
    for layers in (1, 3):
        with Asked() as asked:
            model("llama", name, num_hidden_layers=layers)(**inputs).logits.sum().backward()
        counts.append(asked.count)
    assert counts[0] == counts[1]


GENERATED = {("llama", "left", "fa3"), ("mistral", "right", "fa3"), ("gemma2", "left", "fa3_flex")}
GENERATIONS = [
    (case if case in GENERATED else rarely(*case))
    for case in itertools.product(
        [*FAMILIES][:-1],  # Transformers compiles no Llama 4
        ("no mask", "left", "right"),
        ("fa3", "fa3_flex"),
    )
]


@pytest.mark.parametrize("family, padding, name", GENERATIONS)
def test_generate_over_a_static_cache_has_no_break(family, padding, name):
    inputs = batch(padding)
    made = model(family)
    how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    how["cache_implementation"] = "static"
    # The first token after padding on the right is arbitrary: fa3's hidden rows are 0.
    made.set_attn_implementation(name if padding == "right" else "eager")
    expected = made.generate(**inputs, **how, disable_compile=True)
    made.set_attn_implementation(name)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    config = transformers.CompileConfig(backend="eager", fullgraph=True, mode=None)
    config._compile_all_devices = True
    assert torch.equal(made.generate(**inputs, **how, compile_config=config), expected)
    assert graphs() <= 2  # of masks with and without padding between tokens


STEPS = [
    (case if case in {("fa3", "left"), ("fa3_flex", "left")} else rarely(*case))
    for case in itertools.product(NAMES, ("no mask", "left"))
]


@pytest.mark.parametrize("name, padding", STEPS)
def test_a_decode_step_over_a_static_cache_is_one_graph(name, padding):
    made, inputs = model("llama"), batch(padding)
    expected = second_call(made, made, inputs, static_cache(made))
    made.set_attn_implementation(name)
    actual = second_call(made, compiled(made), inputs, static_cache(made))
    torch.testing.assert_close(actual, expected, **CLOSE)


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("name", ["fa3", "fa3_flex"])  # not every family has flash attention
@pytest.mark.parametrize("family", FAMILIES)
def test_one_token_after_padding_on_the_right_sees_the_tokens_before_it(family, name, cache):
    made, inputs = model(family), batch("right", rows=6)
    caches = (static_cache(made) if cache == "static" else None for _ in range(2))
    expected = second_call(made, made, inputs, next(caches))
    made.set_attn_implementation(name)
    torch.testing.assert_close(second_call(made, made, inputs, next(caches)), expected, **CLOSE)


def static_cache(made):
    return transformers.StaticCache(made.config, max_cache_len=16)


def second_call(made, call, inputs, cache):
    """Logits of one more token."""
    with torch.no_grad():
        cache = made(**inputs, past_key_values=cache, use_cache=True).past_key_values
        more = {"input_ids": inputs["input_ids"][:, :1], "past_key_values": cache}
        if "attention_mask" in inputs:
            more["attention_mask"] = torch.nn.functional.pad(
                inputs["attention_mask"], (0, 1), value=1
            )
        return call(**more).logits


def own_scores(name):
    made = hf_models.model("own mask", name)
    return made, hf_models.inputs_for(made, "right")


@pytest.mark.parametrize("name", [rarely("doge"), rarely("t5")])
def test_models_with_scores_of_their_own_compile_with_breaks(name):
    made, inputs = own_scores(name)
    made.set_attn_implementation("eager")
    expected = made(**inputs).last_hidden_state
    made.set_attn_implementation("fa3_flex")
    torch._dynamo.reset()
    actual = torch.compile(made, backend="eager")(**inputs).last_hidden_state
    kept = inputs["attention_mask"].bool()
    torch.testing.assert_close(actual[kept], expected[kept], **CLOSE)


@pytest.mark.parametrize("name", ["doge", rarely("t5")])
def test_models_with_scores_of_their_own_are_no_one_graph(name):
    made, inputs = own_scores(name)
    made.set_attn_implementation("fa3_flex")
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="compile without fullgraph=True"):
        torch.compile(made, backend="eager", fullgraph=True)(**inputs)


def test_padding_between_tokens_is_an_error_of_the_compiled_model():
    inputs = batch("ones")
    inputs["attention_mask"][0, 3:5] = 0
    made = model("llama", "fa3")
    with pytest.raises(RuntimeError, match="padding only before and after the tokens"):
        compiled(made)(**inputs)


@pytest.mark.parametrize("name, padding", STEPS)
def test_a_model_is_exported(name, padding):
    made, inputs = model("llama", name), batch(padding) | {"use_cache": False}
    program = torch.export.export(made, (), inputs)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(**inputs).logits, made(**inputs).logits)


def onnx_result(program, inputs, folder):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    program.save(folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    return torch.from_numpy(session.run(None, inputs)[0])


@NEEDS_ONNX
@pytest.mark.parametrize("opset", [18, 23])
def test_attention_is_exported_to_onnx(opset, tmp_path):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return fa3.attention(q, k, v, causal=True, window=(5, 0))

    q, k, v = (torch.randn(2, n, heads, 16) for n, heads in ((9, 4), (12, 2), (12, 2)))
    program = torch.onnx.export(
        Layer().eval(), (q, k, v), dynamo=True, opset_version=opset, verbose=False
    )
    assert ("Attention" in {node.op_type for node in program.model.graph}) == (opset == 23)
    actual = onnx_result(program, {"q": q.numpy(), "k": k.numpy(), "v": v.numpy()}, tmp_path)
    torch.testing.assert_close(actual, Layer()(q, k, v), **CLOSE)


@NEEDS_ONNX
@pytest.mark.parametrize("name, padding", STEPS)
def test_a_model_is_exported_to_onnx(name, padding, tmp_path):
    made, inputs = model("llama", name), batch(padding)
    with torch.no_grad():
        expected = made(**inputs, use_cache=False).logits
    program = torch.onnx.export(
        made, (), kwargs={**inputs, "use_cache": False}, dynamo=True, verbose=False
    )
    actual = onnx_result(program, {n: x.numpy() for n, x in inputs.items()}, tmp_path)
    kept = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    torch.testing.assert_close(actual[kept], expected[kept], **CLOSE)


@pytest.mark.parametrize(
    "rules, seen",
    [
        ({"is_causal": False}, torch.ones(6, 9).bool()),
        ({"is_causal": True}, torch.ones(6, 9).tril(3).bool()),
        ({"is_causal": True, "sliding_window": 3}, torch.ones(6, 9).tril(3).triu(1).bool()),
        ({"is_causal": False, "sliding_window": 3}, torch.ones(6, 9).tril(5).triu(1).bool()),
    ],
    ids=["every key", "causal", "causal window", "window"],
)
@pytest.mark.parametrize("name", ["fa3", "fa3_flex"])
def test_a_layer_without_a_mask_is_exported_as_it_says(name, rules, seen, monkeypatch):
    monkeypatch.setattr("fa3.torch.onnx.is_exporting", lambda: True)
    layer = torch.nn.Module()
    layer.is_causal, layer.num_key_value_groups = True, 2
    q, k, v = (torch.randn(2, heads, n, 16) for heads, n in ((4, 6), (2, 9), (2, 9)))
    attend = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS[name]
    found, _ = attend(layer, q, k, v, None, scaling=0.25, **rules)
    right = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, scale=0.25, enable_gqa=True
    )
    torch.testing.assert_close(found, right.transpose(1, 2), **CLOSE)


def test_what_onnx_cannot_say_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("fa3.torch.onnx.is_exporting", lambda: True)
    q = torch.randn(1, 4, 2, 8, device="meta")
    with pytest.raises(
        fa3.Unsupported, match=r"seqused_k, softcap: expected the default in torch.on"
    ):
        fa3.attention(q, q, q, seqused_k=torch.ones(1, dtype=torch.int32), softcap=2.0)

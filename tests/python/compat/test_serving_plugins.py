# SPDX-License-Identifier: Apache-2.0
"""Plugins of vLLM and sglang: registered by the engines' rules, their backends attend as float64.

vLLM's test drives the backend as vLLM does: metadata from its builder, the cache written by
do_kv_cache_update, attention by forward. It runs on a stub of vLLM's names, and on vLLM itself
where that is installed.
"""

import importlib
import re
import sys
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from builds import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import serving_engines  # noqa: E402

from fa3.compat import plugins, sglang  # noqa: E402

BACKENDS = "vllm.v1.attention.backend"
HEADS, HEADS_K, DIM, PAGE, PAGES = 4, 2, 32, 16, 24
STEPS = ([5, 1, 18], [1, 1, 1], [3, 0, 1])  # new tokens of each sequence, step after step


def entry_point(group):
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(rf'entry-points."{re.escape(group)}"\]\n\w+ = "([\w.]+):(\w+)"', text)
    return getattr(importlib.import_module(found[1]), found[2])


@pytest.fixture(params=["stub", "vllm"])
def vllm_backend(request, monkeypatch):
    """The class that vLLM's registry gives for the name, registered by the entry point."""
    if request.param == "stub":
        serving_engines.stub_of_vllm(monkeypatch)
    else:
        pytest.importorskip("vllm", reason="vllm is not installed")
    monkeypatch.setattr(
        "vllm._custom_ops.reshape_and_cache_flash", serving_engines.reshape_and_cache_flash
    )
    monkeypatch.delitem(sys.modules, plugins.VLLM_CLASS.rpartition(".")[0], raising=False)
    register = entry_point("vllm.general_plugins")
    register()
    register()  # vLLM's processes may each load plugins more than once
    registry = importlib.import_module(f"{BACKENDS}s.registry")
    return registry.AttentionBackendEnum["FA3_EXACT"].get_class()


class Sequences:
    """Sequences that grow step by step, in float64 beside vLLM's cache of pages."""

    def __init__(self, dtype=torch.bfloat16, cache_dtype=torch.bfloat16, rows_first=False):
        self.draw = torch.Generator().manual_seed(3)
        self.dtype = dtype
        shape = (PAGES, PAGE, HEADS_K) if rows_first else (PAGES, HEADS_K, PAGE)
        cache = torch.full((*shape, 2 * DIM), 7.0).to(cache_dtype)
        self.cache = cache.transpose(1, 2) if rows_first else cache
        self.table = torch.randperm(PAGES, generator=self.draw).view(3, -1).int()
        self.keys = [[torch.zeros(0, HEADS_K, DIM).double() for _ in "kv"] for _ in range(3)]

    def step(self, lengths):
        """(vLLM's metadata of a step, q, k, v), with two rows of padding at the end."""
        total = sum(lengths)
        slots = torch.full((total + 2,), -1)
        shapes = [(total + 2, heads, DIM) for heads in (HEADS, HEADS_K, HEADS_K)]
        q, k, v = (torch.randn(s, generator=self.draw).to(self.dtype) for s in shapes)
        row = 0
        for n, length in enumerate(lengths):
            first = len(self.keys[n][0])
            place = torch.arange(first, first + length)
            slots[row : row + length] = self.table[n, place // PAGE] * PAGE + place % PAGE
            new = (x[row : row + length].double() for x in (k, v))
            self.keys[n] = [torch.cat(pair) for pair in zip(self.keys[n], new, strict=True)]
            row += length
        used = [len(k) for k, _ in self.keys]
        batch = SimpleNamespace(
            query_start_loc=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
            seq_lens=torch.tensor(used, dtype=torch.int32),
            num_actual_tokens=total,
            max_query_len=max(lengths),
            max_seq_len=max(used),
            block_table_tensor=self.table,
            slot_mapping=slots,
            causal=True,
        )
        return batch, q, k, v

    def expected(self, q, lengths, **options):
        out = []
        for rows, keys in zip(q[: sum(lengths)].split(lengths), self.keys, strict=True):
            given = [x.double().numpy()[None] for x in (rows, *keys)]
            out.append(torch.from_numpy(oracle.forward(*given, **options)[0][0]))
        return torch.cat(out)


class Layer:
    """vLLM's layer, as far as a backend looks at it."""

    _q_scale = _k_scale = _v_scale = torch.tensor(1.0)


def implementation(backend, **options):
    return backend.get_impl_cls()(HEADS, DIM, DIM**-0.5, HEADS_K, None, None, **options)


def attend(backend, impl, sequences, lengths, layer=Layer):
    """(out, the queries) of one step, as vLLM computes it."""
    builder = backend.get_builder_cls()("spec", ["layer"], None, torch.device("cpu"))
    batch, q, k, v = sequences.step(lengths)
    metadata = builder.build(0, batch)
    out = torch.full_like(q, float("nan"))
    assert not backend.forward_includes_kv_cache_update
    impl.do_kv_cache_update(layer, k, v, sequences.cache, metadata.slot_mapping)
    assert impl.forward(layer, q, k, v, sequences.cache, metadata, out) is out
    assert out[sum(lengths) :].isnan().all()  # padding is left alone
    return out[: sum(lengths)], q


def close(actual, expected, tolerance=2e-2):
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


SINKS = torch.linspace(-1, 1, HEADS)
LAYERS = {
    "plain": ({}, {}),
    "window": ({"sliding_window": 7}, {"window": (6, 0)}),
    "softcap": ({"logits_soft_cap": 2.0}, {"softcap": 2.0}),
    "sinks": ({"sinks": SINKS.bfloat16()}, {"sink": SINKS.bfloat16().double().numpy()}),
}


@pytest.mark.parametrize("rows_first", [False, True], ids=["heads first", "rows first"])
@pytest.mark.parametrize("name", LAYERS)
def test_vllm_decodes_beside_prefills(vllm_backend, name, rows_first):
    options, mask = LAYERS[name]
    impl = vllm_backend.get_impl_cls()(
        HEADS, DIM, DIM**-0.5, HEADS_K, **{"alibi_slopes": None, "sliding_window": None} | options
    )
    sequences = Sequences(rows_first=rows_first)
    for lengths in STEPS:
        out, q = attend(vllm_backend, impl, sequences, lengths)
        close(out, sequences.expected(q, lengths, causal=True, **mask))


def test_vllm_gives_alibi_slopes_as_a_list(vllm_backend):
    slopes = [0.5, 0.25, 0.125, 0.0625]
    impl = vllm_backend.get_impl_cls()(HEADS, DIM, DIM**-0.5, HEADS_K, slopes, None)
    sequences = Sequences()
    for lengths in STEPS[:2]:
        out, q = attend(vllm_backend, impl, sequences, lengths)
    for row, (k, v) in enumerate(sequences.keys):
        scores = torch.einsum("hd,khd->hk", q[row].double(), k.repeat_interleave(2, 1)) * DIM**-0.5
        scores += torch.tensor(slopes).double()[:, None] * (torch.arange(len(k)) - len(k) + 1)
        right = torch.einsum("hk,khd->hd", scores.softmax(-1), v.repeat_interleave(2, 1))
        close(out[row], right)


@pytest.mark.parametrize("name", ["fp8", "fp8_e5m2"])
def test_vllm_attends_to_float8_caches(vllm_backend, name):
    class Scaled(Layer):
        _k_scale, _v_scale = torch.tensor(0.5), torch.tensor(0.25)

    kind = serving_engines.FLOAT8[name]
    sequences = Sequences(cache_dtype=kind)
    sequences.cache = sequences.cache.view(torch.uint8)  # as vLLM allocates it
    impl = implementation(vllm_backend, kv_cache_dtype=name)
    out, q = attend(vllm_backend, impl, sequences, STEPS[0], Scaled)
    rounded = [
        [(x / s).to(kind).double() * s for x, s in zip(kv, (0.5, 0.25), strict=True)]
        for kv in sequences.keys
    ]
    sequences.keys = rounded
    close(out, sequences.expected(q, STEPS[0], causal=True))


def test_vllm_encoders_see_both_sides(vllm_backend):
    impl = vllm_backend.get_impl_cls()(
        HEADS, DIM, DIM**-0.5, HEADS_K, None, 4, attn_type="encoder_only"
    )
    sequences = Sequences()
    empty, sequences.cache = sequences.cache, torch.empty(0)  # there is none
    out, q = attend(vllm_backend, impl, sequences, STEPS[0])
    close(out, sequences.expected(q, STEPS[0], window=(3, 3)))
    assert empty.numel()


def test_vllm_groups_of_layers_share_metadata_but_for_pages(vllm_backend):
    builder = vllm_backend.get_builder_cls()("spec", ["layer"], None, torch.device("cpu"))
    batch, *_ = Sequences().step(STEPS[0])
    first = builder.build(0, batch)
    other = builder.update_block_table(first, torch.zeros(3, 1), torch.ones(2))
    assert first.block_table is batch.block_table_tensor
    assert other.block_table.shape == (3, 1) and other.seq_lens is first.seq_lens


def test_vllm_measures_memory_without_a_batch(vllm_backend):
    out = torch.full((3, HEADS, DIM), float("nan"))
    impl = implementation(vllm_backend)
    assert impl.forward(Layer, out, out, out, torch.empty(0), None, out) is out
    assert not out.any()


def test_vllm_calls_that_fa3_lacks_are_refused_by_name(vllm_backend):
    impl, sequences = implementation(vllm_backend), Sequences()
    batch, q, k, v = sequences.step(STEPS[0])
    metadata = vllm_backend.get_builder_cls()("s", [], None, torch.device("cpu")).build(0, batch)
    call = Layer, q, k, v, sequences.cache
    with pytest.raises(fa3.Unsupported, match="^output_scale: expected None"):
        impl.forward(*call, metadata, q.clone(), torch.ones(1))
    metadata.causal = torch.ones(3, dtype=torch.int32)
    with pytest.raises(fa3.Unsupported, match="^dynamic_causal: expected None"):
        impl.forward(*call, metadata, q.clone())
    with pytest.raises(fa3.Unsupported, match=r"^kv_cache: expected \(blocks, .* got \(2, 24"):
        impl.forward(*call[:4], torch.zeros(2, PAGES, PAGE, HEADS_K, DIM), metadata, q.clone())


def test_vllm_takes_the_backend_for_what_it_computes(vllm_backend):
    of = importlib.import_module(BACKENDS)
    if not hasattr(of.AttentionBackend, "validate_configuration"):
        pytest.skip("vLLM's rules are not in the stub")
    from vllm.platforms.interface import DeviceCapability

    call = {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "fp8",
        "block_size": 16,
        "use_mla": False,
        "has_sink": True,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": DeviceCapability(9, 0),
        "attn_type": "decoder",
        "has_sliding_window": True,
    }
    assert vllm_backend.validate_configuration(**call) == []
    assert vllm_backend.validate_configuration(**call | {"use_dcp": True}) == ["DCP not supported"]
    from vllm.config.attention import AttentionConfig

    assert AttentionConfig(backend="fa3_exact").backend.name == vllm_backend.get_name()


def test_vllm_without_such_a_registry_starts_as_before(monkeypatch):
    serving_engines.module(monkeypatch, f"{BACKENDS}s.registry")
    plugins.register_vllm()


class FlashAttentionBackend:
    """sglang's: its functions come from its module, or from itself."""

    def __init__(self, model_runner, skip_prefill=False, fa_impl_ver=3):
        self.runner, self._get_scheduler_metadata = model_runner, "sglang's"
        self.flash_attn_varlen_func = self.flash_attn_with_kvcache = "sglang's"


def test_sglang_has_the_backend_under_its_flag(monkeypatch):
    registered, choices = {}, ["triton", "fa3"]
    at = "sglang.srt.layers.attention"
    serving_engines.module(
        monkeypatch,
        f"{at}.attention_registry",
        register_attention_backend=lambda name: lambda create: registered.setdefault(name, create),
    )
    of_sglang = {"FlashAttentionBackend": FlashAttentionBackend}
    for name in ("flash_attn_varlen_func", "flash_attn_with_kvcache"):
        of_sglang[name] = "sglang's"
    module = serving_engines.module(monkeypatch, f"{at}.flashattention_backend", **of_sglang)
    serving_engines.module(
        monkeypatch,
        "sglang.srt.server_args",
        ATTENTION_BACKEND_CHOICES=choices,
        add_attention_backend_choices=choices.extend,
    )
    register = entry_point("sglang.srt.plugins")
    register()
    register()
    assert choices == ["triton", "fa3", "fa3_exact"]
    assert module.flash_attn_with_kvcache == "sglang's"  # nothing changes without the flag
    backend = registered["fa3_exact"]("runner")
    assert isinstance(backend, FlashAttentionBackend) and backend.runner == "runner"
    assert backend._get_scheduler_metadata is None
    for place in (backend, module):
        assert place.flash_attn_with_kvcache is sglang.flash_attn_with_kvcache
        assert place.flash_attn_varlen_func is sglang.flash_attn_varlen_func

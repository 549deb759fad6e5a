# SPDX-License-Identifier: Apache-2.0
"""What of vLLM 0.33 and sglang 0.5.23 their plugins touch, where the engines are not installed.

Names and signatures are those of the engines, without annotations.
"""

import enum
import importlib
import sys
from abc import ABC, abstractmethod
from types import ModuleType, SimpleNamespace

import torch

FLOAT8 = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def module(monkeypatch, name, **names):
    """Puts a module and the packages that it lies in where import looks."""
    for end in [i for i, letter in enumerate(name) if letter == "."]:
        package = ModuleType(name[:end])
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name[:end], sys.modules.get(name[:end], package))
    made = ModuleType(name)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, name, made)
    parent, _, last = name.rpartition(".")
    monkeypatch.setattr(sys.modules[parent], last, made, raising=False)
    return made


class AttentionType(str, enum.Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


class AttentionBackend(ABC):
    @staticmethod
    @abstractmethod
    def get_name(): ...

    @staticmethod
    @abstractmethod
    def get_impl_cls(): ...

    @staticmethod
    @abstractmethod
    def get_builder_cls(): ...


class AttentionMetadataBuilder(ABC):
    @abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device): ...

    @abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...


class AttentionImpl(ABC):
    @abstractmethod
    def __init__(
        self,
        num_heads,
        head_size,
        scale,
        num_kv_heads=None,
        alibi_slopes=None,
        sliding_window=None,
        kv_cache_dtype="auto",
        logits_soft_cap=None,
        attn_type=AttentionType.DECODER,
        kv_sharing_target_layer_name=None,
    ): ...

    @abstractmethod
    def forward(
        self,
        layer,
        query,
        key,
        value,
        kv_cache,
        attn_metadata,
        output,
        output_scale=None,
        output_block_scale=None,
    ): ...


AttentionCGSupport = enum.Enum("AttentionCGSupport", "NEVER UNIFORM_BATCH ALWAYS")


def registry():
    """(AttentionBackendEnum, register_backend): names that are registered become members."""
    members = {}

    class AttentionBackendEnum:
        __members__ = members

        def __class_getitem__(cls, name):
            return members[name]

        @staticmethod
        def register(name, value):
            if name in members or not name.isidentifier():
                raise ValueError(f"Backend {name} already exists")
            of, _, last = value.rpartition(".")
            get_class = lambda: getattr(importlib.import_module(of), last)  # noqa: E731
            members[name] = SimpleNamespace(get_class=get_class)

    def register_backend(backend, class_path=None, is_mamba=False):
        AttentionBackendEnum.register(backend, class_path)

    return AttentionBackendEnum, register_backend


def stub_of_vllm(monkeypatch):
    at = "vllm.v1.attention.backend"
    names = (AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadataBuilder)
    of_backend = {x.__name__: x for x in (*names, AttentionType)}
    module(monkeypatch, at, **of_backend, MultipleOf=int)
    found = dict(zip(("AttentionBackendEnum", "register_backend"), registry(), strict=True))
    module(monkeypatch, f"{at}s.registry", **found)
    module(monkeypatch, "vllm._custom_ops", reshape_and_cache_flash=None)


def reshape_and_cache_flash(
    key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
):
    """vLLM's kernel of the name, which runs on GPUs alone."""
    page = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        for cache, new, scale in ((key_cache, key, k_scale), (value_cache, value, v_scale)):
            of = cache.view(FLOAT8[kv_cache_dtype]) if kv_cache_dtype in FLOAT8 else cache
            of[slot // page, slot % page] = (new[token] / scale).to(of.dtype)

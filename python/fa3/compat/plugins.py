# SPDX-License-Identifier: Apache-2.0
"""Plugins of serving engines: where fa3 is installed, vLLM and sglang know it as a backend.

vllm serve MODEL --attention-backend FA3_EXACT
sglang serve --model-path MODEL --attention-backend fa3_exact

Both engines call these functions when they start, by the entry points of the package. Without the
flag nothing changes: their own backends stay what they are.
"""

__all__ = ["register_sglang", "register_vllm"]


def __dir__():
    return __all__


NAME = "fa3_exact"  # fa3 is sglang's name of FlashAttention-3
VLLM_CLASS = "fa3.compat._vllm_backend.Backend"


def register_vllm():
    """Entry point of the group vllm.general_plugins, called in every process of vLLM."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError:  # vLLM stops at errors of a plugin, and its older versions go on without
        return
    name = NAME.upper()
    if hasattr(AttentionBackendEnum, "register") and name not in AttentionBackendEnum.__members__:
        register_backend(name, VLLM_CLASS)


def register_sglang():
    """Entry point of the group sglang.srt.plugins, called before sglang reads its options."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])
    register_attention_backend(NAME)(sglang_backend)


def sglang_backend(runner):
    """sglang's FlashAttention backend with the functions of fa3.compat.sglang.

    Its methods call functions of its module, so the module gets ours: a process of sglang has one
    backend for its attention.
    """
    from sglang.srt.layers.attention import flashattention_backend

    from fa3.compat import sglang

    backend = flashattention_backend.FlashAttentionBackend(runner)
    for name in ("flash_attn_varlen_func", "flash_attn_with_kvcache"):
        setattr(backend, name, getattr(sglang, name))
        setattr(flashattention_backend, name, getattr(sglang, name))
    backend._get_scheduler_metadata = None  # sglang then computes none, and fa3 needs none
    return backend

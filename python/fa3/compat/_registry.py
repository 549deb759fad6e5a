# SPDX-License-Identifier: Apache-2.0
"""torch.ops.flash_attn_3.*, where FlashAttention-3 itself is not installed.

torch.nn.attention.activate_flash_attention_impl("FA3") and some programs call FlashAttention-3 by
its operators. Each is made of differentiable ones of torch.ops.fa3, so that compilers see through.
The schemas are those that FlashAttention-3's test_flash3_bw_compatibility promises to keep.
"""

import importlib.util

import torch

NAME = "flash_attn_3"
SCHEMAS = {
    "fwd": "(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, "
    "Tensor? q_v=None, Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, "
    "Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, "
    "Tensor? rotary_cos=None, Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, "
    "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, "
    "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, int attention_chunk=0, float softcap=0.0, "
    "bool is_rotary_interleaved=False, Tensor? scheduler_metadata=None, int num_splits=0, "
    "bool? pack_gqa=None, int sm_margin=0) -> (Tensor(out!), Tensor, Tensor, Tensor)",
    "bwd": "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor(dq!)? dq=None, Tensor(dk!)? dk=None, Tensor(dv!)? dv=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? seqused_q=None, "
    "Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, float softcap=0.0, bool deterministic=False, int sm_margin=0) -> "
    "(Tensor(dq!), Tensor(dk!), Tensor(dv!), Tensor, Tensor, Tensor, Tensor, Tensor)",
    "fwd_combine": "(Tensor out_partial, Tensor lse_partial, Tensor(out!)? out=None, "
    "ScalarType? out_dtype=None) -> (Tensor(out!), Tensor)",
    "get_scheduler_metadata": "(int batch_size, int max_seqlen_q, int max_seqlen_k, "
    "int num_heads, int num_heads_k, int headdim, int headdim_v, ScalarType qkv_dtype, "
    "Tensor seqused_k, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? leftpad_k=None, "
    "int? page_size=None, int max_seqlen_k_new=0, bool is_causal=False, "
    "int window_size_left=-1, int window_size_right=-1, int attention_chunk=0, "
    "bool has_softcap=False, int num_splits=0, bool? pack_gqa=None, int sm_margin=0) -> Tensor",
}


def register(forward, backward, combine, metadata):
    """Defines the operators by the functions of flash_attn_interface, unless somebody else does."""
    if original_is_installed() or hasattr(getattr(torch.ops, NAME), "fwd"):
        return None

    def bwd(dout, q, k, v, out, lse, dq, dk, dv, *rest):
        lengths, (scale, causal, left, right, *others) = rest[:6], rest[6:]
        mask = scale, causal, left, right
        results = backward(
            dout, q, k, v, out, lse, *lengths, dq, dk, dv, *mask, *others, window_size=(left, right)
        )
        return *results, *(lse.new_empty(0) for _ in range(4))

    kernels = {
        "fwd": forward,
        "bwd": bwd,
        "fwd_combine": combine,
        "get_scheduler_metadata": lambda *sizes: metadata(*sizes[:6], sizes[8]),
    }
    library = torch.library.Library(NAME, "FRAGMENT")
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
        library.impl(name, with_defaults(name, kernels[name]), "CompositeImplicitAutograd")
    return library  # operators live as long as it does


def with_defaults(name, kernel):
    """torch leaves out arguments behind the last that is not at the schema's default."""
    schema = getattr(getattr(torch.ops, NAME), name).default._schema
    defaults = [argument.default_value for argument in schema.arguments]
    return lambda *given: kernel(*given, *defaults[len(given) :])


def original_is_installed():
    try:
        return importlib.util.find_spec(f"{NAME}._C") is not None
    except ModuleNotFoundError:  # there is no package of the name
        return False

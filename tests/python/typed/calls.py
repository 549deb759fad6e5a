# SPDX-License-Identifier: Apache-2.0
"""Calls as type checkers see them: `make lint` checks this file, nothing runs it.

Each ignored error must be one, and each result must have the type that is asserted.
"""

from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import assert_type

import fa3
import fa3.masks
import fa3.torch
from fa3.compat import bert_padding, flash_attn, flash_attn_interface, ring_flash_attn, sglang, vllm
from fa3.compat.flex_attention import flex_attention

Array = np.ndarray[Any, Any]


def results(q: Array, k: Array, v: Array, wants_lse: bool) -> None:
    assert_type(fa3.attention(q, k, v), Array)
    assert_type(fa3.attention(q, k, v, return_lse=True), tuple[Array, Array])
    assert_type(fa3.attention(q, k, v, return_lse=wants_lse), Array | tuple[Array, Array])
    assert_type(fa3.attention_fp8(q, k, v, seed=1), Array)
    assert_type(fa3.attention_fp8(q, k, v, return_lse=True), tuple[Array, Array])
    assert_type(fa3.attention_fp8(q, k, v, return_lse=wants_lse), Array | tuple[Array, Array])
    assert_type(fa3.quantize(q).descale, Array)
    assert_type(fa3.merge(q, k), tuple[Array, Array])
    assert_type(fa3.attention_backward(q, q, k, v, q, q).dq, Array)


def options(q: Array, k: Array, v: Array) -> None:
    fa3.attention(q, k, v, window=(3, 0), softcap=30.0, scale=None, engine="cpu")
    fa3.attention(q, k, v, window=[3, 0], sink=q, page_table=k, seqused_k=v, num_splits=2)
    fa3.attention(q, k, v, window=3)  # type: ignore[call-overload]
    fa3.attention(q, k, v, engine="gpu")  # type: ignore[call-overload]
    fa3.attention(q, k, v, is_causal=True)  # type: ignore[call-overload]
    fa3.attention_fp8(q, k, v, causal=True, window=[3, 0])
    fa3.attention_fp8(q, k, v, saved="quantized")
    fa3.attention_fp8(q, k, v, saved="q8")  # type: ignore[call-overload]
    fa3.attention_fp8(q, k, v, page_table=k)  # type: ignore[call-overload]
    fa3.attention_backward(q, q, k, v, q, q, num_splits=2)  # type: ignore[call-arg]


def switch() -> None:
    fa3.torch.enable_sdpa()
    fa3.torch.enable_sdpa(fp8=True)
    with fa3.torch.sdpa("FA3"):
        fa3.torch.disable_sdpa()
    fa3.torch.enable_sdpa(1)  # type: ignore[arg-type]


def names_elsewhere(q: Any, used: Any) -> None:
    assert_type(flash_attn.flash_attn_func(q, q, q, 0.1, None, True), Tensor)
    assert_type(flash_attn.flash_attn_qkvpacked_func(q, causal=True), Tensor)
    assert_type(flash_attn.flash_attn_qkvpacked_func(qkv=q), Tensor)
    assert_type(flash_attn.flash_attn_kvpacked_func(q=q, kv=q), Tensor)
    assert_type(flash_attn.flash_attn_with_kvcache.__name__, str)
    assert_type(flash_attn_interface.flash_attn_func(q, q, q, None, True), Tensor)
    assert_type(flash_attn_interface.flash_attn_func(q, q, q, return_attn_probs=True), Any)
    assert_type(vllm.flash_attn_varlen_func(q, q, q, 8, used, 8, used), Tensor)
    assert_type(sglang.flash_attn_with_kvcache(q, q, q, cache_seqlens=used), Tensor)
    assert_type(bert_padding.pad_input(q, used, 2, 8), Tensor)
    assert_type(flex_attention(q, q, q, lambda s, b, h, i, j: s), Tensor)
    flash_attn.flash_attn_func(q, q, q, softmax_scale="1")  # type: ignore[call-overload]
    vllm.flash_attn_varlen_func(q, q, q)  # type: ignore[call-overload]
    flash_attn.flash_attn_kvpacked_func(q, q, softmax_scale="1")  # type: ignore[call-overload]
    ring_flash_attn.ring_flash_attn_qkvpacked_func(q, causal=None)  # type: ignore[call-overload]


def functions_and_masks(q: Array, seen: Array) -> None:
    mask = fa3.masks.from_dense(seen)
    assert_type(mask, fa3.masks.BlockMask)
    assert_type(fa3.flex_attention(q, q, q, block_mask=mask, layout="bhsd"), Array)
    assert_type(fa3.flex_attention(q, q, q, return_lse=True), tuple[Array, Array])
    fa3.masks.from_rule(lambda b, h, i, j: i >= j, 1, 1, 8, 8)
    fa3.masks.from_rule(None, 1, 1, 8, 8)  # type: ignore[arg-type]
    fa3.flex_attention(q, q, q, layout="sbhd")  # type: ignore[call-overload]

# SPDX-License-Identifier: Apache-2.0
"""Drop-in for vllm.vllm_flash_attn: the functions of its package, in its order.

One call serves prefill, decoding and both at once, with keys packed or in pages. LSE is the
natural log of the sum of exp(scores), (heads, total_q), and -inf for a query that sees no key. No
gradients, as in the original. What fa3 cannot do raises fa3.Unsupported with the argument's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import fa3
from fa3.compat._arguments import (
    factors,
    float32,
    int32,
    joined,
    length,
    options,
    rows_of_stride_1,
    unsupported,
)
from fa3.compat._kvcache import renamed
from fa3.compat._signatures import Window, with_lse, without_gradients
from fa3.errors import InvalidArgument, Unsupported

__all__ = [
    "compile_flash_attn_varlen_func_from_specs",
    "fa_version_unsupported_reason",
    "flash_attn_varlen_func",
    "get_scheduler_metadata",
    "is_fa_version_supported",
]


def __dir__():
    return __all__


VERSIONS = (2, 3, 4)
NO_GATHER = "fa3 has block masks (fa3.masks), no gather of keys by index"
OUR_NAMES = {"page_table": "block_table", "sink": "s_aux"}


@with_lse
@without_gradients
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    q_v: Tensor | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    return_softmax_lse: Literal[False] = False,
    out: Tensor | None = None,
    scheduler_metadata: Any = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    num_splits: int = 0,
    output_scale: Any = None,
    fa_version: int = 2,
    s_aux: Tensor | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_tot_seqused_k: Tensor | None = None,
    mask_mod: Any = None,
    block_sparse_tensors: Any = None,
    aux_tensors: Any = None,
    aux_tensor_leading_dims: Any = None,
    dynamic_causal: Any = None,
    gather_kv_indices: Any = None,
    gather_kv_valid_length: Any = None,
):
    """Attention of packed queries to packed keys (cu_seqlens_k), to pages, or to a batch of keys.

    Args:
        q: (total_q, hq, d); sequence n owns rows cu_seqlens_q[n] .. cu_seqlens_q[n + 1] - 1.
        k, v: (total_k, hk, d | dv) with cu_seqlens_k; pages (pages, page_size, hk, d | dv) with
            block_table (batch, max_pages) and seqused_k; (batch, s, hk, d | dv) with seqused_k
            alone. Lengths and tables may have 64 bits.
        max_seqlen_q, max_seqlen_k: upper bounds of the lengths in cu_seqlens_q and cu_seqlens_k.
        window_size: (left, right) in keys; None and -1 are unbounded.
        q_v: (total_q, hq, dv): scores are scale * (q.k + q_v.v), the absorbed form of MLA. The
            default scale is d**-0.5, without dv. k and v are copied unless they lie side by side in
            memory, v first, as in a latent cache.
        s_aux: (hq,) of any float type: one more logit per query head, the attention sink.
        q_descale, k_descale, v_descale: float32 (batch, hk), factors of float8 numbers; ignored
            beside others.
        alibi_slopes: (hq,) or (batch, hq).
        num_splits: at most this number of parts of the keys, 0 chooses.
        out: written instead of a new tensor, (total_q, hq, dv).
        cp_world_size, cp_rank, cp_tot_seqused_k: decode context parallelism. Key j of k and v is
            key j * cp_world_size + cp_rank of a sequence of cp_tot_seqused_k (batch,) keys, where
            causal and window_size have their places. seqused_k and max_seqlen_k count k's own. The
            results of all ranks merge by their LSEs; give s_aux to one rank.
        fa_version: 2, 3 or 4: all get the same attention. With 4, keys may have both cu_seqlens_k,
            where sequences begin, and seqused_k, how many keys of each are attended to.
        deterministic, return_attn_probs, scheduler_metadata: accepted, without effect.

    Returns:
        out, or (out, lse (hq, total_q) float32) with return_softmax_lse.

    Raises:
        fa3.InvalidArgument: the call is wrong. Also a ValueError.
        fa3.Unsupported: dropout, ALiBi beside sinks or ranks, masks and outputs of
            FlashAttention-4, and what no engine does on these tensors.
    """
    check_version(fa_version)
    unsupported(
        dropout_p=(dropout_p, 0.0, "fa3 has dropout for training alone"),
        output_scale=(output_scale, None, "fa3 writes no float8 outputs"),
        mask_mod=(mask_mod, None, "fa3 has no masks by function"),
        block_sparse_tensors=(block_sparse_tensors, None, "fa3 has no block-sparse masks"),
        aux_tensors=(aux_tensors, None, "fa3 has no masks by function"),
        dynamic_causal=(dynamic_causal, None, "fa3 has one mask for all sequences"),
        gather_kv_indices=(gather_kv_indices, None, NO_GATHER),
        gather_kv_valid_length=(gather_kv_valid_length, None, NO_GATHER),
    )
    both = cu_seqlens_k is not None and seqused_k is not None
    if (cu_seqlens_k is None and seqused_k is None) or (both and fa_version != 4):
        raise InvalidArgument(
            "cu_seqlens_k, seqused_k: expected one of them, with the lengths, or both with "
            "fa_version=4"
        )
    if block_table is not None and seqused_k is None:
        raise InvalidArgument("seqused_k: expected the lengths of the sequences in block_table")
    q, k, v = (rows_of_stride_1(x) for x in (q, k, v))
    if q_v is not None:
        softmax_scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        q, k, v = joined(q, k, v, q_v)
    call = {
        "cu_seqlens_q": int32(cu_seqlens_q),
        "cu_seqlens_k": int32(cu_seqlens_k),
        "seqused_k": int32(seqused_k),
        "max_seqlen_q": length(max_seqlen_q),
        "max_seqlen_k": length(max_seqlen_k),
        "page_table": int32(block_table),
        "sink": float32(s_aux),
        "num_splits": num_splits,
        **factors(q, k, v, q_descale, k_descale, v_descale),
        **options(softmax_scale, causal, window_size, softcap),
    }
    if alibi_slopes is not None:
        no_ranks = "fa3 has no ALiBi where keys are dealt to ranks"
        unsupported(cp_world_size=(cp_world_size, 1, no_ranks))
        call["alibi_slopes"] = float32(alibi_slopes)
    if cp_world_size != 1:
        call = keys_in_turn(call, q.shape[0], cp_world_size, cp_rank, cp_tot_seqused_k)
    with renamed(OUR_NAMES):
        return fa3.attention(q, k, v, out=out, return_lse=return_softmax_lse, **call)


def keys_in_turn(call, num_queries, world, rank, totals):
    """The options of fa3.attention for this rank's keys, from those of a call over all keys.

    Ranks of decode context parallelism hold the keys of each sequence in turn: local key j of rank
    r is key j * world + r. A mask by places then ends between other local keys for each query, so
    each query becomes a sequence of its own, with lengths that are computed on the device: nothing
    waits.

    call has packed queries; totals: (batch,), the keys of each sequence on all ranks.
    """
    if world < 1 or not 0 <= rank < world:
        raise InvalidArgument(
            f"cp_rank: expected a rank of the {world} in cp_world_size, from 0, got {rank}"
        )
    left, right = call["window"]
    if call["causal"]:
        right = 0  # of the window's end and the diagonal, whichever comes first
    sees_all = left < 0 and (right < 0 or call["max_seqlen_q"] == 1)
    if sees_all or num_queries == 0:
        return call | {"causal": False, "window": (-1, -1)}
    if totals is None:
        raise InvalidArgument(
            "cp_tot_seqused_k: expected the lengths on all ranks, which a mask needs"
        )
    if call["seqused_k"] is None:
        raise Unsupported(
            "cu_seqlens_k: expected seqused_k, with keys in pages or in a batch: a mask over the "
            "keys of one rank takes each query for a sequence, and these cannot share packed keys"
        )
    starts, used = call["cu_seqlens_q"], call["seqused_k"]
    if totals.shape != used.shape:
        raise InvalidArgument(
            f"cp_tot_seqused_k: expected shape {tuple(used.shape)}, as seqused_k, got "
            f"{tuple(totals.shape)}"
        )
    query = torch.arange(num_queries + 1, dtype=torch.int32, device=starts.device)
    sequence = torch.searchsorted(starts[1:], query[:-1], right=True)
    is_owned = sequence < used.shape[0]
    sequence.clamp_(max=used.shape[0] - 1)
    # The last query of a sequence is at its last key.
    place = totals[sequence] - starts[sequence + 1] + query[:-1]
    end = used[sequence] * is_owned
    if right >= 0:
        end = torch.minimum(end, local_keys_before(place + right + 1, world, rank))
    begin = local_keys_before(place - left, world, rank) if left >= 0 else None
    of_query = {
        "cu_seqlens_q": query,
        "max_seqlen_q": 1,
        "seqused_k": end.int(),
        "batch_index": sequence.int(),
        "left_padding": None if begin is None else torch.minimum(begin, end).int(),
    }
    for name in ("q_descale", "k_descale", "v_descale"):
        if call[name] is not None and call[name].dim() > 1:
            of_query[name] = call[name][sequence]
    return call | of_query | {"causal": False, "window": (-1, -1)}


def local_keys_before(key, world, rank):
    """How many of the rank's keys come before a key of the sequence."""
    return ((key - rank + world - 1) // world).clamp(min=0)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: Any = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Window = (-1, -1),
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor:
    """What flash_attn_varlen_func takes as scheduler_metadata: an empty int32 tensor.

    fa3 plans inside the call, from the shapes alone, and reads the lengths where it computes: there
    is nothing to prepare, and nothing that a CUDA graph would have to bring up to date.
    """
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def compile_flash_attn_varlen_func_from_specs(
    *,
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    v_shape: Sequence[int],
    q_dtype: Any,
    v_stride: Sequence[int] | None = None,
    k_stride: Sequence[int] | None = None,
    cu_seqlens_q_shape: Sequence[int] | None = None,
    cu_seqlens_k_shape: Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] | None = None,
    deterministic: bool = False,
    return_softmax_lse: bool = False,
    num_splits: int = 0,
    fa_version: int = 2,
    seqused_k_shape: Sequence[int] | None = None,
    page_table_shape: Sequence[int] | None = None,
    softcap: float | None = None,
) -> None:
    """Nothing: the kernels of flash_attn_varlen_func are compiled with the library."""
    check_version(fa_version)


def is_fa_version_supported(fa_version: int, device: Any = None) -> bool:
    """Whether callers that choose a version should choose this one: 3."""
    return fa_version_unsupported_reason(fa_version, device) is None


def fa_version_unsupported_reason(fa_version: int, device: Any = None) -> str | None:
    """Why is_fa_version_supported() is False, or None. Devices are judged by the call itself."""
    check_version(fa_version)
    return None if fa_version == 3 else "fa3 is FlashAttention-3: choose version 3"


def check_version(fa_version):
    if fa_version not in VERSIONS:
        raise InvalidArgument(f"fa_version: expected one of {VERSIONS}, got {fa_version!r}")

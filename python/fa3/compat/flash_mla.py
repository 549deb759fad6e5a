# SPDX-License-Identifier: Apache-2.0
"""Drop-in for flash_mla: decoding of multi-head latent attention, and sparse prefill.

LSE is the natural log of the sum of exp(scores), without the sink, and inf for a query that sees no
key, whose output is 0. No gradients, as in the original. Any number of heads to 128, pages of any
size and any number of indices; the original has 64 or 128 heads with indices, pages of 64 without.
On the CPU, and on H100 and H200 with one latent head and rows of 16 bits or 656 bytes; other CUDA
tensors raise fa3.Unsupported (docs/mla.md).
"""

from __future__ import annotations

import dataclasses

import torch

import fa3
from fa3.compat._arguments import float32, int32, rows_of_stride_1

__all__ = [
    "FlashMLASchedMeta",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
]


def __dir__():
    return __all__


@dataclasses.dataclass
class FlashMLASchedMeta:
    """What calls that share it must have in common. fa3 plans inside of each call."""

    @dataclasses.dataclass
    class Config:
        b: int
        s_q: int
        h_q: int
        page_block_size: int
        h_k: int
        causal: bool
        is_fp8_kvcache: bool
        topk: int | None
        extra_page_block_size: int | None
        extra_topk: int | None

    have_initialized: bool = False
    config: object = None  # a Config, of the first call
    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


def get_mla_metadata(*args, **kwargs):
    """(FlashMLASchedMeta(), None), whatever the arguments."""
    return FlashMLASchedMeta(), None


@torch.no_grad()
def flash_mla_with_kvcache(
    q,
    k_cache,
    block_table,
    cache_seqlens,
    head_dim_v,
    tile_scheduler_metadata,
    num_splits=None,
    softmax_scale=None,
    causal=False,
    is_fp8_kvcache=False,
    indices=None,
    attn_sink=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
    out=None,
):
    """Attention of new tokens to a latent cache in pages, or to the rows that indices name.

    Args:
        q: (b, sq, h, d), d of 576 or 512.
        k_cache: (pages, page_size, h_kv, d) of q's type; with is_fp8_kvcache (pages, page_size, 1,
            656 or 584) bytes.
        block_table, cache_seqlens: (b, max_pages) and (b,); not used with indices.
        head_dim_v: 512.
        tile_scheduler_metadata: of get_mla_metadata(); calls with one must be alike, as in the
            original. A tensor is accepted and ignored.
        num_splits: accepted, ignored.
        softmax_scale: None is d**-0.5.
        causal: bottom right; not with indices.
        indices: (b, sq, k), page * page_size + row; others than rows of the cache are skipped.
        attn_sink: (h,) float: one more logit of each head; with indices.
        extra_k_cache, extra_indices_in_kvcache: more keys of the same softmax.
        topk_length, extra_topk_length: (b,): how many indices, from the left, count.
        out: written instead of a new tensor, as vLLM's copy has it.

    Returns:
        out (b, sq, h, 512) in q's type and lse (b, h, sq) float32.
    """
    topk = None if indices is None else indices.shape[-1]
    config = FlashMLASchedMeta.Config(
        *q.shape[:3],
        *k_cache.shape[1:3],
        causal,
        is_fp8_kvcache,
        topk,
        None if extra_k_cache is None else extra_k_cache.shape[1],
        None if extra_indices_in_kvcache is None else extra_indices_in_kvcache.shape[-1],
    )
    check_config(tile_scheduler_metadata, config)
    if head_dim_v != 512:
        raise fa3.InvalidArgument(f"head_dim_v: expected 512, got {head_dim_v!r}")
    q = rows_of_stride_1(q)
    if indices is not None:
        assert not causal, "causal: expected False with indices, got True"
        return fa3.mla.attention(
            q,
            k_cache,
            indices=narrow(indices),
            index_count=narrow(topk_length),
            extra_cache=extra_k_cache,
            extra_indices=narrow(extra_indices_in_kvcache),
            extra_index_count=narrow(extra_topk_length),
            sink=float32(attn_sink),
            scale=softmax_scale,
            lse_with_sink=False,
            empty_lse=torch.inf,
            out=out,
            return_lse=True,
        )
    for name, value in (
        ("attn_sink", attn_sink),
        ("extra_k_cache", extra_k_cache),
        ("extra_indices_in_kvcache", extra_indices_in_kvcache),
        ("topk_length", topk_length),
        ("extra_topk_length", extra_topk_length),
    ):
        assert value is None, f"{name}: expected None without indices"
    assert block_table is not None, "block_table: expected without indices, got None"
    assert cache_seqlens is not None, "cache_seqlens: expected without indices, got None"
    call = {
        "page_table": int32(block_table),
        "seqused_k": int32(cache_seqlens),
        "scale": softmax_scale,
        "causal": causal,
        "out": out,
        "return_lse": True,
    }
    if is_fp8_kvcache or (k_cache.shape[2] == 1 and q.shape[2] <= 128):
        return fa3.mla.attention(q, k_cache, **call, empty_lse=torch.inf)
    out, lse = fa3.attention(q, k_cache, k_cache[..., :head_dim_v], **call)
    return out, lse.masked_fill_(lse == -torch.inf, torch.inf)


def check_config(metadata, config):
    """Raises where a call is unlike the first one with the same metadata."""
    if not isinstance(metadata, FlashMLASchedMeta):
        return
    if not metadata.have_initialized:
        metadata.have_initialized, metadata.config = True, config
        return
    for name, expected in vars(metadata.config).items():
        got = getattr(config, name)
        assert got == expected, (
            f"tile_scheduler_metadata: expected {name} = {expected!r}, that of its first call, got "
            f"{got!r}; get one for this call by get_mla_metadata()"
        )


@torch.no_grad()
def flash_mla_sparse_fwd(
    q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, indexer_topk=0, out=None
):
    """Attention of each query to the rows of kv that its indices name.

    Args:
        q: (sq, h, d), d of 576 or 512.
        kv: (s_kv, 1, d).
        indices: (sq, 1, k); below 0 or >= s_kv: skipped.
        attn_sink: (h,) float: one more logit of each head.
        topk_length: (sq,): how many indices, from the left, count.
        indexer_topk: above 0, a second call adds one more LSE to the result: that of the first
            indexer_topk indices.
        out: written instead of a new tensor, as vLLM's copy has it.

    Returns:
        out (sq, h, 512), max_logits and lse (sq, h) float32; max_logits is -inf without keys. With
        indexer_topk, lse_indexer (sq, h) too.
    """
    if d_v != 512:
        raise fa3.InvalidArgument(f"d_v: expected 512, got {d_v!r}")
    if kv.shape[1] != 1 or indices.shape[1] != 1:
        raise fa3.InvalidArgument(
            f"kv, indices: expected one head in dimension 1, got {kv.shape[1]} and "
            f"{indices.shape[1]}"
        )
    # Queries as sequences of one token: their LSEs lie as the original's do.
    q, cache, indices = (
        rows_of_stride_1(q)[:, None],
        rows_of_stride_1(kv)[None, :, 0],
        narrow(indices),
    )
    call = {
        "rows": "latent",
        "index_count": narrow(topk_length),
        "sink": float32(attn_sink),
        "scale": sm_scale,
        "lse_with_sink": False,
        "empty_lse": torch.inf,
        "return_lse": True,
    }
    into = None if out is None else out[:, None]
    made, lse, largest = fa3.mla.attention(
        q, cache, indices=indices, out=into, return_max=True, **call
    )
    results = made[:, 0] if out is None else out, largest[:, :, 0], lse[:, :, 0]
    if indexer_topk <= 0:
        return results
    _, of_indexer = fa3.mla.attention(q, cache, indices=indices[..., :indexer_topk], **call)
    return *results, of_indexer[:, :, 0]


def narrow(numbers):
    """int32 of indices or counts; what does not fit names no row, as before."""
    return int32(fa3.mla.narrow(numbers))

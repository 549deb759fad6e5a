# SPDX-License-Identifier: Apache-2.0
"""Drop-in for the package ring_flash_attn: its functions, its order, over fa3.distributed.

Partial results merge in float32, unlike there. Rows of every rank must be equally many, as there.
Dropout draws one mask for all ranks. alibi_slopes is refused by name. With return_attn_probs the
functions return (out, lse, None). The functions of packed tensors (_qkvpacked_func,
_kvpacked_func) take what is behind qkv, or q and kv, as the others do. stripe_flash_attn_func,
whose ranks hold every n-th row, is not here: zigzag balances as well, in fewer and longer runs of
rows.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from fa3 import distributed
from fa3.compat._arguments import options as options_of
from fa3.compat._arguments import unsupported
from fa3.compat._signatures import Window, packed_forms, with_probs
from fa3.distributed.describe import group_of
from fa3.errors import InvalidArgument
from fa3.torch import attention

__all__ = [
    "llama3_flash_attn_prepare_cu_seqlens",
    "llama3_flash_attn_varlen_func",
    "ring_flash_attn_func",
    "ring_flash_attn_varlen_func",
    "substitute_hf_flash_attn",
    "update_ring_flash_attn_params",
    "zigzag_ring_flash_attn_func",
    "zigzag_ring_flash_attn_varlen_func",
]


def __dir__():
    return [*__all__, *(name for name in globals() if name.endswith("kvpacked_func"))]


@with_probs
def ring_flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
):
    """(b, s, h, d) on each rank, in the layout "contiguous" -> out (b, s, hq, dv)."""
    tail = softmax_scale, causal, window_size, alibi_slopes, deterministic
    return answer("contiguous", q, k, v, None, dropout_p, *tail, return_attn_probs, group)


@with_probs
def zigzag_ring_flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
):
    """(b, s, h, d) on each rank, in the layout "zigzag" -> out (b, s, hq, dv)."""
    tail = softmax_scale, causal, window_size, alibi_slopes, deterministic
    return answer("zigzag", q, k, v, None, dropout_p, *tail, return_attn_probs, group)


@with_probs
def ring_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
):
    """(s, h, d) on each rank, in the layout "by_document"; cu_seqlens: of this rank's rows."""
    tail = softmax_scale, causal, window_size, alibi_slopes, deterministic
    return answer("by_document", q, k, v, cu_seqlens, dropout_p, *tail, return_attn_probs, group)


@with_probs
def zigzag_ring_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
):
    """(s, h, d) on each rank, in the layout "zigzag"; cu_seqlens: of this rank's rows."""
    tail = softmax_scale, causal, window_size, alibi_slopes, deterministic
    return answer("zigzag", q, k, v, cu_seqlens, dropout_p, *tail, return_attn_probs, group)


def answer(
    layout: str,
    q,
    k,
    v,
    cu_seqlens,
    dropout_p,
    softmax_scale,
    causal,
    window_size,
    alibi_slopes,
    deterministic,
    return_attn_probs,
    group,
):
    refuse(alibi_slopes)
    named = options_of(softmax_scale, causal, window_size, 0.0, deterministic, dropout_p=dropout_p)
    del named["attention_chunk"]
    if cu_seqlens is not None:
        named["cu_seqlens"] = (cu_seqlens.cpu() * dist.get_world_size(group)).tolist()
    out, lse = distributed.attention(
        q, k, v, group=group, method="ring", layout=layout, return_lse=True, **named
    )
    return (out, lse, None) if return_attn_probs else out


def refuse(alibi_slopes):
    unsupported(alibi_slopes=(alibi_slopes, None, "fa3 has no ALiBi over several ranks"))


def llama3_flash_attn_prepare_cu_seqlens(
    cu_seqlens: torch.Tensor, causal: bool, rank: int, world_size: int
) -> tuple[Tensor, Tensor, int, int, slice]:
    """What llama3_flash_attn_varlen_func wants of a rank, from cu_seqlens of the whole stream.

    Returns cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k and local_k_slice: the keys of
    the stream that the rank's rows need, from the first key of its first document on.
    """
    bounds = cu_seqlens.tolist()
    if bounds[-1] % world_size:
        raise InvalidArgument(
            f"cu_seqlens: expected a total that divides by the {world_size} ranks, got {bounds[-1]}"
        )
    rows = bounds[-1] // world_size
    begin, end = rank * rows, (rank + 1) * rows
    inside = [(a, b) for a, b in itertools.pairwise(bounds) if a < end and b > begin]
    first_key = inside[0][0] if inside else begin
    last_key = end if causal or not inside else inside[-1][1]
    ends_q = [min(b, end) - begin for _, b in inside]
    ends_k = [min(b, last_key) - first_key for _, b in inside]

    def cumulative(ends: list[int]) -> tuple[torch.Tensor, int]:
        longest = max((b - a for a, b in zip([0, *ends], ends, strict=False)), default=0)
        return cu_seqlens.new_tensor([0, *ends]), longest

    cu_q, longest_q = cumulative(ends_q)
    cu_k, longest_k = cumulative(ends_k)
    return cu_q, cu_k, longest_q, longest_k, slice(first_key, last_key)


@with_probs
def llama3_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    heads_k_stride: int,
    local_k_slice: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    group: Any = None,
):
    """(s, h, d) on each rank, in the layout "contiguous"; lengths and local_k_slice are those of
    llama3_flash_attn_prepare_cu_seqlens. Keys are gathered heads_k_stride heads at a time."""
    refuse(alibi_slopes)
    named = options_of(softmax_scale, causal, window_size, 0.0, deterministic, dropout_p=dropout_p)
    named |= {
        "cu_seqlens_q": cu_seqlens_q.int(),
        "cu_seqlens_k": cu_seqlens_k.int(),
        "max_seqlen_q": int(max_seqlen_q),
        "max_seqlen_k": int(max_seqlen_k),
    }
    group, queries = group_of(group), q.shape[1] // k.shape[1]
    parts = []
    for head in range(0, k.shape[1], heads_k_stride):
        heads = slice(head, head + heads_k_stride)
        rows = [Gathered.apply(group, x[:, heads])[local_k_slice] for x in (k, v)]
        of_q = q[:, head * queries : (head + heads_k_stride) * queries]
        parts.append(attention(of_q, *rows, return_lse=True, **named))
    out, lse = (torch.cat(x, dim) for x, dim in zip(zip(*parts, strict=True), (1, 0), strict=True))
    return (out, lse, None) if return_attn_probs else out


class Gathered(torch.autograd.Function):
    """Rows of all ranks, equally many of each; their gradients are added up in float32."""

    @staticmethod
    def forward(ctx, group, x):
        ctx.group = group
        whole = x.new_empty((dist.get_world_size(group) * x.shape[0], *x.shape[1:]))
        dist.all_gather(list(whole.chunk(dist.get_world_size(group))), x.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        world = dist.get_world_size(ctx.group)
        parts = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        dist.all_to_all_single(parts, gradient.contiguous(), group=ctx.group)
        total = parts.unflatten(0, (world, gradient.shape[0] // world)).float().sum(0)
        return None, total.to(gradient.dtype)


ring_flash_attn_qkvpacked_func, ring_flash_attn_kvpacked_func = packed_forms(ring_flash_attn_func)
zigzag_ring_flash_attn_qkvpacked_func, zigzag_ring_flash_attn_kvpacked_func = packed_forms(
    zigzag_ring_flash_attn_func
)
ring_flash_attn_varlen_qkvpacked_func, ring_flash_attn_varlen_kvpacked_func = packed_forms(
    ring_flash_attn_varlen_func
)
zigzag_ring_flash_attn_varlen_qkvpacked_func, zigzag_ring_flash_attn_varlen_kvpacked_func = (
    packed_forms(zigzag_ring_flash_attn_varlen_func)
)
llama3_flash_attn_varlen_qkvpacked_func, llama3_flash_attn_varlen_kvpacked_func = packed_forms(
    llama3_flash_attn_varlen_func
)

documents: dict[str, Any] = {}  # of the batch that a model is about to see


def update_ring_flash_attn_params(cu_seqlens: torch.Tensor, process_group: Any) -> None:
    """Says which documents the next batch has, of the whole stream; before each batch."""
    documents.update(cu_seqlens=cu_seqlens.cpu(), group=process_group)


def substitute_hf_flash_attn(process_group: Any, heads_k_stride: int) -> None:
    """Has Transformers' "flash_attention_2", "flash_attention_3" and "fa3" run over the group.

    Models then take the rank's rows of a stream in the layout "contiguous", batch 1, with their
    position_ids, once update_ring_flash_attn_params has said which documents it has; until then
    they run as before. heads_k_stride is not needed: keys of all heads are fetched as they are
    wanted.
    """
    from fa3.compat._ring_transformers import substitute

    documents.clear()
    substitute(process_group, documents)

# SPDX-License-Identifier: Apache-2.0
"""Cutting whole tensors into the ranks' parts, and back: inputs, positions, labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fa3.distributed.describe import group_of
from fa3.distributed.documents import documents
from fa3.distributed.layout import LAYOUTS, Piece, count, pieces, stream_rows
from fa3.distributed.transport.exchange import naming
from fa3.errors import InvalidArgument

if TYPE_CHECKING:
    from fa3.distributed.documents import CuSeqlens


def shard(
    tensor: torch.Tensor,
    *,
    group: Any = None,
    layout: str = "zigzag",
    dim: int = 1,
    cu_seqlens: CuSeqlens | None = None,
) -> torch.Tensor:
    """This rank's rows of a tensor that every rank has whole; differentiable.

    Args:
        tensor: any tensor with the sequence along `dim`; with cu_seqlens, the stream of documents.
        group, layout, cu_seqlens: those of attention().
    """
    rows = tensor.shape[dim]
    lengths = lengths_of(rows, cu_seqlens)
    parts = [tensor.narrow(dim, a, b - a) for a, b in ranges(lengths, layout, group)]
    return torch.cat(parts, dim) if parts else tensor.narrow(dim, 0, 0)


def unshard(
    tensor: torch.Tensor,
    *,
    group: Any = None,
    layout: str = "zigzag",
    dim: int = 1,
    seqlen: int | None = None,
    cu_seqlens: CuSeqlens | None = None,
) -> torch.Tensor:
    """The whole, on every rank, from the ranks' parts. Not differentiable: for results."""
    group = group_of(group)
    world = dist.get_world_size(group)
    lengths = lengths_of(tensor.shape[dim] * world if seqlen is None else seqlen, cu_seqlens)
    held = [pieces_of(lengths, layout, world, rank) for rank in range(world)]
    local = tensor.detach().movedim(dim, 0).contiguous()
    rows = [count(of) for of in held]
    if local.shape[0] != rows[dist.get_rank(group)]:
        raise InvalidArgument(
            f"tensor: expected {rows[dist.get_rank(group)]} rows in dimension {dim}, this rank's "
            f"of {sum(lengths)}, got {local.shape[0]}; pass seqlen=, the rows of the whole"
        )
    padded = local.new_zeros((max(rows), *local.shape[1:]))
    padded[: local.shape[0]] = local
    gathered = [torch.empty_like(padded) for _ in range(world)]
    with naming("the parts of the other ranks"):
        dist.all_gather(gathered, padded, group=group)
    whole = local.new_empty((sum(lengths), *local.shape[1:]))
    for part, of in zip(gathered, held, strict=True):
        begin = 0
        for a, b in stream_rows(of, lengths):
            whole[a:b] = part[begin : begin + b - a]
            begin += b - a
    return whole.movedim(0, dim)


def positions(
    *,
    seqlen: int | None = None,
    cu_seqlens: CuSeqlens | None = None,
    group: Any = None,
    layout: str = "zigzag",
    device: Any = None,
) -> torch.Tensor:
    """(s,) int64: where each of this rank's rows is in its document, for rotary embeddings."""
    lengths = lengths_of(seqlen, cu_seqlens)
    group = group_of(group)
    held = pieces_of(lengths, layout, dist.get_world_size(group), dist.get_rank(group))
    parts = [torch.arange(piece.begin, piece.end, device=device) for piece in held]
    return torch.cat(parts) if parts else torch.arange(0, device=device)


def shard_labels(
    labels: torch.Tensor,
    *,
    group: Any = None,
    layout: str = "zigzag",
    dim: int = 1,
    cu_seqlens: CuSeqlens | None = None,
    ignore_index: int = -100,
) -> torch.Tensor:
    """This rank's labels for predicting the next token: row i gets labels[i + 1] of the whole.

    The last row of each document gets ignore_index. A loss then must not shift them again, and is
    a sum over ranks divided by the number of labels of all.
    """
    lengths = lengths_of(labels.shape[dim], cu_seqlens)
    shifted = labels.roll(-1, dim)
    end = 0
    for length in lengths:
        end += length
        if length:
            shifted.select(dim, end - 1).fill_(ignore_index)
    return shard(shifted, group=group, layout=layout, dim=dim, cu_seqlens=cu_seqlens)


def ranges(lengths: tuple[int, ...], layout: str, group) -> list[tuple[int, int]]:
    group = group_of(group)
    held = pieces_of(lengths, layout, dist.get_world_size(group), dist.get_rank(group))
    return stream_rows(held, lengths)


def pieces_of(lengths: tuple[int, ...], layout: str, world: int, rank: int) -> list[Piece]:
    if layout not in LAYOUTS:
        raise InvalidArgument(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}")
    return pieces(layout, lengths, world, rank)


def lengths_of(rows: int | None, cu_seqlens: CuSeqlens | None) -> tuple[int, ...]:
    if cu_seqlens is None:
        if rows is None:
            raise InvalidArgument("seqlen: expected it, or cu_seqlens, got neither")
        return (rows,)
    return documents(cu_seqlens)

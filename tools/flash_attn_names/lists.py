# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4's lists of tiles: made of the map and the bits that fa3 makes of a mask, and
read as the block mask of a call.

Lists of packed queries lie in a row, those of one sequence behind the other: for each row of tiles
a count, and as many indices as the sequence has tiles of keys.
"""

from typing import NamedTuple

import torch

from flash_attn_names.sequences import Sequences


class BlockSparseTensorsTorch(NamedTuple):
    mask_block_cnt: torch.Tensor
    mask_block_idx: torch.Tensor
    full_block_cnt: torch.Tensor | None = None
    full_block_idx: torch.Tensor | None = None
    cu_total_m_blocks: torch.Tensor | None = None  # where a sequence's counts begin, in a row
    cu_block_idx_offsets: torch.Tensor | None = None  # where its indices begin
    block_size: tuple[int, int] | None = None
    dq_write_order: torch.Tensor | None = None
    dq_write_order_full: torch.Tensor | None = None
    spt: bool | None = None


def compute_block_sparsity(
    tile_m, tile_n, batch_size, num_heads, seqlen_q, seqlen_k, mask_mod, aux_tensors=None,
    device="cuda", aux_scalars=None, cu_total_m_blocks=None, cu_block_idx_offsets=None,
    use_fast_sampling=False, **lengths,
):  # fmt: skip
    sequences = Sequences(batch_size, seqlen_q, seqlen_k, **lengths)
    device = torch.empty(0, device=device).device  # "cuda" has no number, its tensors have
    seen = seen_by(sequences, mask_mod, num_heads, aux_tensors, aux_scalars, device)
    spare = (0, -seqlen_k % tile_n, 0, -seqlen_q % tile_m)
    by_tile = torch.nn.functional.pad(seen, spare).unflatten(-1, (-1, tile_n))
    by_tile = by_tile.unflatten(2, (-1, tile_m)).transpose(3, 4)
    whole, some = by_tile.flatten(-2).all(-1), by_tile.flatten(-2).any(-1)
    found = *lists_of(some & ~whole), *lists_of(whole)
    if cu_total_m_blocks is not None:
        found = in_a_row(found, tiles_of(sequences, tile_m, tile_n))
    return BlockSparseTensorsTorch(
        *found, cu_total_m_blocks, cu_block_idx_offsets, block_size=(tile_m, tile_n)
    )


def seen_by(sequences, mask_mod, heads, aux_tensors, aux_scalars, device):
    """(batch, heads, queries, keys) booleans, False behind a sequence's end: fa3's map, read."""
    from fa3.flex import lists
    from fa3.flex.call import EVERY_KEY
    from fa3.flex.functions import function_of

    batch, queries, keys = sequences[:3]
    hides = function_of(None, sequences.as_python(mask_mod, aux_tensors, aux_scalars))
    extents = lists.Extents(batch, queries, keys)
    (blocks, bits), _ = lists.of_function(*hides, EVERY_KEY, extents, heads, device)
    shifts = torch.arange(32, device=device)
    # Entry n > 0 names bits n - 1; -1 and 0 get a block of ones and of zeros at the end.
    pairs = ((bits[..., None] >> shifts) & 1).reshape(-1, 128, 128).bool()
    ends = torch.stack([torch.zeros_like(pairs[0]), torch.ones_like(pairs[0])])
    number = torch.where(blocks > 0, blocks.long() - 1, len(pairs) - blocks.long())
    tiles = torch.cat([pairs, ends])[number]
    seen = tiles.transpose(-3, -2).flatten(-2).flatten(-3, -2)[..., :queries, :keys]
    rows = counting(sequences.rows("q"), queries, device)[:, :, None]
    columns = counting(sequences.rows("k"), keys, device)[:, None]
    return seen.expand(batch, heads, -1, -1) & (rows & columns)[:, None]


def counting(lengths, most, device):
    """(sequences, most) booleans: whether a row is one of its sequence."""
    return torch.arange(most, device=device) < torch.tensor(lengths, device=device)[:, None]


def lists_of(marks):
    """(counts, indices) of a boolean map's rows."""
    order = marks.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return marks.sum(-1, dtype=torch.int32), order.to(torch.int32)


def tiles_of(sequences, tile_m, tile_n):
    """Numbers of tiles of each sequence, of queries and of keys."""
    rows = zip(sequences.rows("q"), sequences.rows("k"), strict=True)
    return [(-(-queries // tile_m), -(-keys // tile_n)) for queries, keys in rows]


def in_a_row(found, tiles):
    """Counts and indices, of (batch, heads, ...), as (heads, ...) of packed queries."""
    for x in found:
        parts = [
            x[b, :, :m] if x.ndim == 3 else x[b, :, :m, :n].flatten(1)
            for b, (m, n) in enumerate(tiles)
        ]
        yield torch.cat(parts, 1)


def by_sequence(lists, sequences):
    """in_a_row()'s inverse: lists of (batch, heads, ...)."""
    if lists.cu_total_m_blocks is None:
        return lists
    tiles = tiles_of(sequences, *lists.block_size)
    starts = lists.cu_total_m_blocks.tolist()
    if lists.cu_block_idx_offsets is None:
        of_indices = [start * n for start, (_, n) in zip(starts, tiles, strict=False)]
    else:
        of_indices = lists.cu_block_idx_offsets.tolist()
    most = [max(counts) for counts in zip(*tiles, strict=True)]
    made = {}
    for kind in ("mask", "full"):
        counts, indices = getattr(lists, f"{kind}_block_cnt"), getattr(lists, f"{kind}_block_idx")
        heads = counts.shape[0]
        counted = counts.new_zeros(len(tiles), heads, most[0])
        indexed = indices.new_zeros(len(tiles), heads, *most)
        for b, (m, n) in enumerate(tiles):
            counted[b, :, :m] = counts[:, starts[b] :][:, :m]
            own = indices[:, of_indices[b] :][:, : m * n]
            indexed[b, :, :m, :n] = own.unflatten(1, (m, n))
        made |= {f"{kind}_block_cnt": counted, f"{kind}_block_idx": indexed}
    return lists._replace(**made)


def of_key_blocks(lists):
    """Their backward has lists of query blocks; these are of key blocks."""
    found = {}
    for kind in ("mask", "full"):
        counts, indices = getattr(lists, f"{kind}_block_cnt"), getattr(lists, f"{kind}_block_idx")
        listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
        columns = torch.where(listed, indices, indices.shape[-1]).long()
        marks = torch.zeros(*indices.shape[:-1], indices.shape[-1] + 1, device=indices.device)
        marks = marks.scatter_(-1, columns, 1.0)[..., :-1].transpose(-1, -2)
        found[f"{kind}_block_cnt"], found[f"{kind}_block_idx"] = lists_of(marks > 0)
    return lists._replace(**found)


def block_mask_of(lists, mask_mod, sequences):
    """torch's, of lists of key blocks."""
    from torch.nn.attention.flex_attention import BlockMask

    if lists.block_size is None:
        raise NotImplementedError("lists without a block size")
    lists = by_sequence(lists, sequences)
    return BlockMask.from_kv_blocks(
        lists.mask_block_cnt,
        lists.mask_block_idx,
        lists.full_block_cnt,
        lists.full_block_idx,
        BLOCK_SIZE=lists.block_size,
        mask_mod=mask_mod or (lambda b, h, q, k: q >= 0),
        seq_lengths=(sequences.queries, sequences.keys),
    )

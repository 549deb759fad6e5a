# SPDX-License-Identifier: Apache-2.0
"""Masks as data: which queries see which keys, block by block of 128 (docs/masks.md).

A BlockMask says of each block whether it is hidden, full, or seen in part, and has a bit for each
pair of the last. The functions here make one from other forms, of NumPy arrays or of torch tensors
on any device; from_dense and from_block_map of JAX arrays too, also inside jax.jit. On a GPU they
wait for nothing unless asked to be `compact`.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fa3 import _backends, _native
from fa3._arrays import is_torch, library_of, refuse_masked
from fa3.errors import InvalidArgument

__all__ = [
    "BlockMask",
    "as_block_mask",
    "from_block_map",
    "from_dense",
    "from_rule",
    "from_slices",
    "from_torch",
    "from_tree",
    "keep_lists",
]


def __dir__():
    return __all__


BLOCK = 128
WORDS = BLOCK // 32
HIDDEN, FULL = 0, -1
PAIRS_AT_ONCE = 1 << 26  # of queries and keys that are evaluated together


class BlockMask(NamedTuple):
    """A mask for attention(block_mask=).

    blocks: int32 (b | 1, hq | 1, nq, nk), one entry for each block of 128 queries and 128 keys: 0
        hides the block, -1 shows it whole, n > 0 shows the pairs in bits[n - 1]. An extent of 1
        serves all sequences or all heads.
    bits: int32 (n, 128, 4), or None if no block is visible in part. Query i of a block sees its key
        j if bit j % 32 of word j // 32 of row i is set.
    """

    blocks: Any
    bits: Any


def keep_lists(mask: BlockMask, keep: bool = True) -> BlockMask:
    """Sets whether calls on a GPU keep the lists that the library makes of a mask.

    Kept lists are dropped when the mask's tensors are written to or freed (docs/block-masks.md).
    Default: masks made by functions of this module keep their lists, other masks do not.

    Args:
        mask: a BlockMask of torch tensors.
        keep: True promises that torch counts every write to the tensors. False drops the kept lists
            and makes lists in each call.

    Returns:
        mask.

    Raises:
        fa3.InvalidArgument: mask is no BlockMask of torch tensors, or keep is no bool.
    """
    if not isinstance(mask, tuple) or len(mask) != 2:
        raise InvalidArgument(
            f"mask: expected a BlockMask, such as fa3.masks.from_torch makes of torch's, got a "
            f"{type(mask).__name__}"
        )
    if not isinstance(keep, bool):
        raise InvalidArgument(f"keep: expected True or False, got {keep!r}")
    _native.keep_block_lists_of(*mask, keep)
    return mask


def _made(blocks, bits):
    """A BlockMask of arrays that nobody else writes to."""
    mask = BlockMask(blocks, bits)
    if is_torch(blocks) and not sys.modules["torch"].compiler.is_compiling():
        keep_lists(mask)
    return mask


def as_block_mask(mask: Any) -> BlockMask:
    """A BlockMask of what attention(block_mask=) was given: a BlockMask, its pair, or torch's, with
    which stays what is made of it (flex/torch_mask.py)."""
    if mask is None:
        return BlockMask(None, None)
    if isinstance(mask, tuple) and len(mask) == 2:
        return BlockMask(*mask)
    if all(hasattr(mask, name) for name in ("kv_num_blocks", "kv_indices", "mask_mod")):
        _backends.load_flex()
        return _backends.flex.block_mask_of(mask)
    raise InvalidArgument(
        "block_mask: expected fa3.masks.BlockMask, (blocks, bits) or torch's BlockMask, got "
        f"{type(mask).__name__}; fa3.masks.from_dense makes one of booleans (b, h, sq, sk), which "
        "bias= of torch tensors takes as they are; others of fa3.masks take maps, slices and rules"
    )


LENGTHS = (
    *("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"),
    *("page_table", "batch_index", "left_padding"),
)


def refuse_other_extents(mask, q, k, options):
    """Refuses a mask that was made for other extents than a call's, as torch does. options: of the
    call, by name; where sequences have lengths of their own, a mask may have more."""
    if mask is None or len(getattr(q, "shape", ())) < 3 or len(getattr(k, "shape", ())) < 3:
        return  # or what is wrong with them is said elsewhere
    of_own_lengths = any(options.get(name) is not None for name in LENGTHS)
    sequences = q.shape[0] if options.get("cu_seqlens_q") is None else None
    wanted = sequences, q.shape[-2], _longest(q, "q", options), _longest(k, "k", options)
    if hasattr(mask, "seq_lengths"):
        got, unit, advice = (*mask.shape[:2], *mask.seq_lengths), 1, " (torch's: by _adjust)"
    elif isinstance(mask, tuple) and len(getattr(mask[0], "shape", ())) == 4:
        got, unit, advice = (*mask[0].shape,), BLOCK, ""
        wanted = *wanted[:2], *(rows and -(-rows // BLOCK) for rows in wanted[2:])
    else:
        return
    fits = [have == 1 or want in (have, None) for have, want in zip(got[:2], wanted, strict=False)]
    for have, want in zip(got[2:], wanted[2:], strict=True):
        fits.append(want is None or have == want or (of_own_lengths and have > want))
    if not all(fits):
        of = "queries and keys" if unit == 1 else f"blocks of {unit} queries and {unit} keys"
        shape = ", ".join("any" if want is None else str(want) for want in wanted)
        raise InvalidArgument(
            f"block_mask: expected one for (sequences | 1, heads | 1, {of}) of ({shape}), as of q"
            f" and k, got {got}; make a mask of the call's extents{advice}"
        )


def _longest(x, side, options):
    """Rows of a sequence at most; None: nobody says."""
    if options.get(f"cu_seqlens_{side}") is not None:
        return options.get(f"max_seqlen_{side}") or None
    table = options.get("page_table") if side == "k" else None
    return x.shape[1] if table is None else x.shape[1] * table.shape[1]


def from_dense(mask: Any, *, compact: bool = False) -> BlockMask:
    """A BlockMask of a dense boolean mask.

    Args:
        mask: boolean (b | 1, hq | 1, sq, sk), NumPy or torch: True where a query sees a key.
        compact: keep bits only for blocks that are visible in part. This waits for the GPU. False:
            a bit for each pair; a mask that is expanded along sq, so that all queries see the same
            keys, has the bits of one row of blocks.

    Returns:
        A BlockMask of arrays of the same kind, on the mask's device.

    Raises:
        fa3.InvalidArgument: another type or number of dimensions.
    """
    refuse_masked(mask, "mask")
    if mask.ndim != 4 or "bool" not in str(mask.dtype):
        raise InvalidArgument(
            f"mask: expected a boolean (b | 1, hq | 1, sq, sk) array, got {mask.dtype} of "
            f"{tuple(mask.shape)}"
        )
    if mask.shape[2] > BLOCK and _row_step(mask) == 0:
        blocks, bits = from_dense(mask[:, :, :BLOCK], compact=compact)
        return _made(_repeated(blocks, *_counts(mask.shape[2:3], BLOCK)), bits)
    rows = lambda first, end: mask[:, :, first:end]  # noqa: E731
    return _from_rows(rows, mask.shape, _like(mask), compact)


def from_rule(
    rule: Callable[[Any, Any, Any, Any], Any],
    batch: int,
    heads: int,
    seqlen_q: int,
    seqlen_k: int,
    *,
    device: Any = None,
    compact: bool = False,
) -> BlockMask:
    """A BlockMask of a rule(b, h, q, k), True where query q of head h of sequence b sees key k.

    The rule gets int64 arrays that broadcast against each other, and is evaluated once for every
    pair.

    Args:
        rule: a function of four arrays that returns booleans.
        batch, heads: sequences and query heads; 1: all share the mask.
        seqlen_q, seqlen_k: queries and keys of the call.
        device: device of the torch tensors that the rule gets; None gives it NumPy arrays.
        compact: as from_dense's.
    """
    xp = np if device is None else sys.modules["torch"]
    on = {} if device is None else {"device": device}
    shape = (batch, heads, seqlen_q, seqlen_k)
    b, h, _, k = (
        xp.arange(n, **on).reshape([n if axis == i else 1 for axis in range(4)])
        for i, n in enumerate(shape)
    )

    def rows(first, end):
        q = xp.arange(first, end, **on).reshape(1, 1, end - first, 1)
        seen = rule(b, h, q, k)
        refuse_masked(seen, "rule")
        return xp.broadcast_to(seen, (batch, heads, end - first, seqlen_k))

    return _from_rows(rows, shape, on, compact)


def from_block_map(blocks: Any, *, block: int = BLOCK) -> BlockMask:
    """A BlockMask of a boolean map of blocks.

    Args:
        blocks: boolean (b | 1, hq | 1, nq, nk), NumPy or torch: True shows the whole block.
        block: queries and keys of an entry, 128 or 64.

    Raises:
        fa3.InvalidArgument: another block.
    """
    refuse_masked(blocks, "blocks")
    if block == BLOCK:
        return _made(-_int32(blocks), None)
    if block != BLOCK // 2:
        raise InvalidArgument(f"block: expected 64 or 128 queries and keys, got {block}")
    xp = _module_of(blocks)
    fours = _blocks(_padded(blocks, 2), 2)
    fours = fours.reshape(*fours.shape[:4], 4)
    # One set of bits for each of the 16 ways in which four quarters are seen.
    count = lambda first, end: _int32(xp.arange(first, end, **_like(blocks)))  # noqa: E731
    way = _int32((_int32(fours) << count(0, 4)).sum(-1))
    quarter = count(0, BLOCK)[:, None] // block * 2 + count(0, WORDS) * 32 // block
    bits = -(count(1, 15)[:, None, None] >> quarter & 1)
    return _made(way - 16 * _int32(way == 15), bits)


SLICE_TYPES = {"full": 0, "causal": 1, "inverse": 2, "band": 3}


def from_slices(
    q_ranges: Any,
    k_ranges: Any,
    types: str | Sequence[str | int] | Any,
    seqlen_q: int,
    seqlen_k: int,
    *,
    compact: bool = False,
) -> BlockMask:
    """A BlockMask of ranges: query q sees key k if a slice holds both and its type allows it.

    Args:
        q_ranges, k_ranges: integer (n, 2): begin and end (exclusive) of each slice's queries and
            keys.
        types: one for each slice, or one for all: "full" (or 0): every key of the slice; "causal"
            (1): as causal=True within the slice, its last query is level with its last key;
            "inverse" (2): its first query is level with its first key, and a query sees no key
            before its own place; "band" (3): both.
        seqlen_q, seqlen_k: queries and keys of the call.
        compact: as from_dense's.

    Returns:
        A BlockMask with extents of 1 for sequences and heads.
    """
    for name, array in (("q_ranges", q_ranges), ("k_ranges", k_ranges), ("types", types)):
        refuse_masked(array, name)
    torch = sys.modules["torch"] if is_torch(q_ranges) else None
    names: Any = [types] * len(q_ranges) if isinstance(types, str) else types
    if not hasattr(names, "dtype"):
        names = _filled([SLICE_TYPES.get(t, t) for t in names], q_ranges)
    q0, q1, k0, k1 = (r[:, i][:, None] for r in (q_ranges, k_ranges) for i in range(2))
    ends_level = ((names == 1) | (names == 3))[:, None]
    begins_level = ((names == 2) | (names == 3))[:, None]
    on = _like(q_ranges)

    def rows(first, end):
        q = (torch or np).arange(first, end, **on)[None]
        where = torch.where if torch else np.where
        begin = where(begins_level & (q > q0), k0 + q - q0, k0 + 0 * q)
        stop = where(ends_level & (q < q1 - 1), k1 - (q1 - 1 - q), k1 + 0 * q)
        begin, stop = begin.clip(0, seqlen_k), stop.clip(0, seqlen_k)
        some = (q >= q0) & (q < q1) & (stop > begin)
        # How many slices begin at a key, less those that end: their sum counts who sees it.
        shape = (end - first, seqlen_k + 1)
        rows_of = q - first + 0 * begin
        if torch:
            steps = torch.zeros(shape, dtype=torch.int32, **on)
            amount = some.to(torch.int32)
            steps.index_put_((rows_of, begin), amount, accumulate=True)
            steps.index_put_((rows_of, stop), -amount, accumulate=True)
        else:
            steps = np.zeros(shape, np.int32)
            np.add.at(steps, (rows_of, begin), some)
            np.subtract.at(steps, (rows_of, stop), some)
        return (steps.cumsum(-1)[None, None, :, :seqlen_k]) > 0

    return _from_rows(rows, (1, 1, seqlen_q, seqlen_k), on, compact)


def from_tree(tree: Any, seqused_k: Any, longest: int) -> BlockMask:
    """A BlockMask of a tree of drafted tokens (speculative decoding).

    The last t keys of each sequence are its drafted tokens. Every drafted token sees the keys
    before them.

    Args:
        tree: boolean (b | 1, t, t): True if drafted token i sees drafted token j. A token sees
            itself and the drafted tokens before it on its branch.
        seqused_k: integer (b,), as attention(seqused_k=): keys of each sequence, drafted ones
            included.
        longest: number of keys that the mask has blocks for: page table columns times the page
            size, or the rows of an entry of the cache.

    Returns:
        A BlockMask (b, 1, blocks of t queries, blocks of `longest` keys) of arrays like tree. Waits
        for no GPU.
    """
    for name, array in (("tree", tree), ("seqused_k", seqused_k)):
        refuse_masked(array, name)
    xp, on = (sys.modules["torch"], _like(tree)) if is_torch(tree) else (np, {})
    batch, drafted = len(seqused_k), tree.shape[1]
    (rows, blocks), first = _counts((drafted, longest), BLOCK), seqused_k - drafted
    # The block where they begin, and as many more as they may reach into.
    most = (drafted + BLOCK - 2) // BLOCK + 1
    begin = (first // BLOCK).reshape(batch, 1, 1)
    query = xp.arange(rows * BLOCK, **on).reshape(1, -1, 1)
    place = begin * BLOCK + xp.arange(most * BLOCK, **on).reshape(1, 1, -1)
    place = place - first.reshape(batch, 1, 1)  # among the drafted ones
    sequence = xp.arange(batch, **on).reshape(-1, 1, 1) if len(tree) > 1 else 0
    own = tree[sequence, query.clip(0, drafted - 1), place.clip(0, drafted - 1)]
    seen = ((place < 0) | ((place < drafted) & own)) & (query < drafted)
    bits = _packed(_blocks(seen.reshape(batch, 1, rows * BLOCK, most * BLOCK), BLOCK))
    block = xp.arange(blocks, **on).reshape(1, 1, -1) - begin
    numbers = xp.arange(batch * rows, **on).reshape(batch, rows, 1) * most + block + 1
    entries = xp.where(block < 0, FULL, xp.where(block < most, numbers, HIDDEN))
    return _made(_int32(entries)[:, None], bits.reshape(-1, BLOCK, WORDS))


def from_torch(mask: Any, *, compact: bool = True) -> BlockMask:
    """A BlockMask of a torch.nn.attention.flex_attention.BlockMask of any block size.

    Args:
        mask: torch's BlockMask. Its mask_mod is evaluated once.
        compact: evaluate mask_mod only for partial blocks, and keep bits only for those. This waits
            for the GPU. False: evaluate it for every pair, with bits for every block.
    """
    torch = sys.modules["torch"]
    block_q, block_k = mask.BLOCK_SIZE
    seqlen_q, seqlen_k = mask.seq_lengths
    partial = _map_of_lists(mask.kv_num_blocks, mask.kv_indices, seqlen_k, block_k)
    full = torch.zeros_like(partial)
    if mask.full_kv_num_blocks is not None:
        full = _map_of_lists(mask.full_kv_num_blocks, mask.full_kv_indices, seqlen_k, block_k)
    if not compact or (block_q, block_k) != (BLOCK, BLOCK):

        def rule(b, h, q, k):
            at = (b, h, q // block_q, k // block_k)
            return full[at] | (partial[at] & mask.mask_mod(b, h, q, k))

        sizes = (*partial.shape[:2], seqlen_q, seqlen_k)
        return from_rule(rule, *sizes, device=partial.device, compact=compact)
    places = (partial & ~full).nonzero()
    inside = torch.arange(BLOCK, device=partial.device)
    bits = torch.empty((len(places), BLOCK, WORDS), dtype=torch.int32, device=partial.device)
    step = max(PAIRS_AT_ONCE // BLOCK**2, 1)
    for first in range(0, len(places), step):
        b, h, q, k = (n[:, None, None] for n in places[first : first + step].unbind(1))
        q, k = q * BLOCK + inside[:, None], k * BLOCK + inside
        exists = (q < seqlen_q) & (k < seqlen_k)
        # Rows past the end would lead out of what a mask_mod captures.
        seen = mask.mask_mod(b, h, q.clamp(max=seqlen_q - 1), k.clamp(max=seqlen_k - 1))
        bits[first : first + step] = _packed(exists & seen)
    blocks = -full.to(torch.int32)
    blocks[tuple(places.unbind(1))] = torch.arange(
        1, len(places) + 1, dtype=torch.int32, device=partial.device
    )
    return _made(blocks, bits if len(places) else None)


def _map_of_lists(counts, indices, seqlen_k, block_k):
    """Boolean (b, h, nq, nk): which blocks the lists name."""
    torch = sys.modules["torch"]
    named = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    blocks = -(-seqlen_k // block_k)
    # Entries past a count may hold anything: they go to a column of their own.
    columns = torch.where(named, indices, blocks).long()
    found = torch.zeros((*counts.shape, blocks + 1), dtype=torch.bool, device=indices.device)
    return found.scatter_(-1, columns, True)[..., :blocks]


def _from_rows(rows, shape, on, compact):
    """rows(first, end): boolean (b, h, end - first, sk) of these queries."""
    batch, heads, seqlen_q, seqlen_k = shape
    num_q, num_k = _counts((seqlen_q, seqlen_k), BLOCK)
    step = max(PAIRS_AT_ONCE // max(batch * heads * BLOCK * num_k * BLOCK, 1), 1)
    entries, bits = [], []
    for first in range(0, num_q, step):
        end = min((first + step) * BLOCK, seqlen_q)
        seen = _padded(rows(first * BLOCK, end), BLOCK)
        seen = _blocks(seen, BLOCK)
        whole, some = seen.all((-1, -2)), seen.any((-1, -2))
        entries.append(_int32(some) - 2 * _int32(whole))  # 0, 1 or -1
        bits.append(_packed(seen))
    if not entries:
        return _made(_empty((batch, heads, 0, num_k), on), None)
    xp = _module_of(entries[0])
    entries, bits = xp.concatenate(entries, 2), xp.concatenate(bits, 2)
    bits = bits.reshape(-1, BLOCK, WORDS)
    is_partial = (entries == 1).reshape(-1)
    if compact:
        bits = bits[is_partial]
        numbers = is_partial.cumsum(0)
    else:
        numbers = xp.arange(1, len(bits) + 1, **on)
    numbers = _int32(numbers).reshape(entries.shape)
    return _made(xp.where(entries == 1, numbers, entries), bits)


def _module_of(array):
    """torch, jax.numpy or NumPy, of which the array is."""
    if is_torch(array):
        return sys.modules["torch"]
    return sys.modules["jax.numpy"] if library_of(array) in ("jax", "jaxlib") else np


def _row_step(mask):
    """The stride along queries. Arrays of JAX have none: they are row-major."""
    if is_torch(mask):
        return mask.stride(2)
    return mask.strides[2] if isinstance(mask, np.ndarray) else 1


def _repeated(blocks, rows):
    """One row of blocks, for all rows."""
    if is_torch(blocks):
        return blocks.expand(-1, -1, rows, -1).contiguous()
    return np.repeat(blocks, rows, axis=2)


def _counts(rows, block):
    return [-(-n // block) for n in rows]


def _padded(seen, block):
    """With whole blocks of rows and columns; what is added is not seen."""
    rows, columns = (-n % block for n in seen.shape[2:])
    if is_torch(seen):
        return sys.modules["torch"].nn.functional.pad(seen, (0, columns, 0, rows))
    return _module_of(seen).pad(seen, ((0, 0), (0, 0), (0, rows), (0, columns)))


def _blocks(seen, block):
    """(b, h, q, k) as (b, h, nq, nk, block, block)."""
    batch, heads, rows, columns = seen.shape
    apart = seen.reshape(batch, heads, rows // block, block, columns // block, block)
    order = (0, 1, 2, 4, 3, 5)
    return apart.permute(order) if is_torch(seen) else apart.transpose(order)


def _packed(seen):
    """Boolean (..., 128, 128) as bits, int32 (..., 128, 4)."""
    if not is_torch(seen):
        packed = _module_of(seen).packbits(seen, axis=-1, bitorder="little")
        return packed.copy().view("<i4")
    torch = sys.modules["torch"]
    shifts = torch.arange(32, dtype=torch.int32, device=seen.device)
    words = seen.reshape(*seen.shape[:-1], WORDS, 32).to(torch.int32) << shifts
    return words.sum(-1, dtype=torch.int32)


def _int32(array):
    return array.to(sys.modules["torch"].int32) if is_torch(array) else array.astype(np.int32)


def _like(array):
    return {"device": array.device} if is_torch(array) else {}


def _filled(numbers, like):
    """int32 of these numbers, each run of equal ones filled in: a copy from the host would wait."""
    xp = sys.modules["torch"] if is_torch(like) else np
    array = xp.empty(len(numbers), dtype=xp.int32, **_like(like))
    first = 0
    for number, run in itertools.groupby(numbers):
        end = first + len([*run])
        array[first:end] = number
        first = end
    return array


def _empty(shape, on):
    if not on:
        return np.zeros(shape, np.int32)
    return sys.modules["torch"].zeros(shape, dtype=sys.modules["torch"].int32, **on)

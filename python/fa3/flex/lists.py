# SPDX-License-Identifier: Apache-2.0
"""Masks as lists of blocks (docs/masks.md): what a mask hides whole is not computed, and what it
shows whole needs no mask function.

A mask is evaluated for every pair once, by function/interpret.py, and its map is kept for as long
as the function captures the same tensors, unchanged. Next: attention.py, which falls back to the
mask as a part of the score function (block_mask.py) where no engine walks lists.
"""

from typing import NamedTuple

import torch

from fa3 import _native, masks
from fa3.flex import caches
from fa3.flex.call import NO_LENGTHS
from fa3.flex.function.graph import BATCH, HEAD, KEY, QUERY, SCORE
from fa3.flex.function.interpret import evaluate
from fa3.flex.kept import table
from fa3.torch.operators import is_any_autocast_enabled

MOST_PAIRS = 1 << 33  # of a map, a bit each: 1 GiB


class Extents(NamedTuple):
    sequences: int
    rows: int  # queries of the longest sequence
    keys: int


def of_one_length(lengths):
    """Whether all sequences have the length of the tensors."""
    if lengths is NO_LENGTHS:
        return True
    names = "cu_seqlens_q", "seqused_q", "seqused_k"
    return all(lengths[name] is None for name in names) and not caches.given(lengths)


def extents_of_lists(q, k, v, lengths):
    """The Extents of these tensors; None where they have no lists, or a map of the longest sequence
    for each had more pairs than one of all packed rows."""
    cu_seqlens, of_q, of_k, of_v = lengths["cu_seqlens_q"], q.shape, k.shape, v.shape
    packed = cu_seqlens is not None
    if packed != (lengths["cu_seqlens_k"] is not None):
        return None
    if lengths is not NO_LENGTHS and caches.given(lengths):
        return None
    if not len(of_q) == len(of_k) == len(of_v) == (3 if packed else 4):
        return None
    if packed:
        rows, keys = lengths["max_seqlen_q"] or of_q[0], lengths["max_seqlen_k"] or of_k[0]
        extents = Extents(cu_seqlens.shape[0] - 1, rows, keys)
    else:
        extents = Extents(of_q[0], of_q[1], of_k[1])
    pairs = extents.sequences * extents.rows * extents.keys
    if pairs == 0 or (packed and pairs > of_q[0] * of_k[0]):
        return None
    if is_any_autocast_enabled() and torch.is_autocast_enabled(q.device.type):
        return None  # other types than the score function's, which autocast leaves alone
    return extents


def of_function(function, captured, window, extents, heads, device):
    """(the fa3.masks.BlockMask of a traced function that returns its score, or -inf where it hides
    a key; its key for find(), or None). (None, None): it would be too large. window: that of
    sequences which all have these extents."""
    sequences, rows, keys = extents
    batch = sequences if BATCH in function.leaves else 1
    heads = heads if HEAD in function.leaves else 1
    if batch * heads * rows * keys > MOST_PAIRS:
        return None, None
    for tensor in captured:
        if tensor.device != device and tensor.ndim > 0:
            return None, None  # whoever computes it otherwise has the sentence
    shape = batch, heads, rows, keys

    def make():
        tensors = [t.to(device) for t in captured]

        def rule(b, h, query, key):
            score = torch.zeros((), device=device)
            places = {SCORE: score, BATCH: b, HEAD: h, QUERY: query, KEY: key}
            (value,) = evaluate(function.graph, [function.result], places, tensors)
            return (value == 0) & ~window.hides_at(query, key, keys - rows)

        return masks.from_rule(rule, *shape, device=device)

    key = (function, shape, window, device) if function.is_known else None
    return kept(key, captured, device.type == "cuda", make)


def of_booleans(seen, window, rows, keys):
    """The BlockMask of booleans that broadcast to (b, hq, rows, keys), True: a key is seen."""

    def make():
        device, mask = seen.device, seen[(None,) * (4 - seen.ndim)]
        # What is expanded has the lists of one.
        once = (slice(1) if stride == 0 else slice(None) for stride in mask.stride())
        mask = mask[tuple(once)].expand(-1, -1, -1, keys)
        if window.is_open():
            return masks.from_dense(mask.expand(-1, -1, rows, -1))
        query = torch.arange(rows, device=device)[:, None]
        key = torch.arange(keys, device=device)
        return masks.from_dense(mask & ~window.hides_at(query, key, keys - rows))

    # A view of the caller's tensor is another object in every call.
    base = seen if seen._base is None else seen._base
    key = id(base), seen.data_ptr(), seen.shape, seen.stride(), rows, keys, window
    return kept(key, [base], seen.is_cuda, make)[0]


def kept(key, tensors, on_gpu, make):
    """(make(), or what it made for this key while these tensors held the same; the key for find(),
    or None). key: also says which tensors they are; None: it cannot be told whether they hold the
    same.

    A graph that is being captured makes its own: it will be replayed over other numbers.
    """
    if on_gpu and torch.cuda.is_current_stream_capturing():
        return make(), None
    if key is not None and (found := table.find(key)) is not None:
        return found[0], key
    versions = [_native.version_of(tensor) for tensor in tensors]
    if key is None or None in versions:
        return make(), None
    # What is kept may be saved for a backward pass, whatever mode made it.
    with torch.inference_mode(False), torch.no_grad():
        made = make()
    if type(made.blocks) is not torch.Tensor:
        return made, None  # has no elements for a call outside of its mode (FakeTensorMode)
    size = sum(part.nbytes for part in made if part is not None)
    table.keep(key, made, tensors, versions=versions, bytes=size)
    return made, key


def find(key):
    """The BlockMask that is kept by this key; or None."""
    found = table.find(key)
    if found is None:
        return None
    blocks, _ = found
    is_captured = blocks.blocks.is_cuda and torch.cuda.is_current_stream_capturing()
    return None if is_captured else blocks

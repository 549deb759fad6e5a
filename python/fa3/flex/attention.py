# SPDX-License-Identifier: Apache-2.0
"""fa3.flex_attention: a score function of the user's own between the product and the softmax."""

import torch
from torch.autograd.function import once_differentiable

from fa3.errors import InvalidArgument, Unsupported
from fa3.flex import caches, device, lists, prepared, tiles
from fa3.flex.block_mask import block_rule, mask_of
from fa3.flex.call import EVERY_KEY, NO_LATER_KEY, NO_LENGTHS, Window, in_order
from fa3.flex.known_functions import function_of
from fa3.flex.prepared import Prepared, call_of, of_function
from fa3.flex.stored import stored_of
from fa3.masks import BlockMask
from fa3.torch import autograd
from fa3.torch.autograd import FLOAT8
from fa3.torch.checks import (
    refuse_other_than_tensor,
    refuse_without_strides,
    refuse_wrong_numbers,
)

OPEN = None, None


def attend(q, k, v, score_mod, masks, scale, lengths, return_lse=True, walks=True):
    """fa3.flex_attention: (out, lse); lse may be None where it is not asked for.

    masks: mask_mod, block_mask, causal, window. lengths: by name, also where keys are in a cache;
    call.NO_LENGTHS of none. walks: whether masks alone may be lists.
    """
    mask, block_mask, causal, window = masks
    blocks = None
    if block_mask is not None:
        if (
            mask is None
            and isinstance(block_mask, BlockMask)
            and ((window == OPEN and not causal) or not lists.of_one_length(lengths))
        ):
            blocks = block_mask
        if blocks is None or score_mod is not None or not walks:
            mask = mask_of(mask, block_mask)
    of_blocks = None if blocks is None else (*blocks,)
    options = None if lengths is NO_LENGTHS else lengths
    given = q, k, v, score_mod, mask, of_blocks, scale, causal, window, options, walks
    found = prepared.find(prepared.key_of(None, *given))
    if found is None:
        refuse(q, k, v, scale, causal)
        seen = []
        key = prepared.key_of(seen, *given)
        sides = window_of(causal, window)
        found = prepare(q, k, v, score_mod, mask, blocks, scale, sides, lengths, walks)
        prepared.keep(key, found, seen, (scale, causal, *window), lengths)
    way, tensors, maps = found
    try:
        return run(way, q, k, v, tensors, maps or blocks, lengths, return_lse)
    except Unsupported:
        if way.function is not None:
            raise
    # The reason is the engine's; the mask as a function needs none.
    return attend(q, k, v, score_mod, masks, scale, lengths, return_lse, walks=False)


def refuse(q, k, v, scale, causal):
    for name, x in (("q", q), ("k", k), ("v", v)):
        refuse_other_than_tensor(name, x)
    refuse_without_strides(q=q, k=k, v=v)
    refuse_wrong_numbers(scale, causal=causal)


def prepare(q, k, v, score_mod, mask, blocks, scale, window, lengths, walks):
    """(Prepared, captured tensors, the BlockMask of its lists, None if the call brings it).

    mask: a mask_mod. blocks: the mask as a BlockMask.
    """
    if mask is None and blocks is None:
        function, tensors = function_of(score_mod)
        return of_function(function, tensors, q, k, v, window, scale, lengths), tensors, None
    alike = lists.of_one_length(lengths)
    # Where sequences have lengths of their own the window is not in the lists.
    in_lists, beside = (window, EVERY_KEY) if alike else (EVERY_KEY, window)
    extents = lists.extents_to_walk(q, k, v, lengths) if walks else None
    maps = None
    if extents is not None and blocks is None:
        hides = function_of(None, mask)
        maps = lists.of_function(*hides, in_lists, extents, q.shape[-2], q.device)
    has_lists = extents is not None and not (blocks is maps is None)
    of_lists = {"beside": beside, "place": lists.place_of(maps)}
    if has_lists and score_mod is None:
        return Prepared(None, scale, window, **of_lists), [], maps
    mask = block_rule(blocks) if mask is None else mask
    function, tensors = function_of(score_mod, mask)
    if has_lists:
        first = function_of(score_mod)
        if captures_first(first, (function, tensors)):
            of_lists["alone"] = first[0]
            way = of_function(function, tensors, q, k, v, window, scale, lengths, **of_lists)
            return way, tensors, maps
    return of_function(function, tensors, q, k, v, window, scale, lengths), tensors, None


def run(way, q, k, v, tensors, blocks, lengths, return_lse, out=None):
    """(out, lse). tensors: that the function captures. blocks: the lists, where there are any."""
    if way.function is None:
        return by_lists(q, k, v, blocks, way.scale, way.beside, lengths, return_lse)
    call = way.call
    if call is None:
        call = call_of(way, q, blocks, lengths)
    if not way.recorded:
        return forward(call, q, k, v, tensors, return_lse, out)
    if out is not None:
        raise Unsupported("out: expected None where something needs a gradient, or has no memory")
    return Flex.apply(call, q, k, v, *tensors)


def by_lists(q, k, v, blocks, scale, window, lengths, return_lse):
    """(out, lse) where nothing but masks stands between the product and the softmax."""
    options = in_order(scale, window, lengths, blocks)
    results = autograd.attend(q, k, v, None, return_lse, options)
    return results if return_lse else (results, None)


def captures_first(alone, traced):
    """Whether what `alone` captures is what the other function captures first: by form where one of
    them is traced each time, for that may make some anew."""
    (alone, first), (function, tensors) = alone, traced
    if alone.is_known and function.is_known:
        pairs = zip(first, tensors, strict=False)
        return len(first) <= len(tensors) and all(a is b for a, b in pairs)
    forms = [[(t.shape, t.dtype, t.device) for t in given] for given in (first, tensors)]
    return forms[0] == forms[1][: len(forms[0])]


def window_of(causal, window):
    if window == (None, None):
        return NO_LATER_KEY if causal else EVERY_KEY
    left, right = (None if side in (None, -1) else int(side) for side in window)
    for name, side in (("left", left), ("right", right)):
        if side is not None and side < 0:
            raise InvalidArgument(f"window: expected {name} >= 0, -1 or None, got {side}")
    if causal:
        right = 0 if right is None else min(right, 0)
    return Window(left, right)


def check_shapes(q, k, v, lengths):
    cu_seqlens_q, cu_seqlens_k = lengths["cu_seqlens_q"], lengths["cu_seqlens_k"]
    for name, x, packed in (
        ("q", q, cu_seqlens_q is not None),
        ("k", k, cu_seqlens_k is not None),
        ("v", v, cu_seqlens_k is not None),
    ):
        shape = "(total, heads, dim)" if packed else "(b, s, heads, dim)"
        if x.ndim != (3 if packed else 4):
            raise InvalidArgument(f"{name}: expected {shape}, got shape {tuple(x.shape)}")
        if x is not q and x.dtype in FLOAT8 and x.device == q.device:
            continue
        if not x.is_floating_point() or x.dtype.itemsize < 2:
            raise InvalidArgument(f"{name}: expected 16-, 32- or 64-bit floats, got {x.dtype}")
        if x.dtype != q.dtype or x.device != q.device:
            raise InvalidArgument(
                f"{name}: expected {q.dtype} on {q.device} as q, got {x.dtype} on {x.device}"
            )
    if cu_seqlens_q is None and cu_seqlens_k is not None:
        raise InvalidArgument("cu_seqlens_k: expected cu_seqlens_q too")
    if cu_seqlens_k is not None and caches.has_places(lengths):
        raise InvalidArgument("cu_seqlens_k: expected seqused_k for keys in a cache")
    if k.dtype != v.dtype:
        raise InvalidArgument(f"v: expected {k.dtype} as k, got {v.dtype}")
    if k.shape[:-1] != v.shape[:-1] or k.shape[-1] != q.shape[-1]:
        raise InvalidArgument(
            f"k, v: expected (b, sk, hk, {q.shape[-1]}) and (b, sk, hk, dv), got {tuple(k.shape)}"
            f" and {tuple(v.shape)}"
        )
    if q.ndim == k.ndim == 4 and not caches.has_places(lengths) and q.shape[0] != k.shape[0]:
        raise InvalidArgument(f"k: expected batch {q.shape[0]}, got {k.shape[0]}")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise InvalidArgument(
            f"q: expected heads that are a multiple of k's {k.shape[-2]}, got {q.shape[-2]}"
        )


class Flex(torch.autograd.Function):
    """(call, q, k, v, *captured tensors) -> (out, lse)"""

    @staticmethod
    def forward(ctx, call, q, k, v, *tensors):
        tensors = list(tensors)
        out, lse = forward(call, q, k, v, tensors, True)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *tensors)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        saved, tensors = ctx.saved_tensors[:5], list(ctx.saved_tensors[5:])
        do = torch.zeros_like(saved[3]) if do is None else do
        wanted = tuple(n for n, asked in enumerate(ctx.needs_input_grad[4:]) if asked)
        gradients, totals = backward(ctx.call, wanted, saved, tensors, do, dlse)
        of_tensors = (totals[n].to(t.dtype) if n in totals else None for n, t in enumerate(tensors))
        return None, *gradients, *of_tensors


def forward(call, q, k, v, tensors, return_lse, out=None):
    """(out, lse). tensors: captured; those that are moved to q's device are replaced. out: written
    instead of a new one."""
    results = device.forward(call, q, k, v, tensors, return_lse, out)
    if results is not None:
        return results
    check_shapes(q, k, v, call.lengths)
    *before, heads, _ = q.shape
    shape = *before, heads, v.shape[-1]
    if out is None:
        out = q.new_empty(shape)
    elif tuple(out.shape) != shape or out.device != q.device:
        raise InvalidArgument(f"out: expected {shape} on {q.device}, got {tuple(out.shape)}")
    lse = q.new_empty((*before[:-1], heads, before[-1]), dtype=tiles.wide(q.dtype))
    tiles.forward(call, q, k, v, tensors, out, lse)
    return out, lse


def backward(call, wanted, saved, tensors, do, dlse):
    """(dq, dk, dv), and by number the gradients of the captured tensors that are wanted.

    saved: q, k, v, out, lse.
    """
    q, k = saved[:2]

    def zeros(number, dtype):
        return torch.zeros(tensors[number].shape, dtype=dtype, device=q.device)

    stored = stored_of(call, wanted, q, k, tensors) if wanted and q.is_cuda else None
    if stored is not None:
        totals = {n: zeros(n, q.dtype if n == stored else tiles.wide(q.dtype)) for n in wanted}
        gradients = device.backward(call, wanted, saved, tensors, do, dlse, totals, stored)
        if gradients is not None:
            return gradients, totals
    totals = {n: zeros(n, tiles.wide(q.dtype)) for n in wanted}
    gradients = device.backward(call, wanted, saved, tensors, do, dlse, totals)
    if gradients is None:
        gradient = call.function.gradient(wanted)
        gradients = tiles.backward(call, gradient, *saved, tensors, do, dlse, totals)
    return gradients, totals

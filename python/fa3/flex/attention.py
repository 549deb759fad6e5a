# SPDX-License-Identifier: Apache-2.0
"""fa3.flex_attention: a score function of the user's own between the product and the softmax."""

import functools

import torch
from torch.autograd.function import once_differentiable

from fa3 import _native
from fa3.errors import InvalidArgument, Unsupported
from fa3.flex import caches, device, lists, prepared, tiles
from fa3.flex.block_mask import mask_of, parts_of
from fa3.flex.call import EVERY_KEY, NO_LATER_KEY, NO_LENGTHS, Window, in_order
from fa3.flex.known_functions import function_of
from fa3.flex.modes import beside_checkpoints
from fa3.flex.prepared import call_of, of_function, of_masks
from fa3.flex.query import ask, lists_win, with_map
from fa3.masks import BlockMask, refuse_other_extents
from fa3.torch import autograd, operators
from fa3.torch.autograd import FLOAT8
from fa3.torch.checks import (
    refuse_other_than_tensor,
    refuse_transforms,
    refuse_without_strides,
    refuse_wrong_numbers,
)
from fa3.torch.library import needs_gradient, written

OPEN = None, None


def attend(q, k, v, score_mod, masks, scale, lengths, return_lse=True):
    """fa3.flex_attention: (out, lse); lse may be None where it is not asked for.

    masks: mask_mod, block_mask, causal, window. lengths: by name, also where keys are in a cache;
    call.NO_LENGTHS of none.
    """
    mask_mod, block_mask, causal, window = masks
    parts = blocks = None
    if block_mask is not None:
        with beside_checkpoints():
            parts = parts_of(block_mask)
        blocks = lists_of(block_mask, mask_mod, causal, window, lengths)
    # Lists that no function reads are data: those of another mask that is alike serve as well.
    are_data = blocks is not None and score_mod is None
    captured = score_mod, mask_mod, None if are_data else parts
    options = None if lengths is NO_LENGTHS else lengths
    beside = parts if are_data else None, scale, causal, window, options
    seen = []
    key = prepared.key_of(seen, captured, q, k, v, *beside)
    found = prepared.find(key)
    if found is None:
        refuse(q, k, v, scale, causal)
        refuse_other_extents(block_mask, q, k, lengths)
        if blocks is None or score_mod is not None:
            refuse_transforms()
        q, k, v = operators.resolved(q, k, v)
        functions, sides = (score_mod, mask_mod, parts), window_of(causal, window)
        with beside_checkpoints():
            found = prepare(q, k, v, functions, blocks, scale, sides, lengths)
        prepared.keep(key, found, seen, (scale, causal, *window), lengths)
    decision, tensors, maps = found
    return run(decision, q, k, v, tensors, maps or blocks, lengths, return_lse)


def refuse(q, k, v, scale, causal):
    for name, x in (("q", q), ("k", k), ("v", v)):
        refuse_other_than_tensor(name, x)
    refuse_without_strides(q=q, k=k, v=v)
    refuse_wrong_numbers(scale, causal=causal)


def lists_of(block_mask, mask_mod, causal, window, lengths):
    """The block mask, where its lists are those of the call; or None."""
    if mask_mod is not None or not isinstance(block_mask, BlockMask):
        return None
    # The window of sequences of one length is in the lists.
    is_whole = (window == OPEN and not causal) or not lists.of_one_length(lengths)
    return block_mask if is_whole else None


def prepare(q, k, v, functions, blocks, scale, window, lengths):
    """(Prepared, captured tensors, the BlockMask of its lists, None if the call brings it).

    functions: score_mod, mask_mod and parts of a block mask. blocks: all masks as a BlockMask.
    """
    score_mod, *masks = functions
    if masks == [None, None]:
        function, tensors = function_of(score_mod)
        return of_function(function, tensors, q, k, v, window, scale, lengths), tensors, None
    alike = lists.of_one_length(lengths)
    # Where sequences have lengths of their own the window is not in the lists.
    in_lists, beside = (window, EVERY_KEY) if alike else (EVERY_KEY, window)
    whole = functools.cache(lambda: function_of(score_mod, mask_of(*masks)))
    first = None if score_mod is None else function_of(score_mod)
    extents = lists.extents_to_walk(q, k, v, lengths)
    if extents is not None:
        tensors = q, k, v
        options = in_order(scale, beside, lengths), in_order(scale, window, lengths)
        bound = prepared.max_rows(q, k, lengths)
        extents = extents if walks_lists(tensors, first, whole, extents, options, bound) else None
    maps = None
    if extents is not None and blocks is None:
        hides = function_of(None, mask_of(*masks))
        maps = lists.of_function(*hides, in_lists, extents, q.shape[-2], q.device)
    has_lists = extents is not None and not (blocks is maps is None)
    of_lists = {"window_beside_lists": beside, "place": lists.place_of(maps)}
    if has_lists and score_mod is None:
        return of_masks(blocks, q, k, v, window, scale, lengths, **of_lists), [], maps
    function, tensors = whole()
    if has_lists and captures_first(first, (function, tensors)):
        of_lists["score_only"] = first[0]
        decision = of_function(function, tensors, q, k, v, window, scale, lengths, **of_lists)
        return decision, tensors, maps
    return of_function(function, tensors, q, k, v, window, scale, lengths), tensors, None


def walks_lists(tensors, first, whole, extents, options, max_rows):
    """Whether a call walks lists of its masks' blocks.

    tensors: q, k, v. first: the function of scores alone and what it captures, or None; whole():
    the one with the masks. options: of each.
    """
    function, captured = first or (None, ())
    with_lists = with_map(options[0], extents, tensors[0])

    def of_function():
        return ask(_native.forward_query, whole()[0], max_rows, whole()[1], *tensors, options[1])

    given = function, max_rows, captured, *tensors, with_lists
    answer = ask(_native.forward_query, *given)
    if answer.supported and function is None and needs_gradient(*tensors):
        answer = ask(_native.backward_query, *given)
    return lists_win(answer, of_function)


def run(decision, q, k, v, tensors, blocks, lengths, return_lse, out=None):
    """(out, lse). tensors: that the function captures. blocks: the lists, where there are any."""
    call = decision.call or call_of(decision, lengths)
    if call.function is None and device.is_only_compiling():
        return None, None  # nothing is compiled
    if call.function is None:
        return by_lists(q, k, v, blocks, call, decision.recorded, return_lse)
    if not decision.recorded:
        return forward(call, q, k, v, tensors, blocks, return_lse, out)
    if out is not None:
        raise Unsupported("out: expected None where something needs a gradient, or has no memory")
    return Flex.apply((call, blocks), q, k, v, *tensors)


def by_lists(q, k, v, blocks, call, recorded, return_lse):
    """(out, lse) where nothing but masks stands between the product and the softmax."""
    options = call.listed.options_with(blocks)
    if recorded or operators.is_watched():
        results = autograd.attend(q, k, v, None, return_lse, options)
        return results if return_lse else (results, None)
    out = operators.new_out_like(q) if call.is_out_like else operators.new_out(q, v)
    lse = operators.new_lse(q) if return_lse else None
    operators.run_forward(q, k, v, out, lse, options)
    return out, lse


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
        of_lengths = f"cu_seqlens_{'q' if name == 'q' else 'k'}"
        if x.ndim != (3 if packed else 4):
            more = "" if packed or x.ndim != 3 else f"; packed rows come with {of_lengths}"
            raise InvalidArgument(f"{name}: expected {shape}, got shape {tuple(x.shape)}{more}")
        if x is not q and x.dtype in FLOAT8 and x.device == q.device:
            continue
        if not x.is_floating_point() or x.dtype.itemsize < 2:
            raise InvalidArgument(f"{name}: expected 16-, 32- or 64-bit floats, got {x.dtype}")
        if x.dtype != q.dtype or x.device != q.device:
            raise InvalidArgument(
                f"{name}: expected {q.dtype} on {q.device} as q, got {x.dtype} on {x.device}"
            )
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
    """((call, its lists or None), q, k, v, *captured tensors) -> (out, lse)"""

    @staticmethod
    def forward(ctx, call_and_lists, q, k, v, *tensors):
        tensors = list(tensors)
        call, ctx.blocks = call_and_lists
        with beside_checkpoints():
            out, lse = forward(call, q, k, v, tensors, ctx.blocks, True)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *tensors)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        every = ctx.saved_tensors  # once: a checkpoint computes them for one look
        q, k, v, *results = every[:5]
        saved = q, operators.with_own_heads(k), operators.with_own_heads(v), *results
        tensors = list(every[5:])
        do = torch.zeros_like(saved[3]) if do is None else do
        do, dlse = operators.resolved(do, dlse)
        wanted = tuple(n for n, asked in enumerate(ctx.needs_input_grad[4:]) if asked)
        gradients, totals = backward(ctx.call, wanted, saved, tensors, ctx.blocks, do, dlse)
        of_tensors = (totals[n].to(t.dtype) if n in totals else None for n, t in enumerate(tensors))
        return None, *gradients, *of_tensors


def forward(call, q, k, v, tensors, blocks, return_lse, out=None):
    """(out, lse). tensors: captured; those that are moved to q's device are replaced. blocks: the
    lists of call.listed. out: written instead of a new one."""
    results = device.forward(call, q, k, v, tensors, blocks, return_lse, out)
    if results is not None:
        if out is not None:
            written(out)
        return results
    check_shapes(q, k, v, call.lengths)
    *before, heads, _ = q.shape
    shape = *before, heads, v.shape[-1]
    if out is None:
        out = q.new_empty(shape)
    elif tuple(out.shape) != shape or out.device != q.device:
        raise InvalidArgument(f"out: expected {shape} on {q.device}, got {tuple(out.shape)}")
    lse = q.new_empty((*before[:-1], heads, before[-1]), dtype=tiles.wide(q.dtype))
    if not device.is_only_compiling():
        tiles.forward(call, q, k, v, tensors, out, lse)
    return out, lse


def backward(call, wanted, saved, tensors, blocks, do, dlse):
    """(dq, dk, dv), and by number the gradients of the captured tensors that are wanted.

    saved: q, k, v, out, lse. blocks: as of forward().
    """
    q = saved[0]

    def zeros(number, dtype):
        return torch.zeros(tensors[number].shape, dtype=dtype, device=q.device)

    way = device.backward_way(call, wanted, saved, tensors, blocks)
    if way is not None:
        totals = {n: zeros(n, q.dtype if n == way.stored else tiles.wide(q.dtype)) for n in wanted}
        gradients = device.backward(call, way, saved, tensors, do, dlse, totals)
        if gradients is not None:
            return gradients, totals
    totals = {n: zeros(n, tiles.wide(q.dtype)) for n in wanted}
    if device.is_only_compiling():
        return (None, None, None), {}
    gradient = call.function.gradient(wanted)
    return tiles.backward(call, gradient, *saved, tensors, do, dlse, totals), totals

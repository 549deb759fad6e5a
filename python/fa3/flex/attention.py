# SPDX-License-Identifier: Apache-2.0
"""fa3.flex_attention: a score function of the user's own between the product and the softmax."""

import functools
import inspect
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from fa3 import _native
from fa3._options import window_ends
from fa3.errors import InvalidArgument, Unsupported
from fa3.flex import decisions, device, lists
from fa3.flex.block_mask import mask_of, parts_of
from fa3.flex.call import EVERY_KEY, NO_LATER_KEY, NO_LENGTHS, Window, options_of, seeded
from fa3.flex.decisions import Decision, decided
from fa3.flex.functions import function_of
from fa3.flex.modes import beside_checkpoints
from fa3.flex.query import ask, lists_win, with_map
from fa3.masks import BlockMask, refuse_other_extents
from fa3.torch import autograd, operators
from fa3.torch.checks import (
    refuse_other_than_tensor,
    refuse_sharded,
    refuse_transforms,
    refuse_without_strides,
    refuse_wrong_numbers,
)
from fa3.torch.library import needs_gradient

OPEN = None, None


class Found(NamedTuple):
    decision: Decision
    tensors: Any  # that the function captures
    blocks: Any  # the BlockMask of its lists; None: there is none, or the call brings it


def attend(q, k, v, score_mod, masks, scale, lengths, return_lse=True):
    """fa3.flex_attention: (out, lse); lse may be None where it is not asked for.

    masks: mask_mod, block_mask, causal, window. lengths: by name, also where keys are in a cache;
    call.NO_LENGTHS of none.
    """
    mask_mod, block_mask, causal, window = masks
    window = OPEN if window is None else window
    if lengths.get("dropout_p"):
        lengths = seeded(lengths, q)
    parts = blocks = None
    if block_mask is not None:
        with beside_checkpoints():
            parts = parts_of(block_mask)
        blocks = lists_of(block_mask, mask_mod, causal, window, lengths)
    # Lists that no function reads are data: those of another mask that is alike serve as well.
    are_data = blocks is not None and score_mod is None
    captured = score_mod, mask_mod, None if are_data else parts
    options = None if lengths is NO_LENGTHS else lengths
    others = parts if are_data else None, scale, causal, window, options
    seen = []
    key = decisions.key_of(seen, captured, q, k, v, *others)
    found = decisions.find(key)
    if found is None:
        refuse(q, k, v, scale, causal, score_mod=score_mod, mask_mod=mask_mod)
        refuse_other_extents(block_mask, q, k, lengths)
        if key is None:  # transforms, DTensors and lazily negated views have no signature
            if blocks is None or score_mod is not None:
                refuse_transforms()
            refuse_sharded(q, k, v)
            q, k, v = operators.resolved(q, k, v)
        functions, sides = (score_mod, mask_mod, parts), window_of(causal, window)
        with beside_checkpoints():
            found = decide(q, k, v, functions, blocks, scale, sides, lengths)
        listed = found.decision.listed
        # A map that is not kept is for this call alone.
        if key is not None and (found.blocks is None or listed.map_key is not None):
            given = found.decision, found.tensors, seen, (scale, causal, *window), lengths
            decisions.keep(key, *given)
    decision, tensors, maps = found
    return run(decision, q, k, v, tensors, maps or blocks, lengths, return_lse)


ARGUMENTS = {"score_mod": "score, b, h, q_idx, kv_idx", "mask_mod": "b, h, q_idx, kv_idx"}


def refuse(q, k, v, scale, causal, **functions):
    for name, x in (("q", q), ("k", k), ("v", v)):
        refuse_other_than_tensor(name, x)
    refuse_without_strides(q=q, k=k, v=v)
    refuse_wrong_numbers(scale, causal=causal)
    for name, given in functions.items():
        if given is None:
            continue
        try:
            inspect.signature(given).bind(*ARGUMENTS[name].split(", "))
        except TypeError:
            got = repr(given) if callable(given) else type(given).__name__
            expected = f"{name}: expected a function ({ARGUMENTS[name]})"
            raise InvalidArgument(f"{expected}, got {got}") from None
        except ValueError:  # without a signature
            continue


def lists_of(block_mask, mask_mod, causal, window, lengths):
    """The block mask, where its lists are those of the call; or None."""
    if mask_mod is not None or not isinstance(block_mask, BlockMask):
        return None
    # The window of sequences of one length is in the lists.
    is_whole = (window == OPEN and not causal) or not lists.of_one_length(lengths)
    return block_mask if is_whole else None


def decide(q, k, v, functions, blocks, scale, window, lengths):
    """The Found of a call.

    functions: score_mod, mask_mod and parts of a block mask. blocks: all masks as a BlockMask.
    """
    score_mod, *masks = functions
    if masks == [None, None]:
        function, tensors = function_of(score_mod)
        return Found(decided(function, tensors, q, k, v, window, scale, lengths), tensors, None)
    have_one_length = lists.of_one_length(lengths)
    # Where sequences have lengths of their own the window is not in the lists.
    in_lists, beside_lists = (window, EVERY_KEY) if have_one_length else (EVERY_KEY, window)
    with_masks = functools.cache(lambda: function_of(score_mod, mask_of(*masks)))
    score_only = None if score_mod is None else function_of(score_mod)
    extents = lists.extents_of_lists(q, k, v, lengths)
    if extents is not None:
        tensors = q, k, v
        windows = options_of(scale, beside_lists, lengths), options_of(scale, window, lengths)
        bound = decisions.max_rows(q, k, lengths)
        given = tensors, score_only, with_masks, extents, windows, bound
        extents = extents if takes_lists(*given) else None
    maps = map_key = None
    if extents is not None and blocks is None:
        hides = function_of(None, mask_of(*masks))
        maps, map_key = lists.of_function(*hides, in_lists, extents, q.shape[-2], q.device)
    has_lists = extents is not None and not (blocks is maps is None)
    listed = decisions.Listed(score_only and score_only[0], beside_lists, map_key)
    if has_lists and score_mod is None:
        given = None, [], q, k, v, window, scale, lengths, blocks or ()
        return Found(decided(*given, listed=listed), [], maps)
    function, tensors = with_masks()
    given = function, tensors, q, k, v, window, scale, lengths
    if has_lists and captures_first(score_only, (function, tensors)):
        return Found(decided(*given, listed=listed), tensors, maps)
    return Found(decided(*given), tensors, None)


def takes_lists(tensors, score_only, with_masks, extents, options, max_rows):
    """Whether a kernel walks lists of the masks' blocks.

    tensors: q, k, v. score_only: the function of scores and what it captures, or None;
    with_masks(): the one with the masks. options: of a call of each.
    """
    function, captured = score_only or (None, ())
    beside_lists, beside_none = options

    def answer_without_lists():
        function, captured = with_masks()
        given = function, max_rows, captured, *tensors, beside_none.given()
        return ask(_native.forward_query, *given)

    given = function, max_rows, captured, *tensors, with_map(beside_lists, extents, tensors[0])
    answer = ask(_native.forward_query, *given)
    if answer.supported and function is None and needs_gradient(*tensors):
        answer = ask(_native.backward_query, *given)
    return lists_win(answer, answer_without_lists)


def run(decision, q, k, v, tensors, blocks, lengths, return_lse, out=None):
    """(out, lse). decision: a Decision. tensors: that the function captures. blocks: the lists,
    where there are any."""
    call = decision if lengths is NO_LENGTHS else decision.of_lengths(lengths)
    if call.function is None and device.mode.only_compiles:
        return None, None  # nothing is compiled
    if call.function is None:
        return by_lists(q, k, v, blocks, call, return_lse)
    if not call.recorded:
        return device.forward(call, q, k, v, tensors, blocks, return_lse, out)
    if out is not None:
        raise Unsupported("out: expected None where something needs a gradient, or has no memory")
    return Flex.apply((call, blocks), q, k, v, *tensors)


def by_lists(q, k, v, blocks, call, return_lse):
    """(out, lse) where nothing but masks stands between the product and the softmax."""
    options = call.listed.options_with(blocks)
    if call.recorded or operators.is_watched():
        results = autograd.attend(q, k, v, None, return_lse, options)
        return results if return_lse else (results, None)
    out = operators.new_out_quickly(q, v)
    lse = operators.new_lse(q) if return_lse else None
    operators.run_forward(q, k, v, out, lse, options)
    return out, lse


def captures_first(score_only, with_masks):
    """Whether what a function captures is what the other one captures first: by form where one of
    them is traced each time, for that may make some anew. Both: the function and its tensors."""
    (one, first), (function, tensors) = score_only, with_masks
    if one.is_known and function.is_known:
        pairs = zip(first, tensors, strict=False)
        return len(first) <= len(tensors) and all(a is b for a, b in pairs)
    forms = [[(t.shape, t.dtype, t.device) for t in given] for given in (first, tensors)]
    return forms[0] == forms[1][: len(forms[0])]


def window_of(causal, window):
    if window is None or (type(window) is tuple and window == (None, None)):
        return NO_LATER_KEY if causal else EVERY_KEY
    sides = [side.item() if hasattr(side, "item") else side for side in window_ends(window)]
    for at, side in enumerate(sides):
        if not hasattr(side, "__index__"):
            raise TypeError(f"window[{at}]: expected an integer, got {side!r}")
        if side < -1:
            raise InvalidArgument(f"window[{at}]: expected -1, None or keys >= 0, got {side}")
    left, right = (None if side == -1 else side for side in sides)
    if causal:
        right = 0 if right is None else min(right, 0)
    return Window(left, right)


class Flex(torch.autograd.Function):
    """((Decision, its lists or None), q, k, v, *captured tensors) -> (out, lse)"""

    @staticmethod
    def forward(ctx, call_and_lists, q, k, v, *tensors):
        tensors = list(tensors)
        call, ctx.blocks = call_and_lists
        with beside_checkpoints():
            out, lse = device.forward(call, q, k, v, tensors, ctx.blocks, True)
        # Saved as q is, so that torch notices a seed or lengths that change before the backward.
        lengths = call.lengths
        plain = lengths is NO_LENGTHS
        ctx.named = [] if plain else [n for n, x in lengths.items() if isinstance(x, torch.Tensor)]
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *map(lengths.get, ctx.named), *tensors)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        every = ctx.saved_tensors  # once: a checkpoint computes them for one look
        end, call = 5 + len(ctx.named), ctx.call
        if ctx.named:
            named = dict(zip(ctx.named, every[5:end], strict=True))
            call = call.of_lengths(call.lengths | named)
        q, k, v, *results = every[:5]
        saved = q, operators.with_own_heads(k), operators.with_own_heads(v), *results
        tensors = list(every[end:])
        do = torch.zeros_like(saved[3]) if do is None else do
        do, dlse = operators.resolved(do, dlse)
        wanted = tuple(n for n, asked in enumerate(ctx.needs_input_grad[4:]) if asked)
        gradients, totals = device.backward(call, wanted, saved, tensors, ctx.blocks, do, dlse)
        of_tensors = (totals[n].to(t.dtype) if n in totals else None for n, t in enumerate(tensors))
        return None, *gradients, *of_tensors

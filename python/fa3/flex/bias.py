# SPDX-License-Identifier: Apache-2.0
"""Additive bias, ALiBi and boolean masks as score functions, traced once for each form they take.

So attention with a bias is flex_attention of a function that is written here. ALiBi: Press et al.,
arXiv 2108.12409, aligned bottom-right as flash_attn has it.
"""

import functools
from typing import NamedTuple

import torch

from fa3._arrays import refuse_negated
from fa3._options import OF_FORWARD, instead_of
from fa3.errors import InvalidArgument, Unsupported
from fa3.flex import caches, decisions, lists
from fa3.flex.attention import run, takes_lists, window_of
from fa3.flex.call import EVERY_KEY, NO_LENGTHS, check_shapes, options_of, seeded
from fa3.flex.decisions import Listed, decided
from fa3.flex.function.trace import trace
from fa3.flex.kept import table
from fa3.flex.modes import beside_checkpoints
from fa3.flex.stored import number_of
from fa3.torch import operators
from fa3.torch.checks import (
    refuse_other_than_tensor,
    refuse_sharded,
    refuse_transforms,
    refuse_without_strides,
    refuse_wrong_numbers,
)
from fa3.torch.library import refuse_gradients

# Options of fa3.attention that go together with a bias.
TOGETHER = {
    *("causal", "window", "softcap", "scale", "deterministic", "num_threads", "engine"),
    *("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "max_seqlen_q", "max_seqlen_k"),
    *("dropout_p", "dropout_seed"),
    *caches.NAMES,
}
FLOATS = torch.float32, torch.bfloat16, torch.float16, torch.float64
FEW_QUERIES = 8  # whose number may be a part of the text
OPTIONS = {**NO_LENGTHS, "deterministic": False}  # those of a call of the kernels
NUMBERS_ALONE = {"causal", "window", "softcap", "scale", "num_threads"}  # say nothing of lengths
BROADCAST = "(b | 1, hq | 1, sq | 1, sk | 1)"


class Form(NamedTuple):
    """What the text of a function depends on. It asks for every sequence's and head's element: what
    has one for all is clamped to that, so that one kernel serves them."""

    bias: tuple | None  # whether it has more than one row, and more than one key
    slopes: int | None  # dimensions of ALiBi's, (batch, head) or (head,)
    shift: bool  # of the diagonal; or it is 0
    shift_offset: int  # subtracted from the captured shift
    one_sided: bool  # no key behind the diagonal is seen
    softcap: float
    types: tuple  # of the tensors


class Captured(NamedTuple):
    """What a function captures of a call like this one, and how."""

    bias: tuple | None  # arguments of viewed()
    shift: str | None  # the option that it is; "": shift_of() makes it; None: there is none
    lists: tuple | None  # of booleans that are lists: arguments of lists.of_booleans()
    lengths: tuple  # names of the options that say which rows there are, or how


def attend(q, k, v, bias, alibi_slopes, out, return_lse, options, only_kernels=False):
    """fa3.attention of torch tensors with bias or alibi_slopes. options: by name.

    only_kernels: raises fa3.Unsupported where the forward would take torch operations.
    """
    may_list = out is None
    if options.get("dropout_p"):
        options = seeded(options, q)
    if out is not None:
        refuse_other_than_tensor("out", out)
        refuse_negated(out, "out")
        refuse_gradients("since it is written in place", out=out)
    equal_rows = not NUMBERS_ALONE.issuperset(options) and have_equal_rows(options)
    others = bias, alibi_slopes, options, only_kernels, may_list, equal_rows, "bias"
    key = decisions.key_of(None, (), q, k, v, *others)
    found = table.find(key)
    if found is not None:
        decision, _ = found
    else:
        if key is None:  # transforms, DTensors and lazily negated views have no signature
            refuse_transforms()
            refuse_sharded(q, k, v, bias, alibi_slopes)
            q, k, v, bias, alibi_slopes = operators.resolved(q, k, v, bias, alibi_slopes)
        with beside_checkpoints():
            decision = decide(q, k, v, bias, alibi_slopes, options, only_kernels, may_list)
        # A switch of torch's may refuse deterministic calls.
        if key is not None and not options.get("deterministic"):
            decisions.keep(key, decision, [], [], (), options)
    how = decision.bias
    lengths = lengths_named(how.lengths, options) if how.lengths else NO_LENGTHS
    if how.lists is not None:
        with beside_checkpoints():
            blocks = lists.of_booleans(bias, *how.lists)
        results = run(decision, q, k, v, [], blocks, lengths, return_lse)
    else:
        tensors = captured(how, q, k, bias, alibi_slopes, lengths)
        results = run(decision, q, k, v, tensors, None, lengths, return_lse, out)
    return results if return_lse else results[0]


def captured(how, q, k, bias, alibi_slopes, lengths):
    """The tensors that the function captures. how: a Captured."""
    tensors = [] if bias is None else [viewed(bias, *how.bias)]
    if alibi_slopes is not None:
        tensors.append(alibi_slopes)
    if how.shift is not None:
        tensors.append(lengths[how.shift] if how.shift else shift_of(q, k, lengths)[0])
    return tensors


def decide(q, k, v, bias, alibi_slopes, options, only_kernels, may_list):
    """The Decision about a call."""
    scale, softcap, causal = options.get("scale"), options.get("softcap"), options.get("causal")
    refuse_wrong_numbers(scale, softcap, causal)
    named = () if NUMBERS_ALONE.issuperset(options) else names_of_lengths(options)
    lengths = lengths_named(named, options) if named else NO_LENGTHS
    window = window_of(causal, options.get("window"))
    softcap = float(softcap or 0.0)
    full, view = extents(q, k, v, lengths), None
    if bias is not None:
        view = view_of(bias, q, full)
        bias = viewed(bias, *view)
    if alibi_slopes is not None:
        check_slopes(alibi_slopes, q, lengths)
    only_hides = bias is not None and bias.dtype == torch.bool and alibi_slopes is None
    if only_hides and may_list and not softcap and has_lists(q, k, v, bias, window, scale, lengths):
        how = Captured(view, None, (window, q.shape[1], k.shape[1]), named)
        given = None, [], q, k, v, window, scale, lengths
        return decided(*given, listed=Listed(None, EVERY_KEY), bias=how)
    shift, less = (None, 0) if alibi_slopes is None else shift_of(q, k, lengths)
    one_sided = window.right is not None and window.right <= 0
    function, tensors = function_with(bias, alibi_slopes, shift, one_sided, softcap, less)
    if lengths.get("deterministic") and q.is_cuda:
        refuse_any_order(function, tensors, q, k, lengths)
    name = None
    if shift is not None:
        name = "seqused_k" if shift is lengths["seqused_k"] else ""
    how = Captured(view, name, None, named)
    given = function, tensors, q, k, v, window, scale, lengths
    return decided(*given, only_kernels=only_kernels, bias=how)


def names_of_lengths(options):
    """The given ones of the options that say which rows there are, or how they are computed.
    Refuses options that do not go together with a bias."""
    for name, value in options.items():
        if name not in OF_FORWARD:
            message = f"attention() got an unexpected keyword argument {name!r}"
            raise TypeError(message + instead_of(name, OF_FORWARD))
        if name not in TOGETHER and (isinstance(value, torch.Tensor) or value):
            raise Unsupported(f"{name}: not together with bias or alibi_slopes")
    if options.get("engine", "auto") not in ("auto", None):
        raise Unsupported("engine: expected none together with bias or alibi_slopes")
    given = [name for name in OPTIONS if options.get(name) is not None]
    dropout = ("dropout_p", "dropout_seed") if options.get("dropout_p") else ()
    return (*given, *dropout, *caches.given(options))


def lengths_named(names, options):
    return OPTIONS | {name: options[name] for name in names}


def has_lists(q, k, v, bias, window, scale, lengths):
    """Whether a boolean bias becomes lists."""
    extents = lists.extents_of_lists(q, k, v, lengths) if lists.of_one_length(lengths) else None
    if extents is None:
        return False
    options = options_of(scale, EVERY_KEY, lengths), options_of(scale, window, lengths)
    max_rows = decisions.max_rows(q, k, lengths)

    def with_masks():
        return function_with(bias, None, None)

    return takes_lists((q, k, v), None, with_masks, extents, options, max_rows)


def refuse_any_order(function, tensors, q, k, lengths):
    """On a GPU float32 sums by atomic additions are not repeatable; what is stored is."""
    learn = tuple(n for n, t in enumerate(tensors) if t.requires_grad)
    if not learn or torch.are_deterministic_algorithms_enabled():
        return
    if learn != (number_of(function, tensors, learn, q, k, lengths),):
        raise Unsupported(
            "deterministic: the gradients of bias and alibi_slopes are repeatable on a GPU under"
            " torch.use_deterministic_algorithms(True), or where a bias of 16 bits has an element"
            " for each score"
        )


def function_with(bias, slopes, shift, one_sided=False, softcap=0.0, shift_offset=0):
    """The traced function, and what it captures. bias: four dimensions; slopes: (b | 1, h | 1), or
    (h,); shift: (b | 1,)."""
    given = bias, slopes, shift
    tensors = [t for t in given if t is not None]
    bias = bias if bias is None else (bias.shape[2] > 1, bias.shape[3] > 1)
    slopes = slopes if slopes is None else slopes.ndim
    types = (*[t.dtype for t in tensors],)
    form = Form(bias, slopes, shift is not None, shift_offset, one_sided, softcap, types)
    found = table.find(form)
    if found is not None:
        return found[0], tensors
    function = traced(form)
    table.keep(form, function)
    return function, tensors


def traced(form):
    """The function of a form, of tensors that stand for any."""
    of_type = iter(form.types)

    def stand_in(rank):
        return torch.zeros([2] * rank, dtype=next(of_type), device="cpu")

    bias = None if form.bias is None else stand_in(4)
    slopes = None if form.slopes is None else stand_in(form.slopes)
    shift = stand_in(1) if form.shift else None
    function, tensors = trace(functools.partial(score_of, form, bias, slopes, shift))
    given = [t for t in (bias, slopes, shift) if t is not None]
    assert [id(t) for t in tensors] == [id(t) for t in given]
    function.clamps = True  # what has one element for all (Form)
    # A bias may be -inf anywhere.
    function.may_hide = form.bias is not None
    return function


def score_of(form, bias, slopes, shift, score, b, h, q_idx, kv_idx):
    is_mask = bias is not None and bias.dtype == torch.bool  # False hides a key
    if form.softcap:
        score = form.softcap * torch.tanh(score / form.softcap)
    added = None
    if bias is not None:
        has_rows, has_keys = form.bias
        added = bias[b, h, q_idx if has_rows else 0, kv_idx if has_keys else 0]
    if added is not None and not is_mask:
        score = score + added
    if slopes is not None:
        slope = slopes[(b, h)[-form.slopes :]]
        distance = kv_idx - q_idx
        if shift is not None:
            distance = distance - shift[b] + form.shift_offset
        score = score + slope * (distance if form.one_sided else -distance.abs())
    return torch.where(added, score, -float("inf")) if is_mask else score


def shift_of(q, k, lengths):
    """(tensor, number): keys less queries of each sequence are the tensor, int32 and on q's device,
    less the number. The tensor is None where all are 0."""
    if lengths is NO_LENGTHS and q.shape[1] == k.shape[1]:
        return None, 0
    if have_equal_rows(lengths) and lengths.get("left_padding") is None:
        return None, 0
    queries, keys = (rows_of(x, side, lengths) for x, side in ((q, "q"), (k, "k")))
    padding = lengths.get("left_padding")
    if padding is not None:
        keys = keys - padding
    if isinstance(queries, int):
        if isinstance(keys, int):
            if queries == keys:
                return None, 0
            return torch.full((1,), keys - queries, dtype=torch.int32, device=q.device), 0
        # A step of decoding is to launch nothing for that.
        if queries <= FEW_QUERIES and keys.device == q.device and keys.dtype == torch.int32:
            return keys, queries
    return (keys - queries).to(device=q.device, dtype=torch.int32), 0


def have_equal_rows(options):
    """Whether one tensor says of queries and keys how many a sequence has."""
    cu, used = options.get("cu_seqlens_q"), options.get("seqused_q")
    if options.get("cu_seqlens_k") is not cu or options.get("seqused_k") is not used:
        return False
    return cu is not None or used is not None


def rows_of(x, side, lengths):
    """Of each sequence: a tensor, or an int where all have as many."""
    cu, used = lengths[f"cu_seqlens_{side}"], lengths[f"seqused_{side}"]
    if used is not None:
        return used
    if cu is not None:
        return cu.diff()
    return x.shape[1] if side == "q" else caches.most_keys(x, lengths)


def extents(q, k, v, lengths):
    """(batch, query heads, queries, keys): what a bias broadcasts to. None: any extent."""
    cu_q, cu_k = lengths["cu_seqlens_q"], lengths["cu_seqlens_k"]
    if (q.ndim, k.ndim) != (4 if cu_q is None else 3, 4 if cu_k is None else 3):
        check_shapes(q, k, v, lengths)
    keys = k.shape[1] if cu_k is None else None
    if lengths.get("page_table") is not None:
        keys = caches.most_keys(k, lengths)
    if cu_q is None:
        return q.shape[0], q.shape[2], q.shape[1], keys
    return cu_q.shape[0] - 1, q.shape[1], None, keys


def viewed(tensor, missing, slices=None, batch=None):
    for _ in range(missing):
        tensor = tensor.unsqueeze(0)
    if slices is not None:
        tensor = tensor[slices]
    return tensor if batch is None else tensor.expand(batch, -1, -1, -1)


def view_of(bias, q, full):
    """What makes it a view of four dimensions, of which what is broadcast has the extent 1: missing
    dimensions, slices, and the batch, see batch_of(). Raises for one that does not broadcast to
    `full`."""
    if not isinstance(bias, torch.Tensor):
        raise InvalidArgument(f"bias: expected a tensor {BROADCAST} of floats, got {bias!r}")
    if bias.is_nested or bias.layout != torch.strided:
        refuse_without_strides(bias=bias)
    if bias.device != q.device:
        raise of_other_device("bias", bias, q)
    dtype, missing = bias.dtype, 4 - bias.ndim
    is_number = dtype == torch.bool or (dtype.is_floating_point and dtype.itemsize >= 2)
    if not is_number or missing < 0:
        raise InvalidArgument(
            f"bias: expected a tensor {BROADCAST} of floats, or booleans that are True where a"
            f" query sees a key; got {dtype} of {tuple(bias.shape)}"
        )
    got = (*[1] * missing, *bias.shape)
    for extent, most in zip(got, full, strict=True):
        if extent != 1 and extent != most and (most is not None or extent == 0):
            expected = tuple("any" if m is None else m for m in full)
            raise InvalidArgument(
                f"bias: expected {BROADCAST}, which broadcasts to {expected}, got {got}"
            )
    slices, strides = None, bias.stride()
    if 0 in strides:
        once = [slice(1) if stride == 0 else slice(None) for stride in strides]
        slices = (*[slice(None)] * missing, *once)
    learns = bias.requires_grad and q.is_cuda
    return missing, slices, batch_of(viewed(bias, missing, slices), full[0]) if learns else None


def batch_of(bias, batch):
    """The batch to which one bias for all is expanded, where the kernels may store a gradient for
    each (stored.py) and torch adds them up: less than adding in memory, for as many bytes as
    float32 sums of two take, or a gibibyte. None: it is not."""
    is_shared = bias.shape[0] == 1 < batch and min(bias.shape[1:]) > 1
    few = batch <= 2 or batch * bias.numel() * bias.dtype.itemsize <= 2**30
    return batch if is_shared and few else None


def check_slopes(slopes, q, lengths):
    cu_seqlens = lengths["cu_seqlens_q"]
    batch = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    heads = q.shape[-2]
    is_tensor = isinstance(slopes, torch.Tensor)
    if is_tensor:
        refuse_without_strides(alibi_slopes=slopes)
    shape = slopes.shape if is_tensor else None
    if shape not in ((heads,), (batch, heads), (1, heads)):
        got = tuple(shape) if is_tensor else repr(slopes)
        raise InvalidArgument(
            f"alibi_slopes: expected floats of shape ({heads},) or ({batch}, {heads}), got {got}"
        )
    dtype = slopes.dtype
    if dtype not in FLOATS:
        raise InvalidArgument(f"alibi_slopes: expected floats, got {dtype}")
    if slopes.device != q.device:
        raise of_other_device("alibi_slopes", slopes, q)


def of_other_device(name, tensor, q):
    return InvalidArgument(f"{name}: expected memory on {q.device} as q, got {tensor.device}")

# SPDX-License-Identifier: Apache-2.0
"""Executes a schedule: both passes of one rank, communication beside the calls.

A stage's keys are on their way while the stage before is computed. Partial outputs merge in
float32; gradients of keys go back in float32 and are added in a fixed order. Tensors are
(b, s, h, d); packed ones have b = 1. Next: transport/keys.py, merged.py.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from fa3 import _native
from fa3._options import in_order
from fa3.distributed.cover import Call
from fa3.distributed.merged import Apart, Merged, Total
from fa3.distributed.schedule import Schedule, Stage
from fa3.distributed.transport.exchange import Ring
from fa3.distributed.transport.keys import Keys, Posted, Returned, add_at_once, add_to, with_last
from fa3.distributed.transport.peer_keys import PeerKeys, Written
from fa3.errors import Unsupported
from fa3.torch.operators import new_rows, run_backward, run_forward


class Plan(NamedTuple):
    schedule: Schedule
    ring: Ring
    options: dict[str, Any]  # of every call: scale, softcap, deterministic, ...
    first_head: int = 0  # of this rank's query heads in the whole's

    def stages(self) -> list[Stage]:
        return [self.schedule.stage(self.ring.rank, i) for i in range(self.schedule.num_stages)]


def keys_of(plan: Plan, index: int, k, v) -> Keys | PeerKeys:
    kind = Keys if plan.ring.peers is None else PeerKeys
    return kind(plan.schedule, plan.ring, index, k, v)


def returned_of(plan: Plan, index: int, dk, dv, part_type) -> Returned:
    kind = Posted if plan.ring.peers is None else Written
    return kind(plan.schedule, plan.ring, index, dk, dv, part_type)


def forward(plan: Plan, q, k, v, sink):
    """out, in q's type, and the LSE (b, h, s) of this rank's rows."""
    stages = plan.stages()
    calls = [call for stage in stages for call in stage.calls]
    if plan.schedule.is_apart or (len(calls) == 1 and calls[0].rows == (0, q.shape[1])):
        return forward_apart(plan, q, k, v, sink)
    # A row has one sink, which the first call takes if it has all rows.
    sink_at_once = len(calls) > 0 and calls[0].rows == (0, q.shape[1])
    merged = Merged(q, v, calls[-1] if calls and (sink is None or sink_at_once) else None)
    for stage, here in each_stage(plan, k, v):
        for call in stage.calls:
            own = sink if sink_at_once and call is calls[0] else None
            attend(plan, call, q, *here, *merged.places(call), own)
    return merged.result(None if sink_at_once else sink)


def forward_apart(plan: Plan, q, k, v, sink):
    """One call has all keys of a row, so its result is final."""
    batch, rows, heads, _ = q.shape
    out = new_rows((batch, rows, heads, v.shape[-1]), q.dtype, q.device)
    lse = q.new_empty((batch, heads, rows), dtype=torch.float32)
    for stage, here in each_stage(plan, k, v):
        for call in stage.calls:
            rows = slice(*call.rows)
            attend(plan, call, q, *here, (out[:, rows], lse[..., rows]), None, sink)
    return out, lse


def each_stage(plan: Plan, k, v) -> Iterator[tuple[Stage, tuple[torch.Tensor, torch.Tensor]]]:
    """The stages with their keys and values, the next ones on their way."""
    stages = plan.stages()
    keys = keys_of(plan, 0, k, v)
    for index, stage in enumerate(stages):
        here = keys.wait()
        if index + 1 < len(stages):
            keys = keys_of(plan, index + 1, k, v)
        yield stage, here


def backward(plan: Plan, do, q, k, v, out, lse, dlse):
    """dq, dk and dv in the types of q, k and v."""
    if plan.schedule.is_apart:
        return backward_apart(plan, do, q, k, v, out, lse, dlse)
    narrow = part_type(q)
    row = sum(x[:, :1].numel() * x.element_size() for x in (k, v))
    held = plan.schedule.held_back(plan.ring.rank, row)
    several = held is not None or sum(len(stage.calls) for stage in plan.stages()) > 1
    dq, dk, dv = Total(q, torch.float32 if several else narrow), Total(k), Total(v)
    returned = None
    for index, (stage, here) in enumerate(each_stage(plan, k, v)):
        of_keys = totals_of_keys(plan, stage, here, narrow)
        for call in stage.calls if index or held is None else held[:1]:
            add_gradients(plan, call, (do, q, *here, out, lse, dlse), (dq, *of_keys))
        if returned is not None:
            add_to(returned, dk, dv)
        dk_here, dv_here = (total.tensor() for total in of_keys)
        returned = returned_of(plan, index, dk_here, dv_here, narrow)
    # While the last gradients of keys are on their way:
    if held is not None:
        add_gradients(plan, held[1], (do, q, k, v, out, lse, dlse), (dq, dk, dv))
    final = dq.result()
    assert returned is not None
    return final, *with_last(returned, dk, dv)


def totals_of_keys(plan: Plan, stage: Stage, here, narrow: torch.dtype) -> list[Total]:
    """Sums of the gradients of a stage's keys; `narrow` where one call makes them for others."""
    own = all(fetch.source == plan.ring.rank for fetch in stage.fetches)
    kind = narrow if len(stage.calls) == 1 and not own else torch.float32
    return [Total(x, kind) for x in here]


def backward_apart(plan: Plan, do, q, k, v, out, lse, dlse):
    """Backward where each row is in one call; calls of whole documents write final gradients."""
    narrow = part_type(q)
    dq, dk, dv = (torch.empty(x.shape, dtype=narrow, device=x.device) for x in (q, k, v))
    stages = each_stage(plan, k, v)
    whole, own = next(stages)
    written = slice(0, 0)
    for call in whole.calls:  # one, or none
        written = slice(*call.keys)
        totals = [Apart(q, dq[:, slice(*call.rows)])]
        totals += [Apart(x, dx[:, written]) for x, dx in zip(own, (dk, dv), strict=True)]
        add_gradients(plan, call, (do, q, *own, out, lse, dlse), totals)
    for dx in (dk, dv):
        dx[:, : written.start].zero_()
        dx[:, written.stop :].zero_()

    cut, here = next(stages)
    of_keys = totals_of_keys(plan, cut, here, narrow)
    wide = len(cut.calls) > 1  # so are the gradients of keys, and a call has one type of all
    for call in cut.calls:
        rows = dq[:, slice(*call.rows)]
        of_call = rows.float() if wide else rows
        inputs = do, q, *here, out, lse, dlse
        add_gradients(plan, call, inputs, (Apart(q, of_call), *of_keys))
        if wide:
            rows.copy_(of_call)
    dk_here, dv_here = (total.tensor() for total in of_keys)
    add_at_once(returned_of(plan, 1, dk_here, dv_here, narrow), dk, dv)
    return tuple(x.to(like.dtype) for x, like in ((dq, q), (dk, k), (dv, v)))


def options_of(plan: Plan, call: Call, device, **more) -> list:
    window: dict[str, Any] = {"window": call.window, "window_shift": call.shift}
    if call.window == (-1, 0) and call.shift == 0:
        window = {"causal": True}
    if call.cu_rows:
        for name, cu in (("q", call.cu_rows), ("k", call.cu_keys)):
            window[f"cu_seqlens_{name}"] = on_device(cu, device)
            window[f"max_seqlen_{name}"] = longest(cu)
    if plan.options["dropout_p"]:
        document, query, key = call.origin
        more["dropout_origin"] = document, plan.first_head, query, key
    return in_order("attention", {**plan.options, **window, **more})


@functools.lru_cache(maxsize=1024)
def on_device(cu: tuple[int, ...], device) -> torch.Tensor:
    """Copied once: a copy to a GPU waits."""
    return torch.tensor(cu, dtype=torch.int32, device=device)


def longest(cu: tuple[int, ...]) -> int:
    return max(b - a for a, b in itertools.pairwise(cu))


def cut(call: Call, *tensors):
    """Tensors of rows as the call takes them: (b, s, h, d), or (s, h, d) with several sequences."""
    return [x[0] if call.cu_rows else x for x in tensors]


def attend(plan: Plan, call: Call, q, k, v, result, partial, sink) -> None:
    """Writes the result, out and lse, of the call's rows; it goes on from the partial one."""
    q, k, v = q[:, slice(*call.rows)], k[:, slice(*call.keys)], v[:, slice(*call.keys)]
    q, k, v, out, lse = cut(call, q, k, v, *result)
    if partial is not None:
        partial = cut(call, *partial)
    run_forward(q, k, v, out, lse, options_of(plan, call, q.device, sink=sink), partial)


def part_type(q: torch.Tensor) -> torch.dtype:
    """The type in which gradients of keys travel to another rank after one call. On CPUs float32,
    so that only the sum is rounded; between GPUs bytes count."""
    return torch.float32 if q.is_cpu else q.dtype


def add_gradients(plan: Plan, call: Call, inputs, totals) -> None:
    """Adds the call's share to the gradients of q, k and v."""
    do, q, k, v, out, lse, dlse = inputs
    rows, keys = slice(*call.rows), slice(*call.keys)
    do, q, k, v = do[:, rows], q[:, rows], k[:, keys], v[:, keys]
    out, lse = out[:, rows], lse[..., rows].contiguous()
    # A call of one key takes its weights for 1, so no gradient, unless the LSE has one: here the
    # key is one of several.
    dlse = torch.zeros_like(lse) if dlse is None else dlse[..., rows].contiguous()
    options = options_of(plan, call, q.device)
    places = call.rows, call.keys, call.keys
    do, q, k, v, out, lse, dlse = cut(call, do, q, k, v, out, lse, dlse)
    if writes_float32(q.device, q.dtype, q.shape[-1], v.shape[-1], has_other_p(plan.options)):
        found = [total.place(at) for total, at in zip(totals, places, strict=True)]
        gradients = *cut(call, *(part for part, _ in found)), None
        adds = found[0][1], found[1][1]
        run_backward(do, q, k, v, out, lse, dlse, gradients, options, adds)
        return
    shapes = [total.like[:, slice(*at)].shape for total, at in zip(totals, places, strict=True)]
    parts = [torch.empty(shape, dtype=part_type(q), device=q.device) for shape in shapes]
    gradients = *cut(call, *parts), None
    run_backward(do, q, k, v, out, lse, dlse, gradients, options)
    for total, at, part in zip(totals, places, parts, strict=True):
        total.add(at, part)


def has_other_p(options) -> bool:
    return bool(options.get("softcap") or options["dropout_p"])


@functools.lru_cache(maxsize=64)
def writes_float32(device, dtype, dim: int, dim_v: int, other_p: bool) -> bool:
    """Whether the library writes gradients in float32 there, and adds to them."""
    q, v = (torch.empty(1, 8, 1, d, dtype=dtype, device=device) for d in (dim, dim_v))
    lse = torch.empty(1, 1, 8, device=device)
    gradients = q.float(), q.float(), v.float()
    options = in_order("attention", {"softcap": 1.0} if other_p else {})
    try:
        _native.backward_workspace(v, q, q, v, v, lse, lse, *gradients, None, *options)
    except Unsupported:
        return False
    return True

# SPDX-License-Identifier: Apache-2.0
"""Both passes over a group of ranks, the same by one process, and how far they may be apart."""

import contextlib
import itertools

import error_model
import numpy as np
import oracle
import torch
import torch.distributed as dist

import fa3
from fa3 import distributed
from fa3.distributed import schedule
from fa3.distributed.layout import pieces, stream_rows


def methods(world):
    teams = [n for n in range(2, world) if world % n == 0]
    return [
        ("ring", None),
        ("all_gather", None),
        ("ulysses", None),
        ("auto", None),
        *(("hybrid", n) for n in teams),
        *([("growing", None)] if world > 2 else []),
    ]


def inputs(rows, world, dtype=torch.float32, batch=None):
    """q, k, v and do of the whole, and a sink. Key heads divide by the ranks."""
    made = torch.Generator().manual_seed(rows)
    shape = (rows,) if batch is None else (batch, rows)
    q, k, v, do = (
        torch.randn((*shape, heads, dim), generator=made).to(dtype)
        for heads, dim in ((2 * world, 16), (world, 16), (world, 8), (2 * world, 8))
    )
    return q, k, v, do, torch.randn(2 * world, generator=made)


def rows_in(lengths):
    return lengths if isinstance(lengths, int) else sum(lengths)


def inputs_of(lengths, world):
    """Inputs of packed documents, or of two batch entries."""
    return inputs(rows_in(lengths), world, batch=2 if isinstance(lengths, int) else None)


def rows_of(layout, lengths):
    each = (lengths,) if isinstance(lengths, int) else lengths
    held = pieces(layout, each, dist.get_world_size(), dist.get_rank())
    return [row for a, b in stream_rows(held, each) for row in range(a, b)]


def documents(lengths):
    """cu_seqlens, for packed tensors; seqlen for others."""
    if isinstance(lengths, int):
        return {"seqlen": lengths}
    return {"cu_seqlens": list(itertools.accumulate(lengths, initial=0))}


def both_passes(tensors, lengths, layout, with_lse=False, **options):
    """out, lse, dq, dk, dv and dsink of this rank's rows; dsink summed over all."""
    q, k, v, do, sink = tensors
    rows = rows_of(layout, lengths)
    leaves = [x[..., rows, :, :].clone().requires_grad_() for x in (q, k, v)]
    if sink is not None:
        leaves.append(sink.clone().requires_grad_())
        options["sink"] = leaves[-1]
    if options.get("method") == "growing":
        options |= {"method": "ring", "stages": (1, dist.get_world_size() - 1)}
    out, lse = distributed.attention(
        *leaves[:3], layout=layout, return_lse=True, **documents(lengths), **options
    )
    loss = (out * do[..., rows, :, :]).sum() + (lse.sin().sum() if with_lse else 0)
    gradients = list(torch.autograd.grad(loss, leaves))
    if sink is not None:
        dist.all_reduce(gradients[-1])
    return [out.detach(), lse.detach(), *gradients]


def at_once(tensors, lengths, with_lse=False, **options):
    """The passes by one process, over the whole."""
    q, k, v, do, sink = tensors
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    if sink is not None:
        leaves.append(sink.clone().requires_grad_())
        options["sink"] = leaves[-1]
    if not isinstance(lengths, int):
        cu = torch.tensor(documents(lengths)["cu_seqlens"], dtype=torch.int32)
        options |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    out, lse = fa3.attention(*leaves[:3], return_lse=True, **options)
    loss = (out * do).sum() + (lse.sin().sum() if with_lse else 0)
    return [out.detach(), lse.detach(), *torch.autograd.grad(loss, leaves)]


def cut(results, lengths, layout):
    """This rank's rows of results of the whole; dsink as it is."""
    rows = rows_of(layout, lengths)
    out, lse, dq, dk, dv, *dsink = results
    tensors = [x[..., rows, :, :] for x in (out, dq, dk, dv)]
    return [tensors[0], lse[..., rows], *tensors[1:], *dsink]


def bounds_of(tensors, lengths, dtype="float32", **options):
    """The oracle's results and how far rounding may move them, in the order of at_once()."""
    q, k, v, do, sink = (None if x is None else x.double().numpy() for x in tensors)
    if isinstance(lengths, int):
        parts = [(q, k, v, do)]
    else:
        bounds = list(itertools.accumulate(lengths, initial=0))
        parts = [tuple(x[None, a:b] for x in (q, k, v, do)) for a, b in itertools.pairwise(bounds)]
    score_dtype = error_model.score_dtype_of("cpu", dtype)
    values, limits = [], []
    for part in parts:
        o, lse = oracle.forward(*part[:3], sink=sink, **options)
        gradients = oracle.backward(*part, sink=sink, **options)
        values.append((o, lse, *gradients))
        limit = error_model.bounds(
            *part, dtype=dtype, score_dtype=score_dtype, sink=sink, **options
        )
        limits.append(tuple(limit))
    if isinstance(lengths, int):
        return values[0], limits[0]
    return tuple(map(joined, zip(*values, strict=True))), tuple(
        map(joined, zip(*limits, strict=True))
    )


def joined(parts):
    if parts[0] is None:
        return None
    if parts[0].ndim == 1:
        return sum(parts)
    axis = 1 if parts[0].ndim == 4 else 2
    return np.concatenate(parts, axis)[0]


def within(got, expected, limits, what):
    for name, x, y, limit in zip(
        "out lse dq dk dv dsink".split(), got, expected, limits, strict=False
    ):
        x = x.double().numpy()
        off = np.abs(x - y)
        wrong = ~((off <= limit) | (x == y))
        assert not wrong.any(), f"{what}: {name} is off by {off[wrong].max()}, {limit[wrong].max()}"


@contextlib.contextmanager
def holding_back(is_on):
    """Own rows wait until the last gradients are on their way, however few these are."""
    before = schedule.WORTH_HIDING, schedule.HALF_STEP
    if is_on:
        schedule.WORTH_HIDING, schedule.HALF_STEP = 0, 1
    try:
        yield
    finally:
        schedule.WORTH_HIDING, schedule.HALF_STEP = before

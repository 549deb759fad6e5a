# SPDX-License-Identifier: Apache-2.0
"""fa3.distributed.attention: exact attention over a sequence that several ranks share.

describe.py checks the arguments and makes the plan; here it meets autograd. The heads are traded
first where the method has teams (heads.py), then a schedule runs over what is left (run.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fa3.distributed import heads, run
from fa3.distributed.agree import agree_backward
from fa3.distributed.describe import Described, describe
from fa3.torch.autograd import to_autocast_type
from fa3.torch.operators import resolved


class Attention(torch.autograd.Function):
    """(plan, q, k, v, sink) -> (out, lse) of (b, s, h, d) tensors, the rank's rows."""

    @staticmethod
    def forward(ctx, plan, q, k, v, sink):
        try:
            out, lse = run.forward(plan, q, k, v, sink)
        finally:
            plan.ring.finish()
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, sink)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, out, lse, sink = ctx.saved_tensors
        do = torch.zeros_like(out) if do is None else do
        do, dlse = resolved(do, dlse)
        plan = ctx.plan
        if torch.are_deterministic_algorithms_enabled():
            plan = plan._replace(options=plan.options | {"deterministic": True})
        try:
            dq, dk, dv = run.backward(plan, do, q, k, v, out, lse, dlse)
        finally:
            plan.ring.finish()
        return None, dq, dk, dv, gradient_of_sink(do, out, lse, dlse, sink)


class Agreed(torch.autograd.Function):
    """The tensors as they are; ranks go backward through them together, or all raise."""

    @staticmethod
    def forward(ctx, group, number, *tensors):
        ctx.group, ctx.number = group, number
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx, *gradients):
        agree_backward(ctx.group, ctx.number)
        return None, None, *gradients


def gradient_of_sink(do, out, lse, dlse, sink):
    """This rank's rows' share: a column of P whose value is 0."""
    if sink is None:
        return None
    delta = (do.float() * out.float()).sum(-1).transpose(1, 2)
    weight = torch.where(lse == sink[:, None], 1.0, (sink[:, None] - lse).exp())
    weight = weight.where(lse != -torch.inf, 0.0)
    return (weight * (-delta if dlse is None else dlse - delta)).sum((0, 2)).to(sink.dtype)


@torch.compiler.disable
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any = None,
    method: str = "auto",
    layout: str = "zigzag",
    ulysses_degree: int | None = None,
    stages: Sequence[int] | None = None,
    causal: bool = False,
    window: Sequence[int | None] | None = None,
    softcap: float = 0.0,
    scale: float | None = None,
    sink: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    seqlen: int | None = None,
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    generator: torch.Generator | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    num_threads: int = 0,
    return_lse: bool = False,
) -> Any:
    """Exact attention over a sequence that is cut over the ranks of a group; differentiable.

    Each rank calls it with its rows of q, k and v, and gets its rows of the result. shard() cuts
    tensors, positions() says where a rank's rows are.

    Args:
        q: (b, s, hq, d), this rank's rows; packed, with cu_seqlens, (s, hq, d). Under autocast q, k
            and v become the autocast type.
        k, v: (b, s, hk, d | dv), or packed: the same rows. hq % hk == 0.
        group: a process group, or a mesh of one dimension; None is all ranks. Its rank r holds
            part r. CPU tensors want a backend such as gloo, CUDA tensors NCCL.
        method: "ring": keys come from one rank after the other, the next on the way while these are
            multiplied. "all_gather": a rank first gets all keys that its rows see. "ulysses": ranks
            trade rows for heads. "hybrid": teams of ulysses_degree neighbours trade heads, the ring
            goes over the teams. "auto": what plan() expects to be fastest. Results differ by
            rounding alone.
        layout: "zigzag": each document is cut in two parts a rank, and rank r has the r-th from
            both ends, which balances causal masks; "contiguous": rank r has the r-th part of all;
            "by_document": rank r has the r-th part of each document; "balanced": documents are one
            rank's where rows and work can be balanced so, else cut as by zigzag, for packed ones.
        ulysses_degree: ranks of a team, for "hybrid"; divides the ranks and hk. None chooses.
        stages: of how many ranks the keys of each stage of a "ring" or "hybrid" are, the own ones
            first: (1, 3) computes with its own keys while those of three others arrive, and then
            with these. None is (1, 1, 1, 1): fewer stages merge less, more hide more.
        causal, window, softcap, scale: those of fa3.attention, of the whole sequence; the window
            includes the query's own position.
        sink: (hq,) float32, the same on every rank. Its gradient is this rank's share: add it up
            over the group, as that of any parameter that all ranks have.
        gate: as that of fa3.attention, this rank's rows. It multiplies the merged result, which is
            rounded before and after.
        seqlen: rows of the whole sequence, needed where they do not divide by the parts.
        cu_seqlens: cumulative lengths of the whole stream's documents, from 0, the same on every
            rank. In host memory: the schedule follows from them.
        dropout_p, dropout_seed, generator: those of fa3.attention. The mask is that of the whole on
            one device, whatever the method. The seed is the same on every rank; None: the first
            rank's, drawn from its generator. Parts begin at multiples of 64 rows of their document.
        deterministic: gradients repeat bit by bit. The forward pass always does.
        sm_margin, num_threads: those of fa3.attention.
        return_lse: also return the LSE, (b, hq, s) or (hq, s), differentiable.

    Returns:
        out (b, s, hq, dv) in q's dtype, or packed; or (out, lse). Partial results merge in float32,
        and out is rounded once.

    Raises:
        fa3.InvalidArgument: a call is wrong, or ranks disagree: the same sentence on every rank.
        fa3.Unsupported: what fa3.attention refuses, and dropout where parts begin anywhere.
        fa3.CommunicationError: a rank has ended, or is later than the group's timeout.
    """
    q, k, v, sink = resolved(*as_autocast_wants(q, k, v), sink)
    call = describe(
        q,
        k,
        v,
        group=group,
        method=method,
        layout=layout,
        ulysses_degree=ulysses_degree,
        stages=stages,
        causal=causal,
        window=window,
        sink=sink,
        gate=gate,
        seqlen=seqlen,
        cu_seqlens=cu_seqlens,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        generator=generator,
        options={
            "softcap": softcap,
            "scale": scale,
            "deterministic": deterministic,
            "sm_margin": sm_margin,
            "num_threads": num_threads,
        },
    )
    out, lse = over_teams(call, q, k, v, sink)
    if gate is not None:
        factors = gate if gate.ndim == out.ndim else gate[..., None]
        out = (out.float() * factors.float().sigmoid()).to(out.dtype)
    return (out, lse) if return_lse else out


def as_autocast_wants(*tensors):
    if not all(isinstance(x, torch.Tensor) and x.device.type in ("cpu", "cuda") for x in tensors):
        return tensors  # to be refused
    return to_autocast_type(*tensors)


def over_teams(call: Described, q, k, v, sink):
    packed, team = q.ndim == 3, call.team
    if packed:
        q, k, v = q[None], k[None], v[None]
    if team is not None:
        q, k, v = (heads.ToHeads.apply(team, x) for x in (q, k, v))
        sink = None if sink is None else sink.chunk(team.size)[team.place]
    out, lse = Attention.apply(call.plan, q, k, v, sink)
    if team is not None:
        out = heads.ToRows.apply(team, out)
        lse = heads.ToRows.apply(team, lse.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)
    out, lse = Agreed.apply(call.plan.ring.group, call.number, out, lse)
    return (out[0], lse[0]) if packed else (out, lse)

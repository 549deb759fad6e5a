# SPDX-License-Identifier: Apache-2.0
"""fa3.distributed.plan: what a call would do and why, in words."""

import torch.distributed as dist

from fa3.distributed import choose
from fa3.distributed.describe import facts_of, group_of, plan_of, refuse_wrong_tensors
from fa3.distributed.run import Plan

DEFAULTS = {
    "method": "auto",
    "layout": "zigzag",
    "ulysses_degree": None,
    "stages": None,
    "causal": False,
    "window": None,
    "sink": None,
    "seqlen": None,
    "cu_seqlens": None,
    "dropout_p": 0.0,
    "dropout_seed": None,
}
OF_CALLS = {"softcap": 0.0, "scale": None, "deterministic": False}


def plan(q, k, v, *, group=None, **arguments) -> str:
    """The plan of attention(q, k, v, ...) on this rank, and what each method is expected to take.

    Takes attention()'s arguments. Computes and sends nothing; the times are a model's, of one H200
    a rank and NVLink (of a slow CPU for tensors of the CPU), and choose between methods.
    """
    group = group_of(group)
    refuse_wrong_tensors(q, k, v)
    given = {**DEFAULTS, **{x: arguments[x] for x in DEFAULTS if x in arguments}}
    given["options"] = {**OF_CALLS, **{x: arguments[x] for x in OF_CALLS if x in arguments}}
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    facts = facts_of(q, k, v, world, rank, given)
    described = plan_of(group, rank, world, tuple(facts.items()))
    lines = [choose.explain(choose.Question.of(facts, world))]
    if described.team is not None:
        lines.append(f"teams of {described.team.size} ranks trade rows for heads")
    return "\n".join([*lines, *stages_of(described.plan)])


def stages_of(of: Plan) -> list[str]:
    lines = []
    for index, stage in enumerate(of.stages()):
        others = [f for f in stage.fetches if f.source != of.ring.rank]
        keys = sum(b - a for fetch in others for a, b in fetch.rows)
        sources = ", ".join(str(fetch.source) for fetch in others)
        fetched = f"{keys} keys of rank {sources}" if others else "own keys"
        calls = "; ".join(said(call) for call in stage.calls) or "nothing to compute"
        lines.append(f"stage {index}: {fetched}: {calls}")
    return lines


def said(call) -> str:
    of = f", {len(call.cu_rows) - 1} sequences" if call.cu_rows else ""
    mask = "" if call.window == (-1, -1) else f", window {call.window} shifted by {call.shift}"
    rows, keys = (f"{a}:{b}" for a, b in (call.rows, call.keys))
    return f"rows {rows} by keys {keys}{mask}{of}"

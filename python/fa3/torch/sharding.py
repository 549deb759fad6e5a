# SPDX-License-Identifier: Apache-2.0
"""How torch.ops.fa3.{forward, forward_max_logit, backward} are cut over devices, for DTensor.

By batch and by heads; nothing is communicated but the gradient of a sink, a sum over the batch.
Imported with the first DTensor: torch.distributed.tensor takes long to import.
"""

import math

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from fa3._options import BOTH_PASSES, FORWARD, TYPES

QKV = "q", "k", "v"
FORWARD_ARGUMENTS = (*QKV, *list(TYPES)[: len(FORWARD)])
BACKWARD_ARGUMENTS = ("do", *QKV, "out", "lse", *list(TYPES)[: len(BOTH_PASSES)], "dlse")

NOT_BY_BATCH = "cu_seqlens_q", "cu_seqlens_k", "page_table", "batch_index"
MASK = "block_mask", "block_mask_bits"
OF_BATCH = "seqused_q", "seqused_k", "left_padding"
OF_BATCH_AND_HEADS = "q_descale", "k_descale", "v_descale", "k_mean", "v_mean"


def of_mask(name, spec, dim):
    """Where a block mask lies if its dimension `dim` is cut: an extent of 1 is for all."""
    return Shard(dim) if name == "block_mask" and spec.shape[dim] > 1 else Replicate()


def by_batch(name, spec):
    """Where an argument lies if the batch is cut."""
    if name in MASK:
        return of_mask(name, spec, 0)
    whole = name == "sink" or (name in OF_BATCH_AND_HEADS and spec.ndim == 1)
    return Replicate() if whole else Shard(0)


def by_heads(name, spec):
    """Where an argument lies if the heads are cut."""
    if name == "sink":
        return Shard(0)
    if name in MASK:
        return of_mask(name, spec, 1)
    if name in OF_BATCH_AND_HEADS:
        return Shard(1) if spec.ndim > 1 else Replicate()
    whole = name in (*NOT_BY_BATCH, *OF_BATCH)
    return Replicate() if whole else Shard(spec.ndim - 2)


def everywhere(name, spec):
    return Replicate()


def ways(call):
    """The ways to place a call that are right: functions (name, spec) -> placement."""
    yield everywhere
    if call["q"].ndim == 4 and not any(call.get(name) is not None for name in NOT_BY_BATCH):
        yield by_batch
    if heads_divide(call["q"], call["k"]):
        yield by_heads


def heads_divide(q, k):
    """Whether every device gets whole groups: the query heads of its key heads."""
    sizes = [q.mesh.size(dim) for dim in range(q.mesh.ndim)]
    cut = [n for n, at in zip(sizes, q.placements, strict=True) if at == Shard(q.ndim - 2)]
    heads = k.shape[-2]
    return all(heads % n == 0 for n in sizes) and heads % math.prod(cut) == 0


def is_tensor(value):
    return hasattr(value, "placements")


def placements(way, call):
    # A gate lies as q does; its last dimension may be left out.
    like = {"gate": call["q"]}
    return [
        way(name, like.get(name, spec)) if is_tensor(spec) else None for name, spec in call.items()
    ]


@register_sharding(torch.ops.fa3.forward.default)
def place_forward(*arguments):
    call = dict(zip(FORWARD_ARGUMENTS, arguments, strict=False))
    return [(of_results(way, call["q"]), placements(way, call)) for way in ways(call)]


@register_sharding(torch.ops.fa3.forward_max_logit.default)
def place_forward_max_logit(*arguments):
    call = dict(zip(FORWARD_ARGUMENTS, arguments, strict=False))
    found = []
    for way in ways(call):
        max_logit = way("k_descale", max_logit_of)  # (sequences, heads), as descales are
        found.append(([*of_results(way, call["q"]), max_logit], placements(way, call)))
    return found


@register_sharding(torch.ops.fa3.backward.default)
def place_backward(*arguments):
    call = dict(zip(BACKWARD_ARGUMENTS, arguments, strict=False))
    sink, gate = call.get("sink"), call.get("gate")  # torch leaves out what is None at the end
    found = []
    for way in ways(call):
        dsink = Replicate() if sink is None else Partial() if way is by_batch else way("sink", sink)
        dgate = Replicate() if gate is None else way("gate", call["q"])
        found.append(([*(way(x, call[x]) for x in QKV), dsink, dgate], placements(way, call)))
    return found


def of_results(way, q):
    return [way("out", q), way("lse", lse_of(q))]


class max_logit_of:
    """The rank of max logits."""

    ndim = 2


class lse_of:
    """The rank of the LSE: (b, h, s) or (h, total)."""

    def __init__(self, q):
        self.ndim = q.ndim - 1

# SPDX-License-Identifier: Apache-2.0
"""Dropout's seed of torch tensors: an int64 tensor of (seed, offset) on their device.

It is drawn by torch.randint, which queues work and waits for nothing: in a CUDA graph each launch
draws anew, torch.utils.checkpoint draws the same numbers again, and torch.compile traces it. A
compiled program that computes again in its backward what it did not save keeps its seeds.
"""

import sys

import torch
from torch._functorch import config
from torch.fx import traceback
from torch.utils.checkpoint import CheckpointPolicy

from fa3._dropout import pair, refuse_seed
from fa3.errors import InvalidArgument, Unsupported
from fa3.torch.checks import number_now, refuse_numbers_that_learn
from fa3.torch.library import library
from fa3.torch.operators import DROPOUT_P, DROPOUT_SEED, is_watched

library.define("dropout_seed(Device device) -> Tensor", tags=torch.Tag.nondeterministic_seeded)


def draw(device, generator=None):
    """A new seed."""
    if generator is None and is_watched():
        return torch.ops.fa3.dropout_seed(device)
    if generator is not None and torch._C._current_graph_task_id() != -1:
        raise Unsupported(
            "generator: expected None in a call that a backward pass computes again, as under "
            "torch.utils.checkpoint, which gives back the state of torch's own generators alone; "
            "pass dropout_seed"
        )
    return draw_now(device, generator)


def draw_now(device, generator=None):
    """Generators of the CPU give 64 random bits, those of CUDA likewise."""
    low, high = -(2**63), 2**63 - 1
    return torch.randint(low, high, (2,), dtype=torch.int64, device=device, generator=generator)


def draw_once(device):
    """draw_now(), marked in a compiler's graph as a result that the backward gets from the forward.

    Under a memory budget torch's partitioner would otherwise draw another seed in the backward.
    """
    if config.activation_memory_budget == 0:
        raise Unsupported(
            "dropout_seed: expected a tensor with torch._functorch.config.activation_memory_budget "
            "= 0, got None; the backward of such a program would draw another one"
        )
    meta, key = traceback.current_meta, "recompute"
    before = {key: meta[key]} if key in meta else {}
    meta[key] = CheckpointPolicy.MUST_SAVE
    try:
        return draw_now(device)
    finally:
        del meta[key]
        meta.update(before)


library.impl("dropout_seed", draw_once, "CompositeImplicitAutograd")
# torch.vmap's randomness says whether its calls share a seed; further inside nobody could tell.
library.impl("dropout_seed", draw_once, "FuncTorchVmapMode")


def seeded(q, options, generator):
    """Options in order, with the seed as a tensor; drawn where a call with dropout gives none."""
    if len(options) <= DROPOUT_SEED:
        return options
    probability = options[DROPOUT_P] if len(options) > DROPOUT_P else 0.0
    if not isinstance(probability, (int, float)):
        refuse_numbers_that_learn(dropout_p=probability)
        probability = number_now(probability)
        options = [*options[:DROPOUT_P], probability, *options[DROPOUT_P + 1 :]]
    seed = options[DROPOUT_SEED]
    if seed is None and not (isinstance(probability, (int, float)) and 0 < probability <= 1):
        return options
    refuse_sharded(q)
    seed = given_or_drawn(seed, q.device, generator)
    return [*options[:DROPOUT_SEED], seed, *options[DROPOUT_SEED + 1 :]]


def given_or_drawn(seed, device, generator=None):
    """A caller's dropout_seed as a tensor on the device."""
    if seed is None:
        return draw(device, generator)
    if generator is not None:
        raise InvalidArgument("generator: expected None beside dropout_seed, got both")
    if not isinstance(seed, torch.Tensor):
        return from_pair(seed, device)
    if seed.dtype != torch.int64 or seed.shape != (2,):
        refuse_seed(seed)
    if seed.device != device:
        raise InvalidArgument(f"dropout_seed: expected it on {device}, as q is, got {seed.device}")
    return seed


def from_pair(seed, device):
    """Numbers become a tensor by filling, which a GPU does in stream order."""
    return torch.stack([torch.full((), n, dtype=torch.int64, device=device) for n in pair(seed)])


def refuse_sharded(q):
    sharded = sys.modules.get("torch.distributed.tensor")
    if sharded is not None and isinstance(q, sharded.DTensor):
        raise Unsupported(
            "dropout_p: expected 0 with a DTensor, whose parts would count heads and sequences anew"
        )

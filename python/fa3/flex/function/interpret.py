# SPDX-License-Identifier: Apache-2.0
"""A graph computed over a tile of scores, by torch operations on tensors that broadcast.

The oracle of every other way to compute it. Indices into captured tensors count from the end if
they are negative, as in torch. Those out of range are clamped, or refused where that is asked.
"""

import torch

from fa3.flex.function.graph import FLOAT, INT
from fa3.flex.function.operations import OPERATIONS


def evaluate(graph, numbers, leaves, tensors, hidden=None):
    """The values of these nodes. leaves: name -> tensor; floats have the type of the score.

    hidden: refuses indices out of range but for these pairs; None: clamps them.
    """
    values = {}
    score = next(leaf for leaf in leaves.values() if leaf.is_floating_point())
    for number in graph.needed_for(*numbers):
        node = graph.nodes[number]
        arguments = [values[a] for a in node.arguments]
        if hidden is not None and node.op == "load":
            refuse_out_of_range(tensors[node.value].shape, arguments, hidden)
        values[number] = compute(graph, node, arguments, leaves, tensors, score)
    return [values[number] for number in numbers]


def compute(graph, node, arguments, leaves, tensors, score):
    if node.op in leaves:
        return leaves[node.op]
    if node.op == "constant":
        kind = score.dtype if node.kind == FLOAT else torch.int64 if node.kind == INT else None
        kind = torch.bool if kind is None else kind
        return torch.full((), node.value, dtype=kind, device=score.device)  # copies nothing
    if node.op == "load":
        tensor = tensors[node.value]
        loaded = tensor.take(places(tensor, arguments, score.device))  # [] would read one place
        return loaded.to(score.dtype) if node.kind == FLOAT else loaded
    if node.op == "to_float":
        return arguments[0].to(score.dtype)
    if node.op == "to_int":
        return arguments[0].to(torch.int64)
    if node.op == "to_bool":
        return arguments[0] != 0
    return OPERATIONS[node.op].tensors(*arguments)


def places(tensor, indices, device):
    """Numbers of elements, row by row."""
    place = torch.zeros((), dtype=torch.int64, device=device)
    for index, extent in zip(indices, tensor.shape, strict=True):
        index = index.to(torch.int64)
        index = torch.where(index < 0, index + extent, index).clamp(0, extent - 1)
        place = place * extent + index
    return place


def refuse_out_of_range(shape, indices, hidden):
    for dimension, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        outside = (index < -extent) | (index >= extent)
        if outside.any() and (outside & ~hidden).any():
            raise IndexError(
                f"score_mod, mask_mod: expected an index from {-extent} to {extent - 1} in "
                f"dimension {dimension} of a captured tensor of shape {tuple(shape)}, got "
                f"{int(index[outside][0])}; are the tensors (b, s, h, d)?"
            )


def add_into(total, indices, values, in_order=False):
    """total[indices] += values. in_order: always the same one, as on a CPU anyway."""
    place = places(total, indices, values.device)
    place = place.reshape((1,) * (values.ndim - place.ndim) + place.shape)
    shared = [d for d in range(values.ndim) if place.shape[d] == 1 and values.shape[d] > 1]
    if shared:
        values = values.sum(shared, keepdim=True)
    place, values = torch.broadcast_tensors(place, values)
    place, values = place.reshape(-1), values.reshape(-1).to(total.dtype)
    if in_order and total.is_cuda:  # sorts
        total.view(-1).index_put_((place,), values, accumulate=True)
    else:
        total.view(-1).index_add_(0, place, values)

# SPDX-License-Identifier: Apache-2.0
"""Which captured tensor's gradient is the gradient of the scores itself: one of 16 bits that is
added to them, a bias say, and has an element for each. A kernel stores it as it comes, where other
gradients are added up in float32. Next: device.py.
"""

from fa3.flex.function.graph import BATCH, COTANGENT, HEAD
from fa3.flex.function.pieces import OF_SCORE
from fa3.flex.function.text import MOST_ROWS

WHOLE = 8  # elements of 16 bits in the 16 bytes that TMA wants rows to be multiples of


def stored_of(call, wanted, q, k, tensors):
    """Its number among the captured tensors, or None."""
    functions = [call.function] if call.listed is None else [call.function, call.listed.score_only]
    found = {number_of(f, tensors, wanted, q, k, call.lengths, call.max_rows) for f in functions}
    return found.pop() if len(found) == 1 else None


def number_of(function, tensors, wanted, q, k, lengths, max_rows=MOST_ROWS):
    wanted = tuple(n for n in wanted if n < len(function.types))
    graph, gradient = function.graph, function.gradient(wanted)
    element = function.pieces(max_rows).element
    if graph.nodes[gradient.score].op != COTANGENT or element is None or element.kind != OF_SCORE:
        return None
    number = element.tensor
    loads = [pair for pair in gradient.loads if graph.nodes[pair[0]].value == number]
    if len(loads) != 1 or graph.nodes[loads[0][1]].op != COTANGENT:
        return None
    *others, _, _ = graph.nodes[loads[0][0]].arguments
    is_stored = one_to_one(graph, others, tensors[number].shape, q, k, lengths)
    return number if is_stored else None


def one_to_one(graph, others, shape, q, k, lengths):
    """Whether no two scores have one element, and each has one."""
    cu = lengths["cu_seqlens_q"]
    batch = q.shape[0] if cu is None else cu.shape[0] - 1
    spread = {BATCH: batch, HEAD: q.shape[-2]}
    for index, extent in zip(others, shape, strict=False):
        op = graph.nodes[index].op
        if extent != spread.pop(op, 1):
            return False
    rows = [most_rows(side, x, lengths) for side, x in (("q", q), ("k", k))]
    is_whole = shape[-1] % WHOLE == 0
    return (
        is_whole
        and all(e >= r for e, r in zip(shape[-2:], rows, strict=True))
        and all(extent == 1 for extent in spread.values())
    )


def most_rows(side, x, lengths):
    """Of a sequence, as far as that is known."""
    packed = lengths[f"cu_seqlens_{side}"] is not None
    return lengths[f"max_seqlen_{side}"] or x.shape[0] if packed else x.shape[1]

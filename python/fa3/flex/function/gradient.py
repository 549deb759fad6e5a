# SPDX-License-Identifier: Apache-2.0
"""The gradient of a graph with respect to the score and to captured tensors: reverse mode.

The graph goes on behind the function's own nodes, from COTANGENT, the gradient of its result.
Source of the method: Griewank and Walther, "Evaluating Derivatives" (SIAM, 2008), chapter 3.
"""

import math
from typing import NamedTuple

from fa3.flex.function.graph import COTANGENT, FLOAT, SCORE
from fa3.flex.function.operations import OPERATIONS, Maker


class Gradient(NamedTuple):
    """Numbers of nodes: the score's gradient, and (load, gradient) of each that is asked for."""

    score: int
    loads: list


def differentiate(graph, result, tensors=()):
    """Adds the gradient to the graph. tensors: the numbers of those that have one."""
    make = Maker(graph)
    gradients = {result: graph.leaf(COTANGENT)}
    depends = set()  # nodes that have a gradient to pass on
    for number in graph.needed_for(result):
        node = graph.nodes[number]
        is_source = node.op == SCORE or (node.op == "load" and node.value in tensors)
        if node.kind == FLOAT and (is_source or depends.intersection(node.arguments)):
            depends.add(number)
    hiding = hiding_chain(graph, result)
    loads = []
    for number in reversed(graph.needed_for(result)):
        node, mine = graph.nodes[number], gradients.get(number)
        if mine is None or number not in depends:
            continue
        if node.op == "load":
            loads.append((number, mine))
            continue
        operation = OPERATIONS.get(node.op)
        if operation is None or operation.derivative is None:
            continue
        if number in hiding:
            parts = None, mine, mine
        else:
            parts = operation.derivative(make, mine, number, *node.arguments)
        for argument, part in zip(node.arguments, parts, strict=True):
            if part is None or argument not in depends:
                continue
            before = gradients.get(argument)
            gradients[argument] = part if before is None else make.add(before, part)
    score = gradients.get(graph.leaf(SCORE))
    return Gradient(graph.constant(0.0) if score is None else score, loads)


def hiding_chain(graph, result):
    """Nodes where(condition, score, -inf) that the function ends with.

    The gradient of a hidden key is 0 as it comes: neither branch has to look at the condition.
    """
    chain, number = set(), result
    while graph.nodes[number].op == "where":
        branches = graph.nodes[number].arguments[1:]
        seen = [n for n in branches if graph.nodes[n].value != -math.inf]
        if len(seen) != 1:
            break
        chain.add(number)
        number = seen[0]
    return chain

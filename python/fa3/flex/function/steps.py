# SPDX-License-Identifier: Apache-2.0
"""What a function adds to the score, and how that changes from a key to the next one.

ALiBi adds a line along the keys, a table of relative positions what lies side by side in memory:
a kernel finds such numbers for a block of keys with an instruction each. Next: pieces.py.
"""

import operator
from typing import NamedTuple

from fa3.flex.function.graph import FLOAT, KEY, QUERY, SCORE
from fa3.flex.function.operations import Maker

FOLDED = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg}


class FoldingMaker(Maker):
    """Sums and products of constants are constants, and 1 multiplies nothing."""

    def of(self, op, *arguments):
        nodes = [self.graph.nodes[a] for a in arguments]
        values = [node.value if node.op == "constant" else None for node in nodes]
        if op in FOLDED and None not in values:
            return self.graph.constant(FOLDED[op](*values))
        if op == "mul" and 1 in values:
            return self.alike(arguments)[1 - values.index(1)]
        return super().of(op, *arguments)


HOLD_OR_SHIFT = {"minimum", "maximum", "at_most", "at_least", "add", "sub"}


class Run(NamedTuple):
    """A load whose last index changes by a constant step from key to key, or stays where bounds
    hold it, and then is never negative; the others do not change at all."""

    load: int
    step: int
    has_bounds: bool


def added_to_score(graph, number):
    """What the node adds to the score, if it does nothing else with it; else None."""
    node, make = graph.nodes[number], FoldingMaker(graph)
    if node.op not in ("add", "sub"):
        return None
    score, added = node.arguments
    if node.op == "add" and SCORE in leaves_of(graph, added):
        score, added = added, score
    if SCORE in leaves_of(graph, added):
        return None
    if graph.nodes[score].op == SCORE:
        return added if node.op == "add" else make.neg(added)
    before = added_to_score(graph, score)
    return None if before is None else make.of(node.op, before, added)


def run_of(graph, added, max_rows):
    """The Run of the one load that asks for the key, if there is one; else None."""
    asking = [
        n
        for n in graph.needed_for(added)
        if graph.nodes[n].op == "load" and KEY in leaves_of(graph, n)
    ]
    if len(asking) != 1:
        return None
    *others, last = graph.nodes[asking[0]].arguments
    if any(KEY in leaves_of(graph, n) for n in others):
        return None
    step = constant_step_of(graph, last, KEY)
    if step is not None:
        return Run(asking[0], step, False)
    # A negative index counts from the end, where one that bounds hold may be the same element.
    least, _ = graph.bounds(last, max_rows)
    step = step_within(graph, last) if least is not None and least >= 0 else None
    return None if step is None else Run(asking[0], step, True)


def step_within(graph, number):
    """The step by which this index changes from key to key where no bound holds it, if it is a
    number; else None. It never turns back."""
    step = constant_step_of(graph, number, KEY)
    node = graph.nodes[number]
    if step is not None or node.op not in HOLD_OR_SHIFT:
        return step
    asking = [n for n in node.arguments if KEY in leaves_of(graph, n)]
    if len(asking) != 1:
        return None
    inner = step_within(graph, asking[0])
    turned = node.op == "sub" and asking[0] == node.arguments[1]
    return -inner if turned and inner is not None else inner


def distance_step_of(graph, indices):
    """The step from key to key, 1 or -1, of the last of these indices, if it is one of the distance
    of key and query, and no other knows of either; else None."""
    if not indices or any({KEY, QUERY} & leaves_of(graph, n) for n in indices[:-1]):
        return None
    step = constant_step_of(graph, indices[-1], KEY)
    if step not in (1, -1) or constant_step_of(graph, indices[-1], QUERY) != -step:
        return None
    return step


def constant_step_of(graph, number, of):
    """The step, if it is a number; else None."""
    step = step_of(graph, number, bends=0, of=of)
    node = None if step is None else graph.nodes[step]
    return node.value if node is not None and node.op == "constant" else None


def step_of(graph, number, bends=1, of=KEY):
    """The node by which this one changes from key to key (`of`), None if it is no line. It may bend
    where the argument of an abs() is 0, in `bends` places at most: then the step differs there,
    which tells a kernel of it."""
    steps, make = {}, FoldingMaker(graph)
    for n in graph.needed_for(number):
        node = graph.nodes[n]
        if node.op == of:
            steps[n] = make(1)
        elif of not in leaves_of(graph, n):
            steps[n] = None
        else:
            rule = STEPS.get(node.op)
            if node.op == "abs":
                bends -= 1
            step = None if rule is None else rule(make, steps, *node.arguments)
            if step is None or bends < 0:
                return None
            steps[n] = step
    return (
        make(0.0 if graph.kind(number) == FLOAT else 0) if steps[number] is None else steps[number]
    )


def leaves_of(graph, number):
    return {graph.nodes[n].op for n in graph.needed_for(number)}


# Steps of an operation's result, of which one argument has a step at least: (Maker, the steps of
# all nodes before, its arguments). None: it is no line.


def of_sum(make, steps, a, b):
    first, second = steps[a], steps[b]
    return first if second is None else second if first is None else make.add(first, second)


def of_difference(make, steps, a, b):
    first, second = steps[a], steps[b]
    if second is None:
        return first
    return make.neg(second) if first is None else make.sub(first, second)


def of_product(make, steps, a, b):
    if steps[a] is not None and steps[b] is not None:
        return None
    return make.mul(a, steps[b]) if steps[a] is None else make.mul(steps[a], b)


def of_quotient(make, steps, a, b):
    return None if steps[b] is not None else make.div(steps[a], b)


STEPS = {
    "add": of_sum,
    "sub": of_difference,
    "neg": lambda make, steps, a: make.neg(steps[a]),
    "mul": of_product,
    "div": of_quotient,
    "abs": lambda make, steps, a: make.mul(steps[a], make.sign(a)),
    "to_float": lambda make, steps, a: make.graph.to(FLOAT, steps[a]),
}

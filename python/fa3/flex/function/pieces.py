# SPDX-License-Identifier: Apache-2.0
"""A function's graph as the pieces of the library's fa3_score_function: include/fa3/fa3.h.

A kernel takes a function that says what it is: whether it adds to the score, by lines or by a term
of each key, and which element of a captured tensor it reads, so that the kernel may read that
ahead. Bodies are written by text.py.
"""

from typing import NamedTuple

from fa3.flex.function.graph import COTANGENT, HEAD, KEY, QUERY, SCORE
from fa3.flex.function.steps import (
    added_to_score,
    distance_step_of,
    leaves_of,
    run_of,
    step_of,
)
from fa3.flex.function.text import ELEMENTS, MOST_ROWS, NARROW, body, indices, name_of

# fa3_score_kind and fa3_element_kind.
ANY, ADDED, KEY_TERM, ROW_LINE, ROW_LINES = range(5)
NO_ELEMENT, OF_SCORE, OF_KEY, RUN, CLAMPED_RUN = range(5)


class Element(NamedTuple):
    """An fa3_score_element."""

    kind: int
    tensor: int
    step: int
    head_index: int
    type: str
    indices: str


class Pieces(NamedTuple):
    kind: int
    text: str
    element: Element | None
    repeats_tangents: bool


class GradientTexts(NamedTuple):
    slope: str | None  # None: 1, wherever a key is seen
    gradients: str | None  # None: no captured tensor has a gradient
    use_score: bool


NO_GRADIENTS = GradientTexts(None, None, False)


class Load(NamedTuple):
    """The one load whose element a kernel gets as x."""

    number: int  # of the node
    kind: int
    indices: list  # nodes that `at` is given
    step: int = 0


def pieces_of(function, max_rows=MOST_ROWS):
    """The Pieces of a function, where no sequence has more rows than `max_rows`.

    They depend on the tensors' types and ranks beside that.
    """
    graph = function.graph
    kind, returned = returned_by(graph, function.result)
    load = None
    if kind in (ANY, ADDED):
        added = returned[0] if kind == ADDED else None
        load = load_of(graph, graph.needed_for(*returned), function.types, added, max_rows)
    names = ", ".join(name_of(graph, n) for n in returned)
    end = f"return {{{names}}};" if kind in (ROW_LINE, ROW_LINES) else f"return {names};"
    x = None if load is None else load.number
    text = body(function, max_rows, returned, after=[end], x=x)
    operations = {graph.nodes[n].op for n in graph.needed_for(*returned)}
    repeats = not function.types and "tanh" in operations
    element = None if load is None else element_of(function, load, max_rows)
    return Pieces(kind, text, element, repeats)


def returned_by(graph, result):
    """(the kind of the function, the nodes that its text returns)"""
    added = added_to_score(graph, result)
    if added is None:
        return ANY, [result]
    step = step_of(graph, added)
    is_line = step is not None and graph.nodes[step] != graph.nodes[graph.constant(0.0)]
    is_straight = is_line and KEY not in leaves_of(graph, step)
    if QUERY not in leaves_of(graph, added) and not is_straight:
        return KEY_TERM, [added]
    if not is_line:
        return ADDED, [added]
    return (ROW_LINE if is_straight else ROW_LINES), [added, step]


def load_of(graph, needed, types, added, max_rows):
    """The Load whose element becomes x, if there is one; else None. added: the node of what is
    added to the score, if the function does nothing else."""
    ahead = loaded_ahead(graph, needed, types)
    run = None if added is None else run_of(graph, added, max_rows)
    if run is None:
        return ahead
    if ahead is not None and (ahead.kind == OF_SCORE or asks(graph, ahead.indices, QUERY)):
        return ahead  # each query has its own, which comes from memory, and is waited for
    places = graph.nodes[run.load].arguments
    return Load(run.load, CLAMPED_RUN if run.has_bounds else RUN, [*places], run.step)


def asks(graph, numbers, *leaves):
    """Whether one of these nodes depends on one of the leaves."""
    return not {*leaves}.isdisjoint(graph.nodes[n].op for n in graph.needed_for(*numbers))


def loaded_ahead(graph, numbers, types):
    """The only load of 16-bit floats, if it is one at (..., kv_idx) that asks for the key nowhere
    else: what is at the next key lies beside it. None: there is none, or there are several."""
    nodes = [(n, graph.nodes[n]) for n in numbers]
    loads = [(n, x) for n, x in nodes if x.op == "load" and types[x.value] in NARROW]
    if len(loads) != 1 or not loads[0][1].arguments:
        return None
    ((number, load),) = loads
    *others, last = load.arguments
    if graph.nodes[last].op != KEY or asks(graph, others, KEY, SCORE):
        return None
    if others and graph.nodes[others[-1]].op == QUERY and not asks(graph, others[:-1], QUERY):
        return Load(number, OF_SCORE, others[:-1])
    return Load(number, OF_KEY, others)


def element_of(function, load, max_rows):
    graph, tensor = function.graph, function.graph.nodes[load.number].value
    places = indices(graph, load.indices, max_rows)
    if load.step:
        places[-1] = name_of(graph, load.indices[-1])
    of_heads = [i for i, number in enumerate(load.indices) if asks(graph, [number], HEAD)]
    text = body(function, max_rows, load.indices, after=[f"return at({', '.join(places)});"])
    kind = ELEMENTS[function.types[tensor]]
    return Element(load.kind, tensor, load.step, of_heads[0] if of_heads else -1, kind, text)


def gradient_texts_of(function, gradient, max_rows=MOST_ROWS):
    graph, slope = function.graph, None
    if graph.nodes[gradient.score].op != COTANGENT:
        one, end = "const float gradient = 1.0f;", f"return {name_of(graph, gradient.score)};"
        slope = body(function, max_rows, [gradient.score], before=[one], after=[end])
    if not gradient.loads:
        return GradientTexts(slope, None, False)
    needed, statements, summed = [], [], set()
    for load, value in gradient.loads:
        node = graph.nodes[load]
        places = {graph.nodes[n].op for n in graph.needed_for(*node.arguments)}
        add = "add" if QUERY in places else "add_for_key" if KEY in places else "add_for_tile"
        step = distance_step_of(graph, node.arguments)
        if step is not None and "distance" not in summed:
            add = "add_for_distance"
            summed.add("distance")
        elif (add, node.value) in summed:
            add = "add"
        summed.add((add, node.value))
        statements.append(added_gradient(graph, add, node, value, step, max_rows))
        needed += [value, *node.arguments]
    text = body(function, max_rows, needed, after=statements)
    return GradientTexts(slope, text, asks(graph, needed, SCORE))


def added_gradient(graph, add, load, value, step, max_rows):
    """The statement that adds to the gradient of what was loaded."""
    places = [*load.arguments]
    number = load.value
    if add == "add_for_distance":
        *others, last = places
        arguments = [name_of(graph, last), *indices(graph, others, max_rows)]
        number = f"{number}, {step}"
    else:
        arguments = indices(graph, places, max_rows)
    return f"{add}<{number}>({', '.join([name_of(graph, value), *arguments])});"

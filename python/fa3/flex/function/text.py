# SPDX-License-Identifier: Apache-2.0
"""A graph as CUDA: bodies of functions in src/engine/cuda/softmax/score_function.cuh.

One line a node, in order. What an operation is called there stands in operations.py.
"""

import math
from typing import NamedTuple

import torch

from fa3.errors import Unsupported
from fa3.flex.function.graph import BATCH, BOOL, COTANGENT, HEAD, INT, KEY, QUERY, SCORE
from fa3.flex.function.operations import OPERATIONS
from fa3.flex.function.steps import (
    Run,
    added_to_score,
    distance_step_of,
    leaves_of,
    run_of,
    step_of,
)

NAMES = {SCORE: "score", BATCH: "b", HEAD: "h", QUERY: "q_idx", KEY: "kv_idx"}
NAMES |= {COTANGENT: "gradient"}
TYPES = {BOOL: "bool", INT: "int", "float": "float"}
ELEMENTS = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "Half",
    torch.bfloat16: "Bfloat",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}


NARROW = torch.float16, torch.bfloat16
SMALL = 2**22  # small_to_float() takes numbers below
LONGEST = SMALL // 2  # so that it takes the distance of two indices


def text_of(function, longest=LONGEST):
    """The body of ScoreFunction::of(), where no sequence has more rows than `longest`.

    It depends on the tensors' types and ranks beside that.
    """
    return body(function, longest, returns=function.result)


def slope_of(function, gradient, longest=LONGEST):
    """The body of ScoreFunction::slope(); None: it is 1 wherever a key is seen."""
    if function.graph.nodes[gradient.score].op == COTANGENT:
        return None
    one = ["const float gradient = 1.0f;"]
    return body(function, longest, before=one, returns=gradient.score)


def gradients_of(function, gradient, longest=LONGEST):
    """The body of ScoreGradient::of(); None: no tensor has a gradient."""
    if not gradient.loads:
        return None
    graph, needed, statements, summed = function.graph, [], [], set()
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
        statements.append(added_gradient(graph, add, node, value, step, longest))
        needed += [value, *node.arguments]
    return body(function, longest, needed, after=statements)


def added_gradient(graph, add, load, value, step, longest):
    """The statement that adds to the gradient of what was loaded."""
    places = [*load.arguments]
    number = load.value
    if add == "add_for_distance":
        *others, last = places
        arguments = [name_of(graph, last), *indices(graph, others, longest)]
        number = f"{number}, {step}"
    else:
        arguments = indices(graph, places, longest)
    return f"{add}<{number}>({', '.join([name_of(graph, value), *arguments])});"


def body(function, longest, numbers=(), before=(), after=(), returns=None):
    """Lines that compute these nodes, or what is returned."""
    graph, lines = function.graph, ["using namespace score;", *before]
    end = None if returns is None else returned(graph, returns, longest)
    if end is not None:
        numbers, after = end.needed, [f"return {end.expression};"]
    needed, run = graph.needed_for(*numbers), None if end is None else end.run
    once = end is not None and end.is_key_term  # for all queries
    ahead = None if once else loaded_ahead(graph, needed, function.types)
    if run is not None and ahead is not None:
        # What each query has of its own comes from memory, and is waited for.
        *others, _ = graph.nodes[ahead].arguments
        if QUERY in {graph.nodes[n].op for n in graph.needed_for(*others)}:
            run = None
        else:
            ahead = None
    for number in needed:
        node = graph.nodes[number]
        if number == ahead:
            element = ELEMENTS[function.types[node.value]]
            call = loads_ahead(graph, node, longest)
            lines.append(f"const float x{number} = {call.format(f'{element}, {node.value}')};")
        elif run is not None and number == run.load:
            lines.append(
                f"const {TYPES[node.kind]} x{number} = {loads_run(function, run, longest)};"
            )
        elif node.op not in NAMES:
            value = expression(graph, node, function.types, longest)
            lines.append(f"const {TYPES[node.kind]} x{number} = {value};")
    return "\n".join([*lines, *after, ""])


class Returned(NamedTuple):
    """What a function's body ends with."""

    expression: str
    needed: list[int]  # the nodes that it names
    run: Run | None = None
    is_key_term: bool = False


def returned(graph, result, longest):
    """The Returned of a function's result. Where it adds to the score, and how that changes from
    key to key, is said there, for kernels that begin with it (src/engine/cuda/jit/score_program.h,
    AddedToScore)."""
    added = added_to_score(graph, result)
    if added is None:
        return Returned(name_of(graph, result), [result])
    name, step = name_of(graph, added), step_of(graph, added)
    is_line = step is not None and graph.nodes[step] != graph.nodes[graph.constant(0.0)]
    is_straight = is_line and KEY not in leaves_of(graph, step)
    if QUERY not in leaves_of(graph, added) and not is_straight:
        return Returned(f"score + key_term({name})", [added], is_key_term=True)
    if not is_line:
        return Returned(f"score + {name}", [added], run_of(graph, added, longest))
    kind = "linear" if is_straight else "piecewise_linear"
    return Returned(f"score + {kind}({name}, {name_of(graph, step)})", [added, step])


def loads_run(function, run, longest):
    """The call that loads an element of a run."""
    graph, node = function.graph, function.graph.nodes[run.load]
    *others, last = node.arguments
    places = ", ".join([name_of(graph, last), *indices(graph, others, longest)])
    call = "load_clamped_run" if run.has_bounds else "load_run"
    return f"{call}<{ELEMENTS[function.types[node.value]]}, {node.value}, {run.step}>({places})"


def name_of(graph, number):
    return NAMES.get(graph.nodes[number].op, f"x{number}")


def loaded_ahead(graph, numbers, types):
    """The only load of 16-bit floats, if it is one at (..., kv_idx) that asks for the key nowhere
    else: what is at the next key lies beside it. None: there is none, or there are several."""
    nodes = [(n, graph.nodes[n]) for n in numbers]
    loads = [(n, x) for n, x in nodes if x.op == "load" and types[x.value] in NARROW]
    if len(loads) != 1 or not loads[0][1].arguments:
        return None
    ((number, load),) = loads
    *others, last = load.arguments
    leaves = {graph.nodes[n].op for n in graph.needed_for(*others)}
    return number if graph.nodes[last].op == KEY and KEY not in leaves else None


def loads_ahead(graph, node, longest):
    """The call that loads it: of its score, where it stands at (..., q_idx, kv_idx) and no other
    index asks for either; else of its key. {}: type and number."""
    *others, key = node.arguments
    of_score = others_of_score(graph, node)
    if of_score is None:
        call, names = "load_of_key", [name_of(graph, key)]
    else:
        call, names = "load_of_score", [name_of(graph, others[-1]), name_of(graph, key)]
        others = of_score
    places = ", ".join([*names, *indices(graph, others, longest)])
    return call + "<{}>(" + places + ")"


def others_of_score(graph, node):
    """The indices before q_idx and kv_idx of a load at (..., q_idx, kv_idx), if they ask for
    neither; else None."""
    if len(node.arguments) < 2:
        return None
    *others, query, key = node.arguments
    leaves = {graph.nodes[n].op for n in graph.needed_for(*others)}
    is_score = (graph.nodes[query].op, graph.nodes[key].op) == (QUERY, KEY)
    return others if is_score and not leaves & {QUERY, KEY} else None


def indices(graph, arguments, longest):
    """Of a captured tensor; those that are known to be at least 0 cost less."""
    names = [name_of(graph, a) for a in arguments]
    bounds = [graph.bounds(a, longest) for a in arguments]
    return [
        f"unsigned({name})" if least is not None and least >= 0 else name
        for name, (least, _) in zip(names, bounds, strict=True)
    ]


def expression(graph, node, types, longest):
    arguments = [name_of(graph, a) for a in node.arguments]
    bounds = [graph.bounds(a, longest) for a in node.arguments]
    if node.op == "constant":
        return literal(node.value)
    if node.op == "load":
        element = ELEMENTS[types[node.value]]
        places = ", ".join(indices(graph, node.arguments, longest))
        return f"load<{element}, {node.value}>({places})"
    if node.op == "to_float" and is_small(*bounds[0]):
        return f"small_to_float({arguments[0]})"
    if node.op == "div" and (inverse := inverse_of(graph.nodes[node.arguments[1]])) is not None:
        return f"{arguments[0]} * {literal(inverse)}"
    return OPERATIONS[node.op].text.format(*arguments)


def inverse_of(divisor):
    """1 / a constant, which multiplies as well as the constant divides, but for a rounding; None:
    it is no constant, or float32 has no such number. A division takes ten instructions."""
    if divisor.op != "constant":
        return None
    size = abs(divisor.value)
    return 1 / divisor.value if 2.0**-126 <= size <= 2.0**126 else None


def is_small(least, largest):
    return least is not None and least > -SMALL and largest < SMALL


def literal(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            raise Unsupported(
                f"score_mod: the integer {value}, where a kernel's have 32 bits; expected one from"
                " -2**31 to 2**31 - 1"
            )
        return f"int({value % 2**32}u)"
    if math.isnan(value):
        return "from_bits(0x7fc00000u)"
    if math.isinf(value):
        return f"from_bits({'0x7f800000u' if value > 0 else '0xff800000u'})"
    return (
        f"{float(value).hex()}f" if abs(value) < 3.5e38 else literal(math.copysign(math.inf, value))
    )

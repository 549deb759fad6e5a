# SPDX-License-Identifier: Apache-2.0
"""A graph as CUDA: bodies of functions in src/engine/cuda/softmax/score_function.cuh.

One line a node, in order. What an operation is called there stands in operations.py.
"""

import math

import torch

from fa3.flex.function.graph import BATCH, BOOL, COTANGENT, HEAD, INT, KEY, QUERY, SCORE
from fa3.flex.function.operations import OPERATIONS

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
    return body(function, longest, [function.result], returns=function.result)


def slope_of(function, gradient, longest=LONGEST):
    """The body of ScoreFunction::slope(); None: it is 1 wherever a key is seen."""
    if function.graph.nodes[gradient.score].op == COTANGENT:
        return None
    one = ["const float gradient = 1.0f;"]
    return body(function, longest, [gradient.score], before=one, returns=gradient.score)


def gradients_of(function, gradient, longest=LONGEST):
    """The body of ScoreGradient::of(); None: no tensor has a gradient."""
    if not gradient.loads:
        return None
    graph, needed, statements, summed = function.graph, [], [], set()
    for load, value in gradient.loads:
        node = graph.nodes[load]
        places = {graph.nodes[n].op for n in graph.needed_for(*node.arguments)}
        add = "add" if QUERY in places else "add_for_key" if KEY in places else "add_for_tile"
        if (add, node.value) in summed:
            add = "add"
        summed.add((add, node.value))
        arguments = [name_of(graph, value), *indices(graph, node.arguments, longest)]
        statements.append(f"{add}<{node.value}>({', '.join(arguments)});")
        needed += [value, *node.arguments]
    return body(function, longest, needed, after=statements)


def body(function, longest, numbers, before=(), after=(), returns=None):
    """Lines that compute these nodes."""
    graph, lines = function.graph, ["using namespace score;", *before]
    if returns is not None:
        added = added_to_score(graph, returns)
        if added is None:
            after = [f"return {name_of(graph, returns)};"]
        else:
            numbers = [added if number == returns else number for number in numbers]
            after = [f"return score + {name_of(graph, added)};"]
    needed = graph.needed_for(*numbers)
    ahead = loaded_ahead(graph, needed, function.types)
    for number in needed:
        node = graph.nodes[number]
        if number == ahead:
            element = ELEMENTS[function.types[node.value]]
            call = loads_ahead(graph, node, longest)
            lines.append(f"const float x{number} = {call.format(f'{element}, {node.value}')};")
        elif node.op not in NAMES:
            value = expression(graph, node, function.types, longest)
            lines.append(f"const {TYPES[node.kind]} x{number} = {value};")
    return "\n".join([*lines, *after, ""])


def added_to_score(graph, number):
    """What the node adds to the score, if it does nothing else with it; else None. Kernels may then
    begin with it (src/engine/cuda/jit/score_program.h, adds_to_score())."""
    node = graph.nodes[number]
    if node.op != "add":
        return None
    for score, added in (node.arguments, node.arguments[::-1]):
        leaves = {graph.nodes[n].op for n in graph.needed_for(added)}
        if graph.nodes[score].op == SCORE and SCORE not in leaves:
            return added
    return None


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
        return f"int({value % 2**32}u)"
    if math.isnan(value):
        return "from_bits(0x7fc00000u)"
    if math.isinf(value):
        return f"from_bits({'0x7f800000u' if value > 0 else '0xff800000u'})"
    return (
        f"{float(value).hex()}f" if abs(value) < 3.5e38 else literal(math.copysign(math.inf, value))
    )

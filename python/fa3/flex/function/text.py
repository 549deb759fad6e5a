# SPDX-License-Identifier: Apache-2.0
"""A graph as CUDA: bodies of functions in src/engine/cuda/softmax/score_function.cuh.

One line a node, in order. What an operation is called there stands in operations.py. Next:
pieces.py, which says what the bodies are of.
"""

import math

import torch

from fa3.errors import Unsupported
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
MOST_ROWS = SMALL // 2  # so that it takes the distance of two indices


def body(function, max_rows, numbers, before=(), after=(), x=None):
    """Lines that compute these nodes, and others around them. x: the load that is the body's
    argument x.

    max_rows: what no index of a row, head or sequence reaches.
    """
    graph, lines = function.graph, ["using namespace score;", *before]
    for number in needed_beside(graph, numbers, x):
        node = graph.nodes[number]
        if node.op not in NAMES:
            value = "x" if number == x else expression(graph, node, function.types, max_rows)
            lines.append(f"const {TYPES[node.kind]} x{number} = {value};")
    return "\n".join([*lines, *after, ""])


def needed_beside(graph, numbers, x):
    """Graph.needed_for(), where nothing is needed for x."""
    needed = {*numbers}
    for number in range(max(needed, default=-1), -1, -1):
        if number in needed and number != x:
            needed.update(graph.nodes[number].arguments)
    return sorted(needed)


def name_of(graph, number):
    return NAMES.get(graph.nodes[number].op, f"x{number}")


def indices(graph, arguments, max_rows):
    """Of a captured tensor; those that are known to be at least 0 cost less."""
    names = [name_of(graph, a) for a in arguments]
    bounds = [graph.bounds(a, max_rows) for a in arguments]
    return [
        f"unsigned({name})" if least is not None and least >= 0 else name
        for name, (least, _) in zip(names, bounds, strict=True)
    ]


def expression(graph, node, types, max_rows):
    arguments = [name_of(graph, a) for a in node.arguments]
    bounds = [graph.bounds(a, max_rows) for a in node.arguments]
    if node.op == "constant":
        return literal(node.value)
    if node.op == "load":
        element = ELEMENTS[types[node.value]]
        places = ", ".join(indices(graph, node.arguments, max_rows))
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

# SPDX-License-Identifier: Apache-2.0
"""A graph as CUDA: the body of ScoreFunction::of() in src/engine/cuda/softmax/score_function.cuh.

One line a node, in order. What an operation is called there stands in operations.py.
"""

import math

import torch

from fa3.flex.graph import BATCH, BOOL, HEAD, INT, KEY, QUERY, SCORE
from fa3.flex.operations import OPERATIONS

NAMES = {SCORE: "score", BATCH: "b", HEAD: "h", QUERY: "q_idx", KEY: "kv_idx"}
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


SMALL = 2**22  # small_to_float() takes numbers below
LONGEST = SMALL // 2  # so that it takes the distance of two indices


def text_of(function, longest=LONGEST):
    """The body of the function, where no sequence has more rows than `longest`.

    It depends on the tensors' types and ranks beside that.
    """
    graph, lines = function.graph, ["using namespace score;"]
    for number in graph.needed_for(function.result):
        node = graph.nodes[number]
        if node.op not in NAMES:
            value = expression(graph, node, function.tensors, longest)
            lines.append(f"const {TYPES[node.kind]} x{number} = {value};")
    return "\n".join([*lines, f"return {name_of(graph, function.result)};", ""])


def name_of(graph, number):
    return NAMES.get(graph.nodes[number].op, f"x{number}")


def expression(graph, node, tensors, longest):
    arguments = [name_of(graph, a) for a in node.arguments]
    bounds = [graph.bounds(a, longest) for a in node.arguments]
    if node.op == "constant":
        return literal(node.value)
    if node.op == "load":
        indices = [
            f"unsigned({name})" if least is not None and least >= 0 else name
            for name, (least, _) in zip(arguments, bounds, strict=True)
        ]
        element = ELEMENTS[tensors[node.value].dtype]
        return f"load<{element}, {node.value}>({', '.join(indices)})"
    if node.op == "to_float" and is_small(*bounds[0]):
        return f"small_to_float({arguments[0]})"
    return OPERATIONS[node.op].text.format(*arguments)


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

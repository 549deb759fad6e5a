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


def text_of(function):
    """The body of the function. It depends on the tensors' types and ranks alone."""
    graph, lines = function.graph, ["using namespace score;"]
    for number in graph.needed_for(function.result):
        node = graph.nodes[number]
        if node.op not in NAMES:
            value = expression(node, [name_of(graph, a) for a in node.arguments], function.tensors)
            lines.append(f"const {TYPES[node.kind]} x{number} = {value};")
    return "\n".join([*lines, f"return {name_of(graph, function.result)};", ""])


def name_of(graph, number):
    return NAMES.get(graph.nodes[number].op, f"x{number}")


def expression(node, arguments, tensors):
    if node.op == "constant":
        return literal(node.value)
    if node.op == "load":
        element = ELEMENTS[tensors[node.value].dtype]
        return f"load<{element}, {node.value}>({', '.join(arguments)})"
    return OPERATIONS[node.op].text.format(*arguments)


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

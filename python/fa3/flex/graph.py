# SPDX-License-Identifier: Apache-2.0
"""A score function as data: a graph of operations on a score, its place and captured tensors.

Nodes stand in the order of their computation, and equal ones are one. trace.py makes a graph of a
function, gradient.py another one of a graph; interpret.py computes it over tiles, text.py writes it
as CUDA. Next: operations.py.
"""

from typing import NamedTuple

FLOAT, INT, BOOL = "float", "int", "bool"

# Leaves: the scaled product, its sequence, query head, query and key; and, in a gradient, the
# gradient of what the function returned.
SCORE, BATCH, HEAD, QUERY, KEY, COTANGENT = (
    "score", "batch", "head", "query", "key", "cotangent",
)  # fmt: skip
LEAVES = {SCORE: FLOAT, BATCH: INT, HEAD: INT, QUERY: INT, KEY: INT, COTANGENT: FLOAT}


class Node(NamedTuple):
    """op: a leaf, "constant" (value), "load" (value: the tensor's number), or one of OPERATIONS."""

    op: str
    kind: str
    arguments: tuple = ()  # numbers of nodes
    value: object = None


class Graph:
    def __init__(self):
        self.nodes = []
        self._numbers = {}

    def add(self, op, kind, *arguments, value=None):
        """The number of this node, which may be there already."""
        node = Node(op, kind, arguments, value)
        key = node[:3], repr(value)  # -0.0 is not 0.0, and NaN is NaN
        number = self._numbers.setdefault(key, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return number

    def leaf(self, name):
        return self.add(name, LEAVES[name])

    def constant(self, value):
        kind = BOOL if isinstance(value, bool) else INT if isinstance(value, int) else FLOAT
        return self.add("constant", kind, value=value)

    def load(self, tensor, kind, indices):
        return self.add("load", kind, *indices, value=tensor)

    def kind(self, number):
        return self.nodes[number].kind

    def to(self, kind, number):
        """The node as a number of this kind."""
        node = self.nodes[number]
        if node.kind == kind:
            return number
        if node.op == "constant":
            return self.constant({FLOAT: float, INT: int, BOOL: bool}[kind](node.value))
        return self.add("to_" + kind, kind, number)

    def needed_for(self, *numbers):
        """The numbers of the nodes that these are computed from, and their own, in order."""
        needed = set(numbers)
        for number in range(max(needed), -1, -1):
            if number in needed:
                needed.update(self.nodes[number].arguments)
        return sorted(needed)

    def is_at_least_zero(self, number):
        """Whether an integer is known to be: an index that is needs no look for negative ones."""
        node = self.nodes[number]
        of = [self.is_at_least_zero(a) for a in node.arguments] if node.kind == INT else []
        if node.op == "constant":
            return node.value >= 0
        if node.op in ("add", "mul", "minimum", "floor_div", "shift_right", "bitwise_or"):
            return all(of)
        if node.op in ("maximum", "bitwise_and"):
            return any(of)
        if node.op == "remainder":
            return of[1]
        if node.op == "where":
            return of[1] and of[2]
        return node.op in (BATCH, HEAD, QUERY, KEY, "abs")

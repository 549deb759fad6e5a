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

UNKNOWN = None, None


def known(rule):
    """The rule, where all bounds are known."""
    return lambda *of: UNKNOWN if any(None in bounds for bounds in of) else rule(*of)


def ends(values):
    return min(values), max(values)


# What is known of an operation's result from the bounds of its arguments.
BOUNDS = {
    "add": known(lambda a, b: (a[0] + b[0], a[1] + b[1])),
    "sub": known(lambda a, b: (a[0] - b[1], a[1] - b[0])),
    "neg": known(lambda a: (-a[1], -a[0])),
    "mul": known(lambda a, b: ends([x * y for x in a for y in b])),
    "abs": known(lambda a: (max(0, a[0], -a[1]), max(-a[0], a[1]))),
    "maximum": known(lambda a, b: (max(a[0], b[0]), max(a[1], b[1]))),
    "minimum": known(lambda a, b: (min(a[0], b[0]), min(a[1], b[1]))),
    "where": lambda condition, a, b: known(lambda a, b: ends([*a, *b]))(a, b),
    "floor_div": known(
        lambda a, b: ends([0, *(x // y for x in a for y in b)]) if b[0] > 0 else UNKNOWN
    ),
    "remainder": lambda a, b: (0, b[1] - 1) if b[0] is not None and b[0] > 0 else UNKNOWN,
    "to_int": known(lambda a: a),
}
BOUNDS["at_least"], BOUNDS["at_most"] = BOUNDS["maximum"], BOUNDS["minimum"]


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
        self._bounds = {}

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
        for number in range(max(needed, default=-1), -1, -1):
            if number in needed:
                needed.update(self.nodes[number].arguments)
        return sorted(needed)

    def bounds(self, number, max_rows):
        """(least, largest) of an integer, both None where they are not known.

        max_rows: what no index of a query, key, head or sequence reaches.
        """
        key = number, max_rows
        if key not in self._bounds:
            self._bounds[key] = self._find_bounds(number, max_rows)
        return self._bounds[key]

    def _find_bounds(self, number, max_rows):
        node = self.nodes[number]
        if node.kind != INT:
            return (0, 1) if node.kind == BOOL else UNKNOWN
        if node.op == "constant":
            return node.value, node.value
        if node.op in (BATCH, HEAD, QUERY, KEY):
            return 0, max_rows - 1
        rule = BOUNDS.get(node.op)
        of = [self.bounds(a, max_rows) for a in node.arguments]
        return UNKNOWN if rule is None else rule(*of)

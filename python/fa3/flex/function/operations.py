# SPDX-License-Identifier: Apache-2.0
"""The operations that graphs are made of: one row each.

A row has the operation on torch tensors, its CUDA text, and its derivative: a function of a Maker,
the gradient of the result, the result, and the arguments, which returns a gradient for each of them
(None: there is none). "Differences" of torch and CUDA that a function could see are settled here:
integers are divided towards minus infinity, by zero with the result 0.
"""

import math
from typing import NamedTuple

import torch

from fa3.flex.function.graph import BOOL, FLOAT, INT


class Operation(NamedTuple):
    tensors: object
    text: str
    derivative: object = None  # None: it has none, or it is 0 everywhere


class Maker:
    """Nodes of a graph in the notation of Python: make.mul(a, make(2.0))."""

    def __init__(self, graph):
        self.graph = graph

    def __call__(self, value):
        return self.graph.constant(value)

    def __getattr__(self, op):
        return lambda *arguments: self.of(op, *arguments)

    def of(self, op, *arguments):
        """A node of the kind that follows from its arguments', which are made alike."""
        graph = self.graph
        if op in COMPARISONS:
            return graph.add(op, BOOL, *self.alike(arguments))
        if op in TRUTHS:
            return graph.add(op, BOOL, *(graph.to(BOOL, a) for a in arguments))
        if op == "where":
            condition, *rest = arguments
            rest = self.alike(rest)
            return graph.add(op, graph.kind(rest[0]), graph.to(BOOL, condition), *rest)
        if op in OF_ANY:
            arguments = self.alike(arguments, least=INT)
            return graph.add(op, graph.kind(arguments[0]), *arguments)
        kind = INT if op in OF_INTEGERS else FLOAT
        return graph.add(op, kind, *(graph.to(kind, a) for a in arguments))

    def alike(self, arguments, least=BOOL):
        order = (BOOL, INT, FLOAT)
        kinds = [least, *(self.graph.kind(a) for a in arguments)]
        widest = max(kinds, key=order.index)
        return [self.graph.to(widest, a) for a in arguments]


def floor_div(a, b):
    return torch.where(b == 0, 0, torch.div(a, torch.where(b == 0, 1, b), rounding_mode="floor"))


def truncated_div(a, b):
    return torch.where(b == 0, 0, torch.div(a, torch.where(b == 0, 1, b), rounding_mode="trunc"))


def remainder(a, b):
    if a.is_floating_point() or b.is_floating_point():
        return torch.remainder(a, b)
    return torch.where(b == 0, 0, torch.remainder(a, torch.where(b == 0, 1, b)))


def where(condition, a, b):
    return torch.where(condition, a, b)


def of_larger(make, c, _, a, b):
    return of_chosen(make, c, make.gt(a, b), make.eq(a, b))


def of_smaller(make, c, _, a, b):
    return of_chosen(make, c, make.lt(a, b), make.eq(a, b))


def of_chosen(make, c, first, both):
    """Of two equal numbers each takes half, as in torch."""
    half, zero = make.mul(c, make(0.5)), make(0.0)
    return (
        make.where(both, half, make.where(first, c, zero)),
        make.where(both, half, make.where(first, zero, c)),
    )


def of_power(make, c, y, x, e):
    one_less = make.pow(x, make.sub(e, make(1.0)))
    of_x = make.where(make.eq(e, make(0.0)), make(0.0), make.mul(c, make.mul(e, one_less)))
    if make.graph.nodes[e].op == "constant":
        return of_x, None
    of_e = make.mul(c, make.mul(y, make.log(x)))
    return of_x, make.where(make.eq(y, make(0.0)), make(0.0), of_e)


OPERATIONS = {
    # Operations on floats or integers.
    "add": Operation(torch.add, "{0} + {1}", lambda m, c, y, a, b: (c, c)),
    "sub": Operation(torch.sub, "{0} - {1}", lambda m, c, y, a, b: (c, m.neg(c))),
    "mul": Operation(torch.mul, "{0} * {1}", lambda m, c, y, a, b: (m.mul(c, b), m.mul(c, a))),
    "neg": Operation(torch.neg, "-{0}", lambda m, c, y, a: (m.neg(c),)),
    "abs": Operation(torch.abs, "absolute({0})", lambda m, c, y, a: (m.mul(c, m.sign(a)),)),
    "sign": Operation(torch.sign, "sign({0})"),
    "maximum": Operation(torch.maximum, "maximum({0}, {1})", of_larger),
    "minimum": Operation(torch.minimum, "minimum({0}, {1})", of_smaller),
    # The second one is a bound, which has no gradient; the first one's ends behind it.
    "at_least": Operation(
        torch.maximum, "maximum({0}, {1})",
        lambda m, c, y, a, b: (m.where(m.ge(a, b), c, m(0.0)), None),
    ),
    "at_most": Operation(
        torch.minimum, "minimum({0}, {1})",
        lambda m, c, y, a, b: (m.where(m.le(a, b), c, m(0.0)), None),
    ),
    "remainder": Operation(
        remainder, "remainder({0}, {1})",
        lambda m, c, y, a, b: (c, m.neg(m.mul(c, m.floor(m.div(a, b))))),
    ),
    "where": Operation(
        where, "{0} ? {1} : {2}",
        lambda m, c, y, t, a, b: (None, m.where(t, c, m(0.0)), m.where(t, m(0.0), c)),
    ),
    # Operations on floats.
    "div": Operation(
        torch.div, "{0} / {1}",
        lambda m, c, y, a, b: (m.div(c, b), m.neg(m.div(m.mul(c, y), b))),
    ),
    "exp": Operation(torch.exp, "exponential({0})", lambda m, c, y, a: (m.mul(c, y),)),
    "exp2": Operation(
        torch.exp2, "exponential2({0})", lambda m, c, y, a: (m.mul(c, m.mul(y, m(math.log(2)))),)
    ),
    "expm1": Operation(torch.expm1, "expm1f({0})", lambda m, c, y, a: (m.mul(c, m.exp(a)),)),
    "log": Operation(torch.log, "logarithm({0})", lambda m, c, y, a: (m.div(c, a),)),
    "log2": Operation(
        torch.log2, "logarithm2({0})", lambda m, c, y, a: (m.div(c, m.mul(a, m(math.log(2)))),)
    ),
    "log1p": Operation(
        torch.log1p, "log1pf({0})", lambda m, c, y, a: (m.div(c, m.add(a, m(1.0))),)
    ),
    "sqrt": Operation(
        torch.sqrt, "sqrtf({0})", lambda m, c, y, a: (m.div(m.mul(c, m(0.5)), y),)
    ),
    "rsqrt": Operation(
        torch.rsqrt, "rsqrtf({0})",
        lambda m, c, y, a: (m.mul(m.mul(c, m(-0.5)), m.mul(y, m.mul(y, y))),),
    ),
    "tanh": Operation(
        torch.tanh, "tangent({0})",
        lambda m, c, y, a: (m.mul(c, m.sub(m(1.0), m.mul(y, y))),),
    ),
    "sigmoid": Operation(
        torch.sigmoid, "sigmoid({0})",
        lambda m, c, y, a: (m.mul(c, m.mul(y, m.sub(m(1.0), y))),),
    ),
    "sin": Operation(torch.sin, "sinf({0})", lambda m, c, y, a: (m.mul(c, m.cos(a)),)),
    "cos": Operation(torch.cos, "cosf({0})", lambda m, c, y, a: (m.neg(m.mul(c, m.sin(a))),)),
    "tan": Operation(
        torch.tan, "tanf({0})",
        lambda m, c, y, a: (m.mul(c, m.add(m(1.0), m.mul(y, y))),),
    ),
    "erf": Operation(
        torch.erf, "erff({0})",
        lambda m, c, y, a: (
            m.mul(c, m.mul(m(2 / math.sqrt(math.pi)), m.exp(m.neg(m.mul(a, a))))),
        ),
    ),
    "pow": Operation(torch.pow, "powf({0}, {1})", of_power),
    "floor": Operation(torch.floor, "floorf({0})"),
    "ceil": Operation(torch.ceil, "ceilf({0})"),
    "round": Operation(torch.round, "rintf({0})"),
    "trunc": Operation(torch.trunc, "truncf({0})"),
    # Operations on integers.
    "floor_div": Operation(floor_div, "floor_div({0}, {1})"),
    "truncated_div": Operation(truncated_div, "truncated_div({0}, {1})"),
    "bitwise_and": Operation(torch.bitwise_and, "{0} & {1}"),
    "bitwise_or": Operation(torch.bitwise_or, "{0} | {1}"),
    "bitwise_xor": Operation(torch.bitwise_xor, "{0} ^ {1}"),
    "bitwise_not": Operation(torch.bitwise_not, "~{0}"),
    "shift_left": Operation(torch.bitwise_left_shift, "shift_left({0}, {1})"),
    "shift_right": Operation(torch.bitwise_right_shift, "shift_right({0}, {1})"),
    # Comparisons.
    "eq": Operation(torch.eq, "{0} == {1}"),
    "ne": Operation(torch.ne, "{0} != {1}"),
    "lt": Operation(torch.lt, "{0} < {1}"),
    "le": Operation(torch.le, "{0} <= {1}"),
    "gt": Operation(torch.gt, "{0} > {1}"),
    "ge": Operation(torch.ge, "{0} >= {1}"),
    # Operations on truth values.
    "logical_and": Operation(torch.logical_and, "{0} && {1}"),
    "logical_or": Operation(torch.logical_or, "{0} || {1}"),
    "logical_xor": Operation(torch.logical_xor, "{0} != {1}"),
    "logical_not": Operation(torch.logical_not, "!{0}"),
    # From one kind to another.
    "to_float": Operation(None, "float({0})"),
    "to_int": Operation(None, "to_int({0})"),
    "to_bool": Operation(None, "{0} != 0"),
}  # fmt: skip

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
TRUTHS = ("logical_and", "logical_or", "logical_xor", "logical_not")
OF_ANY = (
    *("add", "sub", "mul", "neg", "abs", "sign", "maximum", "minimum"),
    *("at_least", "at_most", "remainder"),
)
OF_INTEGERS = (
    *("floor_div", "truncated_div", "shift_left", "shift_right"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
)

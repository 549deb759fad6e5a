# SPDX-License-Identifier: Apache-2.0
"""What each operation of torch becomes in a graph; operations.py has the nodes."""

from fa3.errors import Unsupported
from fa3.flex.function.graph import BOOL, FLOAT, INT

SAME = (
    *("neg", "abs", "sign", "maximum", "minimum", "remainder", "exp", "exp2", "expm1", "log"),
    *(
        "log2",
        "log1p",
        "sqrt",
        "rsqrt",
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "tan",
        "erf",
        "pow",
        "floor",
    ),
    *("ceil", "round", "trunc", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"),
    *("logical_xor", "logical_not"),
)
COPIES = (
    *("_to_copy", "clone", "alias", "detach", "lift_fresh", "lift_fresh_copy", "view"),
    *("_unsafe_view", "expand", "squeeze", "contiguous", "to", "reshape", "positive"),
)
OF_BITS = {
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
    "bitwise_not": "logical_not",
}
INTEGER_DIVISIONS = {"floor": "floor_div", "trunc": "truncated_div"}
CONSTANTS = {  # new scalars, of a value: as torch's noop_mask makes one
    **dict.fromkeys(("new_ones", "ones_like"), 1),
    **dict.fromkeys(("new_zeros", "zeros_like"), 0),
    **dict.fromkeys(("new_full", "full_like"), None),
}


def node_of(tracer, name, kind, args, kwargs):
    """The node of an operation whose result is of this kind."""
    make, graph = tracer.make, tracer.graph
    if name in COPIES:
        return graph.to(kind, tracer.scalar(args[0]))
    if name in CONSTANTS:
        value = CONSTANTS[name]
        return graph.to(kind, tracer.scalar(args[-1] if value is None else value))
    if name in ("clamp", "clamp_min", "clamp_max", "hardtanh"):
        return clamped(tracer, name, kind, args, kwargs)
    scalars = [tracer.scalar(a) for a in args]
    rule = RULES.get(name)
    if rule is not None:
        return rule(make, kind, kwargs, *scalars)
    if name not in SAME:
        raise Unsupported(f"score_mod: aten.{name} is not translated; write it by other operations")
    if name == "pow" and kind == FLOAT:
        return power(make, *scalars)
    number = make.of(name, *(integers_of_bools(graph, kind, s) for s in scalars))
    return graph.to(kind, number)


def integers_of_bools(graph, kind, number):
    return graph.to(kind, number) if kind in (FLOAT, INT) else number


def power(make, x, e):
    node = make.graph.nodes[e]
    if node.op == "constant" and node.value == 2:
        return make.mul(*[make.graph.to(FLOAT, x)] * 2)
    if node.op == "constant" and node.value == 0.5:
        return make.sqrt(x)
    return make.pow(x, e)


def clamped(tracer, name, kind, args, kwargs):
    value, *bounds = args
    names = {"clamp_min": ("min",), "clamp_max": ("max",)}.get(name, ("min", "max"))
    bounds = dict(zip(names, bounds, strict=False)) | {
        {"min_val": "min", "max_val": "max"}.get(k, k): v for k, v in kwargs.items()
    }
    number = tracer.graph.to(kind, tracer.scalar(value))
    for side, op in (("min", "at_least"), ("max", "at_most")):
        if bounds.get(side) is not None:
            number = tracer.make.of(op, number, tracer.scalar(bounds[side]))
    return number


def scaled(make, kwargs, b):
    alpha = kwargs.get("alpha", 1)
    return b if alpha == 1 else make.mul(b, make(alpha))


def divided(make, kind, kwargs, a, b):
    mode = kwargs.get("rounding_mode")
    if mode is None:
        return make.div(a, b)
    if kind == INT:
        return make.of(INTEGER_DIVISIONS[mode], a, b)
    return make.of(mode, make.div(a, b))


def floor_divided(make, kind, kwargs, a, b):
    return divided(make, kind, {"rounding_mode": "floor"}, a, b)


def bits(name):
    def rule(make, kind, kwargs, *arguments):
        return make.of(OF_BITS[name] if kind == BOOL else name, *arguments)

    return rule


def remainder_towards_zero(make, kind, kwargs, a, b):
    divide = make.truncated_div if kind == INT else lambda x, y: make.trunc(make.div(x, y))
    return make.sub(a, make.mul(divide(a, b), b))


def softplus(make, kind, kwargs, x, beta=None, threshold=None):
    beta = make(1.0) if beta is None else beta
    threshold = make(20.0) if threshold is None else threshold
    steep = make.mul(x, beta)
    return make.where(make.gt(steep, threshold), x, make.div(make.log1p(make.exp(steep)), beta))


RULES = {
    "add": lambda m, kind, k, a, b: m.graph.to(kind, m.add(a, scaled(m, k, b))),
    "sub": lambda m, kind, k, a, b: m.graph.to(kind, m.sub(a, scaled(m, k, b))),
    "rsub": lambda m, kind, k, a, b: m.graph.to(kind, m.sub(b, scaled(m, k, a))),
    "mul": lambda m, kind, k, a, b: (
        m.logical_and(a, b) if kind == BOOL else m.graph.to(kind, m.mul(a, b))
    ),
    "div": divided,
    "true_divide": divided,
    "floor_divide": floor_divided,
    "fmod": remainder_towards_zero,
    "where": lambda m, kind, k, t, a, b: m.graph.to(kind, m.where(t, a, b)),
    "masked_fill": lambda m, kind, k, x, t, y: m.graph.to(kind, m.where(t, y, x)),
    "reciprocal": lambda m, kind, k, x: m.div(m(1.0), x),
    "square": lambda m, kind, k, x: m.mul(x, x),
    "relu": lambda m, kind, k, x: m.at_least(x, m.graph.to(kind, m(0))),
    "leaky_relu": lambda m, kind, k, x, slope=None: m.where(
        m.gt(x, m(0.0)), x, m.mul(x, m(0.01) if slope is None else slope)
    ),
    "silu": lambda m, kind, k, x: m.mul(x, m.sigmoid(x)),
    "softplus": softplus,
    "logit": lambda m, kind, k, x: m.log(m.div(x, m.sub(m(1.0), x))),
    "isnan": lambda m, kind, k, x: m.ne(x, x),
    "isinf": lambda m, kind, k, x: m.eq(m.of("abs", x), m(float("inf"))),
    "fmax": lambda m, kind, k, a, b: m.maximum(a, b),
    "fmin": lambda m, kind, k, a, b: m.minimum(a, b),
    "sgn": lambda m, kind, k, x: m.sign(x),
    "bitwise_and": bits("bitwise_and"),
    "bitwise_or": bits("bitwise_or"),
    "bitwise_xor": bits("bitwise_xor"),
    "bitwise_not": bits("bitwise_not"),
    "bitwise_left_shift": lambda m, kind, k, a, b: m.shift_left(a, b),
    "bitwise_right_shift": lambda m, kind, k, a, b: m.shift_right(a, b),
    "__lshift__": lambda m, kind, k, a, b: m.shift_left(a, b),
    "__rshift__": lambda m, kind, k, a, b: m.shift_right(a, b),
    "__and__": lambda m, kind, k, a, b: bits("bitwise_and")(m, kind, k, a, b),
    "__or__": lambda m, kind, k, a, b: bits("bitwise_or")(m, kind, k, a, b),
    "__xor__": lambda m, kind, k, a, b: bits("bitwise_xor")(m, kind, k, a, b),
    "logical_and": lambda m, kind, k, a, b: m.logical_and(a, b),
    "logical_or": lambda m, kind, k, a, b: m.logical_or(a, b),
}

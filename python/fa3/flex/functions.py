# SPDX-License-Identifier: Apache-2.0
"""The graph of a function, made once for as long as what it captures stays the same.

That can be seen of plain functions alone, and of what stands in their closures and in the globals
that they name: tensors, numbers and other such functions. Others are traced at each call, which
takes about a millisecond. All of it is looked at in each call, since nobody is told when a global
changes.
"""

import dis
import types
import weakref
from types import CodeType, FunctionType

from torch import Tensor

from fa3.flex.graph import SCORE, Graph
from fa3.flex.trace import Function, trace

MOST = 256  # functions that are remembered
MOST_DEPTH = 4  # of functions that name functions
_known: dict[object, tuple] = {}  # identity -> (its Function, weak references to what it captures)
_identities: dict[tuple, object] = {}  # what tells a function from others -> its identity
_codes: dict[int, "Code"] = {}  # by id of the code, which it keeps

UNCHANGED = types.ModuleType, types.BuiltinFunctionType
NUMBERS = float, int, bool, str, type(None)


def remember(table, key, value):
    """The oldest makes room."""
    if len(table) >= MOST:
        del table[next(iter(table))]
    table[key] = value
    return value


def function_of(score_mod, identity=None):
    """(the Function of score_mod, which may be None; the tensors that it captures).

    identity: where it is not score_mod's own.
    """
    key = identity_of(score_mod) if identity is None else identity
    if key is not None and (found := _known.get(key)) is not None:
        function, references = found
        tensors = []
        for reference in references:
            tensor = reference()
            if tensor is None:
                break
            tensors.append(tensor)
        else:
            return function, tensors
    function, tensors = trace_of(score_mod)
    if key is not None and function.is_fixed:
        function.is_known = True
        function.leaves, function.may_hide  # noqa: B018  looked for once, not in each call
        remember(_known, key, (function, [weakref.ref(t) for t in tensors]))
    return function, tensors


def trace_of(score_mod):
    if score_mod is not None:
        return trace(score_mod)
    graph = Graph()
    return Function(graph, graph.leaf(SCORE), (), True), []


def both(first, second):
    """The identity of two things that are used together."""
    return None if first is None or second is None else (first, second)


def identity_of(value):
    """One object for functions that do the same with the same tensors; None: it cannot be told."""
    parts = []
    if not add_identity(value, parts, 0):
        return None
    key = tuple(parts)
    found = _identities.get(key)
    return remember(_identities, key, object()) if found is None else found


def add_identity(value, parts, depth):
    """Appends what tells the value from others, which begins with its kind; False: nothing does."""
    kind = type(value)
    if kind is Tensor or (kind not in NUMBERS and isinstance(value, Tensor)):
        parts += id(value), value.shape, value.dtype, value.requires_grad
        return True
    if kind in NUMBERS or isinstance(value, NUMBERS):
        parts += kind, repr(value) if value == 0 else value  # 0.0 == -0.0
        return True
    if kind is FunctionType:
        return depth <= MOST_DEPTH and add_function(value, parts, depth + 1)
    if kind is tuple:
        parts += kind, len(value)
        return all(add_identity(part, parts, depth + 1) for part in value)
    return False


def add_function(function, parts, depth):
    code = function.__code__
    found = _codes.get(id(code))
    if found is None:
        found = remember(_codes, id(code), Code(code))
    parts.append(found)
    namespace = function.__globals__
    for name in found.names:
        value = namespace.get(name, types)
        if type(value) in UNCHANGED:
            parts.append(None)
        elif not add_identity(value, parts, depth):
            return False
    if function.__defaults__ or function.__kwdefaults__:
        defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
        given = *defaults, *keywords.values()
        parts += FunctionType, (*keywords,), len(given)
        for value in given:
            if not add_identity(value, parts, depth):
                return False
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # an empty cell
            return False
        if not add_identity(value, parts, depth):
            return False
    return True


class Code:
    """Stands for a function's code, whose own hash takes long; and the globals that it names, also
    in functions that it defines: what modules and builtins are, no call changes."""

    def __init__(self, code):
        self.code = code
        self.names = (*dict.fromkeys(names_of(code)),)


def names_of(code):
    for instruction in dis.get_instructions(code):
        if "GLOBAL" in instruction.opname or "NAME" in instruction.opname:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)

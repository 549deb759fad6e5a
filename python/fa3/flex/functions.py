# SPDX-License-Identifier: Apache-2.0
"""The graph of a function, made once for as long as what it captures stays the same.

That can be seen of plain functions alone, and of what stands in their closures and in the globals
that they name: tensors, numbers and other such functions. Others are traced at each call, which
takes about a millisecond.
"""

import functools
import types
import weakref

import torch

from fa3.flex.graph import SCORE, Graph
from fa3.flex.trace import Function, trace

MOST = 256  # functions that are remembered
MOST_DEPTH = 4  # of functions that name functions
_known: dict[tuple, tuple] = {}  # what a function is -> its Function, oldest first


def function_of(score_mod, identity=None):
    """The Function of score_mod, which may be None. identity: where it is not score_mod's own."""
    key = identity_of(score_mod) if identity is None else identity
    if key is not None and (found := _known.get(key)) is not None:
        known, references = found
        tensors = [reference() for reference in references]
        if all(t is not None for t in tensors):
            return known.with_tensors(tensors)
    function = trace_of(score_mod)
    if key is not None and function.is_fixed:
        function.key = key
        function.leaves, function.may_hide  # noqa: B018  looked for once, not in each call
        if len(_known) >= MOST:
            del _known[next(iter(_known))]
        references = [weakref.ref(t) for t in function.tensors]
        _known[key] = function.with_tensors([]), references
    return function


def trace_of(score_mod):
    if score_mod is not None:
        return trace(score_mod)
    graph = Graph()
    return Function(graph, graph.leaf(SCORE), [], True)


def both(first, second):
    """The identity of two things that are used together."""
    return None if first is None or second is None else (first, second)


def identity_of(value, depth=0):
    """Equal for functions that do the same with the same tensors; None: it cannot be told."""
    kind = type(value)
    if kind is types.FunctionType:
        return identity_of_function(value, depth) if depth <= MOST_DEPTH else None
    if isinstance(value, torch.Tensor):
        return id(value), value.shape, value.dtype, value.requires_grad
    if value is None or isinstance(value, (bool, int, float, str)):
        return kind, repr(value) if value == 0 else value  # 0.0 == -0.0
    if kind is tuple:
        parts = (*(identity_of(part, depth + 1) for part in value),)
        return None if None in parts else parts
    return None


def identity_of_function(function, depth):
    code, names = what_is_known_of(function.__code__)
    defaults, namespace = function.__defaults__ or (), function.__globals__
    identity, values = [code, len(defaults)], [*defaults]
    if function.__kwdefaults__:
        values += function.__kwdefaults__.values()
    # What the names stand for, but modules and builtins, which no call changes. A name may be an
    # attribute's: then what it stands for here changes nothing.
    for name in names:
        found = namespace.get(name, types)
        unchanged = type(found) in (types.ModuleType, types.BuiltinFunctionType)
        values.append(None if unchanged else found)
    try:
        values += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # an empty cell
        return None
    for value in values:
        part = identity_of(value, depth + 1)
        if part is None:
            return None
        identity.append(part)
    return (*identity,)


@functools.lru_cache(maxsize=MOST)
def what_is_known_of(code):
    """(an object that stands for the code, whose own hash takes long; the names in it)."""
    return object(), names_of(code)


def names_of(code):
    """Also of the functions that it defines."""
    inner = (names_of(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return tuple(dict.fromkeys([*code.co_names, *(name for names in inner for name in names)]))

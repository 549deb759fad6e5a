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
_known: dict[tuple, tuple] = {}  # what a function is -> its Function, oldest first


def function_of(score_mod):
    if score_mod is None:
        graph = Graph()
        return Function(graph, graph.leaf(SCORE), [], True)
    key = identity_of(score_mod)
    if key is not None and key in _known:
        known, references = _known[key]
        tensors = [reference() for reference in references]
        if all(t is not None for t in tensors):
            return known.with_tensors(tensors)
    function = trace(score_mod)
    if key is not None and function.is_fixed:
        function.key = key
        function.may_hide  # noqa: B018  looked for once, not in each call
        if len(_known) >= MOST:
            del _known[next(iter(_known))]
        references = [weakref.ref(t) for t in function.tensors]
        _known[key] = function.with_tensors([]), references
    return function


def identity_of(value, depth=0):
    """Equal for functions that do the same with the same tensors; None: it cannot be told."""
    if isinstance(value, torch.Tensor):
        return "tensor", id(value), value.shape, value.dtype, value.requires_grad
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value), repr(value)
    if isinstance(value, tuple):
        parts = tuple(identity_of(part, depth + 1) for part in value)
        return None if None in parts else parts
    if not isinstance(value, types.FunctionType) or depth > 4:
        return None
    parts = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    parts += globals_of(value)
    try:
        parts += [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # an empty cell
        return None
    identities = tuple(identity_of(part, depth + 1) for part in parts)
    return None if None in identities else (value.__code__, identities)


def globals_of(function):
    """What the names of a function stand for, but modules and builtins, which no call changes. A
    name may be an attribute's: then what it stands for here changes nothing."""
    found = (function.__globals__.get(name, types) for name in names_of(function.__code__))
    return [x for x in found if not isinstance(x, (types.ModuleType, types.BuiltinFunctionType))]


@functools.lru_cache(maxsize=MOST)
def names_of(code):
    """Also of the functions that it defines."""
    inner = (names_of(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return tuple(dict.fromkeys([*code.co_names, *(name for names in inner for name in names)]))

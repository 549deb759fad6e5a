# SPDX-License-Identifier: Apache-2.0
"""The graph of a function, made once for as long as what it captures stays the same.

That can be seen of plain functions alone, and of what stands in their closures: tensors, numbers
and other such functions. Others are traced at each call, which takes about a millisecond.
"""

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
    if not all(is_fixed_global(value, name) for name in value.__code__.co_names):
        return None
    parts = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    try:
        parts += [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # an empty cell
        return None
    identities = tuple(identity_of(part, depth + 1) for part in parts)
    return None if None in identities else (value.__code__, identities)


def is_fixed_global(function, name):
    """Whether a name stands for an attribute, a builtin or a module: what no call changes."""
    found = function.__globals__.get(name, types)
    return isinstance(found, (types.ModuleType, types.BuiltinFunctionType))

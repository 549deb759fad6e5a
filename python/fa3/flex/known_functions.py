# SPDX-License-Identifier: Apache-2.0
"""The graph of a function, made once for as long as what it captures stays the same.

That can be seen of plain functions alone, and of what stands in their closures and in the globals
that they name: tensors, numbers and other such functions. Others are traced at each call, which
takes about a millisecond. All of it is looked at in each call, since nobody is told when a global
changes: by the compiled module (python/native/signature.h says what of it).
"""

import dis
import weakref
from types import CodeType

from fa3 import _native
from fa3.flex.block_mask import with_mask
from fa3.flex.function.graph import SCORE, Graph
from fa3.flex.function.trace import Function, trace
from fa3.torch.operators import HAVE_MEMORY

MOST = 256  # functions that are remembered
_known: dict[bytes, tuple] = {}  # identity -> (its Function, References)


def remember(table, key, value):
    """The oldest makes room."""
    if len(table) >= MOST:
        table.pop(next(iter(table)), None)  # unless another thread has
    table[key] = value
    return value


def signature(*values, seen=None):
    return _native.signature(names_of, HAVE_MEMORY, seen, (), *values)


def names_of(code):
    """(globals, attributes) that a code names, also in functions that it defines."""
    instructions = [*instructions_of(code)]
    attributes = [name for op, name in instructions if "ATTR" in op or "METHOD" in op]
    others = [name for op, name in instructions if "GLOBAL" in op or "NAME" in op]
    return (*dict.fromkeys(others),), (*dict.fromkeys(attributes),)


def instructions_of(code):
    for instruction in dis.get_instructions(code):
        yield instruction.opname, instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from instructions_of(constant)


class References:
    """Tensors that a function captures and what else it can see of tensors, not kept alive: another
    one may come to the address of one that is gone."""

    def __init__(self, captured, seen):
        others = [t for t in seen if not any(t is c for c in captured)]
        self.count = len(captured)
        self.tensors = [weakref.ref(t) for t in (*captured, *others)]

    def captured(self):
        """A list, or None where one of all is gone."""
        tensors = []
        for reference in self.tensors:
            tensor = reference()
            if tensor is None:
                return None
            tensors.append(tensor)
        return tensors[: self.count]


def function_of(score_mod, mask=None):
    """(the Function of score_mod with a mask_mod, either of which may be None; the tensors that it
    captures)."""
    seen = []
    key = signature(score_mod, mask, seen=seen)
    if key is not None and (found := _known.get(key)) is not None:
        function, references = found
        tensors = references.captured()
        if tensors is not None:
            return function, tensors
    function, tensors = trace_of(score_mod if mask is None else with_mask(score_mod, mask))
    if key is not None and function.is_fixed:
        function.is_known = True
        function.leaves, function.may_hide  # noqa: B018  looked for once, not in each call
        remember(_known, key, (function, References(tensors, seen)))
    return function, tensors


def trace_of(score_mod):
    if score_mod is not None:
        return trace(score_mod)
    graph = Graph()
    return Function(graph, graph.leaf(SCORE), (), True), []

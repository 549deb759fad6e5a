# SPDX-License-Identifier: Apache-2.0
"""The graph of a function, traced once for as long as what it captures stays the same.

That can be seen of plain functions alone, and of what stands in their closures and in the globals
that they name: tensors, numbers and other such functions. Others are traced at each call, which
takes about a millisecond. All of it is looked at in each call, since nobody is told when a global
changes. Next: kept.py.
"""

from fa3.flex.block_mask import with_mask
from fa3.flex.function.graph import SCORE, Graph
from fa3.flex.function.trace import Function, trace
from fa3.flex.kept import signature, table


def function_of(score_mod, mask=None):
    """(the Function of score_mod with a mask_mod, either of which may be None; the tensors that it
    captures)."""
    seen = []
    key = signature(score_mod, mask, seen=seen)
    if key is not None and (found := table.find(key)) is not None:
        return found
    function, tensors = trace_of(score_mod if mask is None else with_mask(score_mod, mask))
    if key is not None and function.is_fixed:
        function.is_known = True
        function.leaves, function.may_hide  # noqa: B018  looked for once, not in each call
        table.keep(key, function, tensors, seen)
    return function, tensors


def trace_of(score_mod):
    if score_mod is not None:
        return trace(score_mod)
    graph = Graph()
    return Function(graph, graph.leaf(SCORE), (), True), []

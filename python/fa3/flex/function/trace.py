# SPDX-License-Identifier: Apache-2.0
"""A Python function becomes a graph: it is called once, on scalars without data, and watched.

Every torch operation on the score or on an index becomes a node; whatever else the function
computes from captured tensors alone is left to torch, with its gradients. What has no node is
refused with a sentence that names the operation. Next: translate.py, which has what each operation
becomes.
"""

import functools
import math
import threading

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fa3.errors import Unsupported
from fa3.flex.function import translate
from fa3.flex.function.gradient import differentiate
from fa3.flex.function.graph import BATCH, BOOL, FLOAT, HEAD, INT, KEY, LEAVES, QUERY, SCORE, Graph
from fa3.flex.function.operations import Maker
from fa3.flex.function.pieces import gradient_texts_of, pieces_of
from fa3.flex.modes import beside_modes
from fa3.torch.operators import resolved

NO_DATA = torch.device("meta")
ALL_DIMS = 4  # most dimensions of a captured tensor


class Function:
    """graph: of the function; result: the number of what it returns; types: of what it captures.

    The captured tensors go beside it: who remembers a function does not keep them.
    """

    def __init__(self, graph, result, types, is_fixed):
        self.graph = graph
        self.result = result
        self.types = types
        self.is_fixed = is_fixed  # nothing but the captured tensors' elements may change
        self.clamps = False  # indices out of range, on a CPU too, where others are refused
        self.is_known = False  # one object does the same with the same tensors (functions.py)
        self.kernel_texts = {}  # query.py: by max_rows
        self._gradients = {}
        self._pieces = {}
        self._lock = threading.Lock()  # a gradient adds nodes

    def pieces(self, max_rows):
        """As CUDA (pieces.py): made once."""
        if max_rows not in self._pieces:
            self._pieces[max_rows] = pieces_of(self, max_rows)
        return self._pieces[max_rows]

    def gradient_texts(self, wanted, max_rows):
        """The GradientTexts of the score and of the tensors of these numbers."""
        key = wanted, max_rows
        if key not in self._pieces:
            self._pieces[key] = gradient_texts_of(self, self.gradient(wanted), max_rows)
        return self._pieces[key]

    def gradient(self, wanted):
        """The Gradient with respect to the score, and to the tensors of these numbers."""
        with self._lock:
            if wanted not in self._gradients:
                self._gradients[wanted] = differentiate(self.graph, self.result, wanted)
            return self._gradients[wanted]

    @functools.cached_property
    def leaves(self):
        """What the result depends on, among the leaves of graph.py."""
        return {self.graph.nodes[n].op for n in self.graph.needed_for(self.result)} & {*LEAVES}

    @functools.cached_property
    def may_hide(self):
        """Whether it may return -inf of its own accord."""
        nodes = (self.graph.nodes[number] for number in self.graph.needed_for(self.result))
        return any(node.op == "constant" and node.value == -math.inf for node in nodes)


class Row:
    """What is left of a captured tensor behind some indices: bias[h] of bias[h][q_idx - kv_idx]."""

    def __init__(self, tensor, indices):
        self.tensor = tensor
        self.indices = indices


def kind_of(dtype):
    if dtype is torch.bool:
        return BOOL
    return FLOAT if dtype.is_floating_point else INT


def trace(score_mod):
    """The Function of score_mod(score, b, h, q_idx, kv_idx), which returns the new score; and the
    tensors that it captures."""
    with beside_modes():
        # Autograd would save tensors of what a recomputation (torch.utils.checkpoint) finds traced.
        with torch.no_grad():
            tracer, result = traced(score_mod)
        if tracer.learns and torch.is_grad_enabled():
            tracer, result = traced(score_mod)
        return tracer.function_of(result)


def traced(score_mod):
    """(the Tracer, what the function returned)"""
    tracer = Tracer()
    score = tracer.new_scalar(torch.float32, tracer.graph.leaf(SCORE))
    places = [
        tracer.new_scalar(torch.int32, tracer.graph.leaf(name))
        for name in (BATCH, HEAD, QUERY, KEY)
    ]
    with IndexByScalars(), tracer:
        return tracer, score_mod(score, *places)


class IndexByScalars(TorchFunctionMode):
    """x[i] with scalar tensors i, which torch would read, becomes an operation like others.

    Also sees who calls detach(): autograd does so below this mode, to no effect. And gives lazily
    negated tensors their signs: below autograd torch does so itself, and their gradients are lost.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args = resolved(*args)
        if function is torch.Tensor.__getitem__:
            tensor, index = args
            index = index if isinstance(index, tuple) else (index,)
            has_scalar = any(isinstance(i, torch.Tensor) and i.ndim == 0 for i in index)
            if has_scalar and all(isinstance(i, (int, torch.Tensor)) for i in index):
                scalars = [
                    i if isinstance(i, torch.Tensor) else torch.tensor(i, device="cpu")
                    for i in index
                ]
                with torch.no_grad():  # gradient.py has its gradient
                    return torch.ops.aten.index.Tensor(tensor, scalars)
        if function in (torch.Tensor.detach, torch.detach) and args[0].device == NO_DATA:
            raise Unsupported("score_mod: detach() of what it computes is not translated")
        return function(*args, **(kwargs or {}))


class Tracer(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        """False, or torch imports its compiler, which takes seconds."""
        return False

    def __init__(self):
        super().__init__()
        self.graph = Graph()
        self.make = Maker(self.graph)
        self.tensors = []
        self.is_fixed = True
        self.learns = False  # something that it computes of captured tensors alone has a gradient
        self.traced = {}  # id of a tensor without data -> it, and its node's number or its Row
        self.made = {}  # id of a tensor that the function made of numbers -> it

    def new_scalar(self, dtype, number):
        scalar = torch.empty((), dtype=dtype, device=NO_DATA)
        self.traced[id(scalar)] = scalar, number
        return scalar

    def what(self, tensor):
        """The node's number or the Row of a tensor that is traced, else None."""
        return self.traced.get(id(tensor), (None, None))[1]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = [t for t in flattened((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not any(self.what(t) is not None for t in inputs):
            return self.outside(function, inputs, args, kwargs)
        name = str(function).removeprefix("aten.").rsplit(".", 1)[0]
        if name in ("_local_scalar_dense", "equal", "is_nonzero"):
            raise Unsupported(
                "score_mod: reads the value of the score or of an index (an if, int(), float() or "
                ".item() of it), which has none while the function is translated; use torch.where"
            )
        if name == "index":
            return self.index(*args)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                self.scalar(value)
        found = function(*with_ones(args), **with_ones(kwargs))
        if not isinstance(found, torch.Tensor) or found.ndim > 0:
            raise Unsupported(f"score_mod: aten.{name} of more than scalars is not translated")
        out = torch.empty((), dtype=found.dtype, device=NO_DATA)
        number = translate.node_of(self, name, kind_of(out.dtype), args, kwargs)
        self.traced[id(out)] = out, number
        return out

    def outside(self, function, inputs, args, kwargs):
        """An operation on captured tensors, or on numbers, alone: torch computes it."""
        if kwargs.get("device") == NO_DATA:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        out = function(*args, **kwargs)
        # lift_fresh is how torch.tensor(number) ends.
        of_numbers = all(id(t) in self.made for t in inputs) or "lift_fresh" in str(function)
        self.is_fixed &= of_numbers
        self.learns |= any(t.requires_grad for t in inputs)
        for tensor in flattened(out) if of_numbers else ():
            if isinstance(tensor, torch.Tensor):
                self.made[id(tensor)] = tensor
        return out

    def index(self, tensor, indices):
        row = self.what(tensor)
        if row is None:
            row = Row(self.number_of(tensor), [])
        elif not isinstance(row, Row):
            raise Unsupported("score_mod: aten.index of a scalar is not translated")
        before = [] if row is None else row.indices
        if any(i is None or i.ndim > 0 for i in indices):
            raise Unsupported("score_mod: aten.index by more than scalars is not translated")
        numbers = [*before, *(self.scalar(i, INT) for i in indices)]
        captured = self.tensors[row.tensor]
        rest = captured.shape[len(numbers) :]
        out = torch.empty(rest, dtype=captured.dtype, device=NO_DATA)
        if rest:
            self.traced[id(out)] = out, Row(row.tensor, numbers)
        else:
            load = self.graph.load(row.tensor, kind_of(captured.dtype), numbers)
            self.traced[id(out)] = out, load
        return out

    def scalar(self, value, kind=None):
        """The number of the node of an argument: traced, captured, or a number of Python."""
        number = self.what(value) if isinstance(value, torch.Tensor) else None
        if isinstance(number, Row):
            raise Unsupported("score_mod: computes with a row of a captured tensor; index it whole")
        if number is None and isinstance(value, torch.Tensor):
            if value.ndim > 0:
                raise Unsupported(
                    "score_mod: computes with a whole captured tensor of shape "
                    f"{tuple(value.shape)}; index it by h, q_idx, ..."
                )
            if id(value) in self.made:
                number = self.graph.constant(value.item())
            else:
                number = self.graph.load(self.number_of(value), kind_of(value.dtype), ())
        elif number is None:
            if not isinstance(value, (bool, int, float)):
                raise Unsupported(f"score_mod: computes with a {type(value).__name__}")
            number = self.graph.constant(value)
        return number if kind is None else self.graph.to(kind, number)

    def number_of(self, tensor):
        """Of a captured tensor."""
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            kind = "nested" if tensor.is_nested else tensor.layout
            kind = tensor.dtype if tensor.is_quantized else kind
            raise Unsupported(f"score_mod: a captured tensor that is {kind}; expected a dense one")
        if tensor.ndim > ALL_DIMS:
            raise Unsupported(
                f"score_mod: a captured tensor of {tensor.ndim} dimensions; expected {ALL_DIMS}"
                " at most"
            )
        if tensor.numel() == 0:
            raise Unsupported("score_mod: a captured tensor without elements")
        if tensor.is_complex() or tensor.device == NO_DATA:
            raise Unsupported(f"score_mod: a captured tensor of {tensor.dtype} on {tensor.device}")
        for number, known in enumerate(self.tensors):
            if known is tensor:
                return number
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def function_of(self, result):
        if isinstance(result, torch.Tensor) and result.ndim > 0:
            raise Unsupported(f"score_mod: returned shape {tuple(result.shape)}, expected a scalar")
        number = self.graph.to(FLOAT, self.scalar(result))
        types = (*(t.dtype for t in self.tensors),)
        return Function(self.graph, number, types, self.is_fixed), self.tensors


def flattened(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flattened(item)
    elif isinstance(value, dict):
        yield from flattened(list(value.values()))
    else:
        yield value


def with_ones(value):
    """The same arguments, tensors replaced by ones of their shapes and types on the CPU: what the
    result's are is asked of these. Of tensors without data torch's compiler is asked, whose import
    takes seconds; and integers divide by one."""
    if isinstance(value, (list, tuple)):
        return type(value)(with_ones(item) for item in value)
    if isinstance(value, dict):
        return {name: with_ones(item) for name, item in value.items()}
    if isinstance(value, torch.Tensor):
        return torch.ones(value.shape, dtype=value.dtype, device="cpu")
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value

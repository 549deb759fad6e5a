# SPDX-License-Identifier: Apache-2.0
"""Types of functions that return a tensor, or more where a flag asks for it; and their forms for
packed tensors.

Such a function annotates its flag by the value that returns a tensor, Literal[False]. Type checkers
see the result of other values as Any.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import torch
from torch import Tensor

from fa3._options import shows

Window = Sequence[int | None] | None  # (left, right) in keys; None and -1 are unbounded
P = ParamSpec("P")
Function = TypeVar("Function")


class WithProbs(Protocol[P]):
    __name__: str

    @overload
    def __call__(self, *arguments: P.args, **named: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, *arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...


class QkvPacked(Protocol[P]):
    __name__: str

    @overload
    def __call__(self, qkv: Tensor, *arguments: P.args, **named: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, *arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...


class KvPacked(Protocol[P]):
    __name__: str

    @overload
    def __call__(self, q: Tensor, kv: Tensor, *arguments: P.args, **named: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, *arguments: Any, return_attn_probs: bool, **named: Any) -> Any: ...


class WithLse(Protocol[P]):
    __name__: str

    @overload
    def __call__(self, *arguments: P.args, **named: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, *arguments: Any, return_softmax_lse: bool, **named: Any) -> Any: ...


class WithLseOrAux(Protocol[P]):
    __name__: str

    @overload
    def __call__(self, *arguments: P.args, **named: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, *arguments: Any, return_lse: bool, **named: Any) -> Any: ...
    @overload
    def __call__(self, *arguments: Any, return_aux: Any, **named: Any) -> Any: ...


def with_probs(function: Callable[P, Any]) -> WithProbs[P]:
    return shown(function, return_attn_probs=bool)


def with_lse(function: Callable[P, Any]) -> WithLse[P]:
    return shown(function, return_softmax_lse=bool)


def with_lse_or_aux(function: Callable[P, Any]) -> WithLseOrAux[P]:
    return shown(function, return_lse=bool, return_aux=Any)


def shown(function, **flags):
    """The function, whose flags help() and the reference show as what they may be."""
    function.__annotations__ |= {**flags, "return": Any}
    return function


def without_gradients(function: Function) -> Function:
    return torch.no_grad()(function)


def packed_forms(
    function: WithProbs[Concatenate[Tensor, Tensor, Tensor, P]],
) -> tuple[QkvPacked[P], KvPacked[P]]:
    """`function` for qkv (.., 3, h, d), and for q and kv (.., 2, h, d), stacked before heads."""
    tail = list(inspect.signature(function).parameters.values())[3:]

    @shows(tail)
    def of_qkv(qkv: Tensor, *arguments, **named) -> Any:
        return function(*qkv.unbind(-3), *arguments, **named)

    @shows(tail)
    def of_kv(q: Tensor, kv: Tensor, *arguments, **named) -> Any:
        return function(q, *kv.unbind(-3), *arguments, **named)

    for form, name in ((of_qkv, "qkvpacked"), (of_kv, "kvpacked")):
        form.__name__ = form.__qualname__ = function.__name__.replace("_func", f"_{name}_func")
        form.__module__ = function.__module__
        form.__doc__ = f"{function.__name__} of tensors stacked before the heads."
    return of_qkv, of_kv

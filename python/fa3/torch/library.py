# SPDX-License-Identifier: Apache-2.0
"""How an operator torch.ops.fa3.* enters torch's dispatcher, and what its gradient rests on.

Plain define + impl: a Python kernel behind one dispatch, the cheapest boundary that torch has for
code that is not compiled against it. Each operator has four kernels: one for memory of the CPU and
of CUDA, one for shapes alone (meta, compilers), and one under autograd's keys, which records the
call, or refuses it, before it goes on below autograd.
"""

from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, is_grad_enabled

# autograd.Function.apply takes the levels of torch.func apart itself, for which it asks for a form
# of Function that costs 50 us more a call. A kernel under autograd's keys is on one level already.
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from fa3.errors import InvalidArgument, Unsupported
from fa3.torch.checks import refuse_tangents

KEYS = "CPU", "CUDA"

# An operator gets the memory that the caller passed, strides included.
KEEP_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)

library = torch.library.Library("fa3", "DEF")
below_autograd = torch._C._AutoDispatchBelowAutograd


class Function(_SingleLevelFunction):
    """An autograd.Function for kernels under autograd's keys.

    Its forward calls other operators inside of outer_levels_record().
    """

    # What compiled autograd asks of every Function.
    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @classmethod
    def apply(cls, *arguments):
        if not torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)
        with enable_single_level_autograd_function():
            return super().apply(*arguments)


@contextmanager
def outer_levels_record():
    """Turns on what apply() turns off for a forward, so that a level of torch.func loses nothing.

    An operator goes from the innermost level to the outer ones, each of which records it anew.
    """
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def define(name, schema, kernel, shapes, record):
    """torch.ops.fa3.<name>.default. shapes: the kernel for tensors without memory.

    record(op, *arguments): the kernel under autograd's keys.
    """
    library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag, KEEP_STRIDES))
    op = getattr(torch.ops.fa3, name).default  # the overload: attribute chains cost time per call

    def recorded(*arguments):
        return record(op, *arguments)

    def shapes_of(*arguments):
        refuse_partly_meta(*arguments)
        return shapes(*arguments)

    for key in KEYS:
        library.impl(name, kernel, key)
    library.impl(name, recorded, "Autograd")
    torch.library.register_fake(f"fa3::{name}", shapes_of, lib=library)
    return op


def recorded_by(function):
    """A `record` of define(): the autograd Function records calls that need a gradient.

    Its forward gets (ctx, run, *arguments), where run(*arguments) is the call below autograd.
    """

    def record(op, *arguments):
        if not needs_gradient(*arguments):
            return unrecorded(op, *arguments)
        is_nested = torch._C._are_functorch_transforms_active()
        run = unrecorded_on_this_level if is_nested else unrecorded
        return function.apply(partial(run, op), *arguments)

    return record


def unrecorded(op, *arguments):
    with below_autograd():
        return op(*arguments)


def unrecorded_on_this_level(op, *arguments):
    with outer_levels_record():
        return unrecorded(op, *arguments)


def needs_gradient(*arguments):
    """Whether autograd would record a call with these arguments."""
    if forward_ad._current_level >= 0:
        refuse_tangents(*arguments)
    if is_grad_enabled():
        for argument in arguments:
            if isinstance(argument, Tensor) and argument.requires_grad:
                return True
    return False


def refuse_gradients(reason, **tensors):
    """Refuses what needs a gradient, by name, where there is none."""
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and needs_gradient(tensor):
            raise InvalidArgument(
                f"{name}: expected a tensor that needs no gradient, {reason}; use "
                "torch.no_grad(), or detach()"
            )


def written(*tensors):
    """Tells autograd that tensors have been written in place: what it saved of them is gone."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


class NoSecondDerivative(Function):
    """(run, *arguments) -> run(*arguments), with edges to the arguments and a backward that raises.

    A gradient without such edges is a constant to torch: second derivatives would be zero.
    """

    @staticmethod
    def forward(ctx, run, *arguments):
        return run(*arguments)

    @staticmethod
    def backward(ctx, *gradients):
        raise Unsupported(
            "no second derivatives of attention (hessian, gradient penalty); compute in float64 on "
            "the CPU, or use torch's math attention"
        )


record_gradient = recorded_by(NoSecondDerivative)  # of operators that are gradients themselves


def refuse_partly_meta(*arguments):
    """One tensor on meta sends the whole call to the kernel of shapes, which computes nothing."""
    kinds = [a.device.type for a in arguments if isinstance(a, torch.Tensor)]
    if "meta" in kinds and set(kinds) != {"meta"}:
        raise InvalidArgument(
            f"q, k, v, ...: expected all tensors on meta or none, got {', '.join(kinds)}"
        )

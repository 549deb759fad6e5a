# SPDX-License-Identifier: Apache-2.0
"""fa3.torch.attention: the operators with autograd and autocast around them."""

import torch
from torch.autograd import forward_ad

from fa3._arrays import refuse_negated
from fa3._options import (
    BOTH_PASSES,
    DEFAULTS,
    SCORES,
    TENSORS,
    TYPES,
    Options,
    in_order,
    takes_options,
)
from fa3.errors import InvalidArgument, Unsupported
from fa3.torch import operators
from fa3.torch.checks import refuse_other_than_tensor, refuse_tangents

# Places among the options: tensors stand together, sink first.
SINK = len(SCORES)
TENSORS_END = SINK + len(TENSORS)


class Attention(torch.autograd.Function):
    """(q, k, v, *options of both passes) -> (out, lse)."""

    # In one function, not with setup_context: torch binds the arguments of that form with
    # inspect.signature, which costs more than everything else in a call.
    @staticmethod
    def forward(ctx, q, k, v, *options):
        out, lse = operators.forward(q, k, v, *options)
        ctx.set_materialize_grads(False)  # most losses do not read the LSE
        ctx.save_for_backward(q, k, v, out, lse, *options[SINK:TENSORS_END])
        ctx.options = options[:SINK], options[TENSORS_END:]
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        before, behind = ctx.options
        options = (*before, *tensors, *behind)
        do = torch.zeros_like(out) if do is None else do
        dq, dk, dv, dsink = operators.backward(do, q, k, v, out, lse, *options, dlse=dlse)
        gradients = [None for _ in options]
        if tensors and tensors[0] is not None:
            gradients[SINK] = dsink
        return dq, dk, dv, *gradients


@takes_options()
def attention(q, k, v, *, out=None, return_lse=False, **options):
    """fa3.attention for torch tensors: same arguments, differentiable in q, k, v and sink.

    Traceable by torch.compile(fullgraph=True); under autocast, q, k and v become the autocast type.
    The LSE is differentiable too (a z-loss, a merge); second and forward-mode derivatives are not.
    Gradients are also bitwise repeatable under torch.use_deterministic_algorithms(True).
    """
    return attend(q, k, v, out, return_lse, in_order("attention", options))


def attend(q, k, v, out, return_lse, options):
    """attention() with its options as one list, see in_order()."""
    sink = options[SINK] if len(options) > SINK else None
    if getattr(forward_ad, "_current_level", 0) >= 0:
        refuse_tangents(q, k, v, sink)
    if not (isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        refuse_other_than_tensor("k", k)
        refuse_other_than_tensor("v", v)
    if out is not None:
        refuse_other_than_tensor("out", out)
        refuse_negated(out, "out")
    device_type = q.device.type
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        q, k, v = to_autocast_type(device_type, q, k, v)
    wants_gradient = torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (isinstance(sink, torch.Tensor) and sink.requires_grad)
    )
    if wants_gradient:
        refuse_gradient(k, out, options)
        if torch.are_deterministic_algorithms_enabled():
            options = Options(*options)._replace(deterministic=True)[: len(BOTH_PASSES)]
    elif out is None and len(options) <= SINK and operators.is_plain_call(q, k, v):
        if return_lse:
            return operators.forward_kernel(q, k, v, *options)
        return operators.forward_without_lse(q, k, v, options)
    try:
        if wants_gradient:
            result = Attention.apply(q, k, v, *options)
        elif out is None:
            result = operators.forward(q, k, v, *options)
        else:
            result = out, operators.forward_out(q, k, v, out, *options)
    except RuntimeError as error:
        if type(error) is RuntimeError:
            refuse_wrong_types(options)
        raise
    return result if return_lse else result[0]


def refuse_gradient(k, out, options):
    """Refuses calls that want a gradient where there is none."""
    if k.dtype == torch.float8_e4m3fn:
        raise Unsupported(
            "k, v: no gradients through float8_e4m3fn; use torch.no_grad(), or q.detach()"
        )
    if out is not None:
        raise InvalidArgument(
            "out: expected None for tensors that need a gradient; use torch.no_grad()"
        )
    names = list(DEFAULTS)[len(BOTH_PASSES) : len(options)]
    if names:
        given = [name for name in names if getattr(Options(*options), name) is not DEFAULTS[name]]
        raise Unsupported(
            f"{', '.join(given)}: no gradient goes through a cache or quantized tensors; "
            "use torch.no_grad()"
        )


def refuse_wrong_types(options):
    """Names the argument that the dispatcher has refused in terms of its schema."""
    for (name, kind), value in zip(TYPES.items(), options, strict=False):
        name = {"window_left": "window[0]", "window_right": "window[1]"}.get(name, name)
        if value is None and kind.endswith("?"):
            continue
        if kind == "Tensor?":
            refuse_other_than_tensor(name, value)
        elif kind == "bool":
            if not isinstance(value, (bool, int)):
                raise TypeError(f"{name}: expected True or False, got {value!r}")
        elif kind.startswith("float"):
            if not hasattr(value, "__float__"):
                raise TypeError(f"{name}: expected a number, got {value!r}")
        elif not hasattr(value, "__index__"):
            raise TypeError(f"{name}: expected an integer, got {value!r}")
        elif not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"{name}: expected an integer of 64 bits, got {value}")


def to_autocast_type(device_type, *tensors):
    """As torch's own attention does: every floating point type except float64 is converted."""
    dtype = torch.get_autocast_dtype(device_type)
    kept = (torch.float64, torch.float8_e4m3fn)  # without its scale, e4m3 is not a number
    return (t if t.dtype in kept else t.to(dtype) for t in tensors)

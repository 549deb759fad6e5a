# SPDX-License-Identifier: Apache-2.0
"""The operators with autograd and autocast around them.

torch.ops.fa3.{forward, forward_out, backward} get their kernels under autograd's keys here.
"""

import sys

import torch
from torch import Tensor

from fa3._arrays import refuse_negated
from fa3._options import (
    BEHIND_SCORES,
    BOTH_PASSES,
    DEFAULTS,
    OF_SCORES,
    OTHERS,
    TYPES,
    Options,
)
from fa3.errors import InvalidArgument, Unsupported
from fa3.torch import onnx, operators, textbook
from fa3.torch.checks import (
    number_now,
    refuse_numbers_that_learn,
    refuse_other_than_tensor,
    refuse_without_strides,
)
from fa3.torch.dropout import seeded
from fa3.torch.library import (
    Function,
    define,
    needs_gradient,
    record_gradient,
    recorded_by,
    refuse_gradients,
    unrecorded,
    written,
)

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)

NUMBERS = {type(None), bool, int, float}
NO_GRADIENTS = Options(*(None for _ in DEFAULTS))


class Attention(Function):
    """(run, q, k, v, *options of both passes) -> (out, lse) or (out, lse, max_logit).

    run(q, k, v, *options) computes.
    """

    @staticmethod
    def forward(ctx, run, q, k, v, *options):
        refuse_without_gradient(k, options)
        operators.refuse_without_backward(q, k, v, options)
        out, lse, *max_logit = run(q, k, v, *options)
        ctx.mark_non_differentiable(*max_logit)
        ctx.set_materialize_grads(False)  # most losses do not read the LSE
        named = Options(*options)
        ctx.save_for_backward(q, k, v, out, lse, *named.tensors())
        ctx.options, ctx.num_options = named.with_tensors(NO_GRADIENTS.tensors()), len(options)
        return out, lse, *max_logit

    @staticmethod
    def backward(ctx, do, dlse, *_):
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        dq, dk, dv, of_options = run_gradients(do, q, k, v, out, lse, ctx.options, tensors, dlse)
        return None, dq, dk, dv, *of_options[: ctx.num_options]


def run_gradients(do, q, k, v, out, lse, options, tensors, dlse):
    """dq, dk, dv, and gradients of the options, by name, inside of a Function's backward.

    do and dlse may be None, which is zero. Where its graph breaks, Dynamo of torch 2.11 rebuilds a
    named tuple that it has made as an empty one: so the options take their tensors here, and are
    not read behind the backward.
    """
    options = options.with_tensors(tensors)
    has_sink, has_gate = options.sink is not None, options.gate is not None
    if torch.are_deterministic_algorithms_enabled():
        options = options._replace(deterministic=True)
    do = torch.zeros_like(out) if do is None else do
    arguments = do, q, k, v, out, lse, *options[: len(BOTH_PASSES)], dlse
    if torch._C._are_functorch_transforms_active():
        results = backward(*arguments)  # the dispatcher, which takes all levels apart
    else:
        run = record_gradient if torch.is_grad_enabled() else unrecorded
        results = run(backward, *arguments)
    dq, dk, dv, dsink, dgate = results
    of_options = NO_GRADIENTS._replace(
        sink=dsink if has_sink else None,
        gate=dgate if has_gate else None,
    )
    return dq, dk, dv, of_options


def record_forward_out(op, q, k, v, out, *options):
    if needs_gradient(q, k, v, out, *options):
        named = Options(*options)
        inputs = {"q": q, "k": k, "v": v, "sink": named.sink, "gate": named.gate, "out": out}
        refuse_gradients("since out= is written in place", **inputs)
    refuse_negated(out, "out")
    written(out)
    return unrecorded(op, q, k, v, out, *options)


forward = define(
    "forward",
    operators.SCHEMAS["forward"],
    operators.forward_kernel,
    operators.forward_shapes,
    recorded_by(Attention),
)
forward_max_logit = define(
    "forward_max_logit",
    operators.SCHEMAS["forward_max_logit"],
    operators.forward_max_logit_kernel,
    operators.forward_max_logit_shapes,
    recorded_by(Attention),
)
forward_out = define(
    "forward_out",
    operators.SCHEMAS["forward_out"],
    operators.forward_out_kernel,
    operators.forward_out_shapes,
    record_forward_out,
)
backward = define(
    "backward",
    operators.SCHEMAS["backward"],
    operators.backward_kernel,
    operators.backward_shapes,
    record_gradient,
)


def attend(q, k, v, out, return_lse, options, generator=None, return_max_logit=False):
    """attention() of public.py with its options as one list, see in_order()."""
    if not (isinstance(k, Tensor) and isinstance(v, Tensor)):
        refuse_other_than_tensor("k", k)
        refuse_other_than_tensor("v", v)
    if out is not None:
        refuse_other_than_tensor("out", out)
    plain = operators.is_plain_call(q, k, v)
    if not plain or operators.is_any_autocast_enabled():
        q, k, v = to_autocast_type(q, k, v)
    options = seeded(q, options, generator)
    if q.dtype is torch.float64 and textbook.is_for(q, k, v):
        # Gradients flow into numbers, too.
        return in_float64(q, k, v, out, return_lse, return_max_logit, options)
    if options and not NUMBERS.issuperset(map(type, [*options[OF_SCORES], *options[OTHERS]])):
        named = Options(*options)
        refuse_numbers_that_learn(softcap=named.softcap, scale=named.scale)
        options = numbers_now(options)
    if plain:
        others = [] if out is None else [out]
        others += [x for x in options[BEHIND_SCORES] if type(x) not in NUMBERS]
        plain = not others or operators.are_plain(others)
        if plain and not needs_gradient(q, k, v, *others):
            if out is not None:
                written(out)
            return operators.run_plainly(q, k, v, out, return_lse, return_max_logit, options)
    if not plain:
        refuse_without_strides(q=q, k=k, v=v)
        if "torch.distributed.tensor" in sys.modules:
            learn_sharding(q)
        if onnx.is_exporting():
            return onnx.attention(q, k, v, options, return_lse, return_max_logit)
    if out is not None and return_max_logit:
        raise Unsupported(
            "out: expected None with return_max_logit where something watches the call"
        )
    try:
        if return_max_logit:
            run = operators.forward_max_logit_kernel
            given = q, k, v, *options
            result = Attention.apply(run, *given) if plain else forward_max_logit(*given)
        elif out is not None:
            result = out, forward_out(q, k, v, out, *options)
        elif plain:
            result = Attention.apply(operators.forward_kernel, q, k, v, *options)
        else:
            result = forward(q, k, v, *options)
    except RuntimeError as error:
        if type(error) is RuntimeError:
            refuse_wrong_types(options)
        raise
    if return_max_logit and not return_lse:
        return result[0], result[2]
    return result if return_lse else result[0]


def numbers_now(options):
    """The options, of which those that are numbers no longer change."""
    return [
        x if type(x) in NUMBERS or kind == "Tensor?" else number_now(x)
        for kind, x in zip(TYPES.values(), options, strict=False)
    ]


def learn_sharding(tensor):
    """Tells DTensor how the operators are cut, with the first one that is seen."""
    if isinstance(tensor, sys.modules["torch.distributed.tensor"].DTensor):
        import fa3.torch.sharding  # noqa: F401


def in_float64(q, k, v, out, return_lse, return_max_logit, options):
    if out is not None:
        raise Unsupported("out: not with float64, whose attention is a textbook's")
    out, lse = textbook.attention(q, k, v, options)
    found = (out, lse) if return_lse else (out,)
    if return_max_logit:
        found = *found, textbook.max_logit(q, k, options)
    return found if len(found) > 1 else out


def gradients(do, q, k, v, out, lse, dlse, options):
    """attention_backward() of torch tensors."""
    named = {"do": do, "k": k, "v": v, "out": out, "lse": lse}
    for name, tensor in named.items():
        refuse_other_than_tensor(name, tensor)
    if dlse is not None:
        refuse_other_than_tensor("dlse", dlse)
    named = Options(*seeded(q, options, None))
    of_both_passes = named[: len(BOTH_PASSES)]
    try:
        dq, dk, dv, dsink, dgate = backward(do, q, k, v, out, lse, *of_both_passes, dlse)
    except RuntimeError as error:
        if type(error) is RuntimeError:
            refuse_wrong_types(options)
        raise
    sink, gate = named.sink, named.gate
    return dq, dk, dv, None if sink is None else dsink, None if gate is None else dgate


def refuse_without_gradient(k, options):
    """Refuses calls that have no gradient."""
    if k.dtype in FLOAT8:
        name = str(k.dtype).removeprefix("torch.")
        raise Unsupported(f"k, v: no gradients through {name}; use torch.no_grad(), or q.detach()")
    if len(options) > len(BOTH_PASSES):
        names = list(DEFAULTS)[len(BOTH_PASSES) : len(options)]
        given = [x for x in names if getattr(Options(*options), x) is not DEFAULTS[x]]
        if given:
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
            if not hasattr(value, "__float__") or getattr(value, "shape", ()) != ():
                raise TypeError(f"{name}: expected a number, got {value!r}")
        elif not hasattr(value, "__index__"):
            raise TypeError(f"{name}: expected an integer, got {value!r}")
        elif not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"{name}: expected an integer of 64 bits, got {value}")


def to_autocast_type(q, *others):
    """As torch's own attention does: every floating point type except float64 is converted."""
    device_type = "cuda" if q.is_cuda else q.device.type
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return q, *others
    dtype = torch.get_autocast_dtype(device_type)
    kept = (torch.float64, *FLOAT8)  # without its scale, float8 is not a number
    # to() takes 2 us, to return a tensor of that type itself.
    return [t if t.dtype is dtype or t.dtype in kept else t.to(dtype) for t in (q, *others)]

# SPDX-License-Identifier: Apache-2.0
"""Arguments that the functions for torch tensors refuse before torch would misread them."""

import math
import sys

import torch
from torch.autograd import forward_ad

from fa3.errors import InvalidArgument, Unsupported


def refuse_other_than_tensor(name, value):
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, as the others are, got {type(value)!r}")


def refuse_wrong_numbers(scale=None, softcap=None, causal=None):
    """What the library refuses of numbers that it does not see."""
    if isinstance(scale, torch.Tensor) or isinstance(softcap, torch.Tensor):
        refuse_numbers_that_learn(scale=scale, softcap=softcap)
    if causal is not None and not isinstance(causal, (bool, int)):
        raise TypeError(f"causal: expected True or False, got {causal!r}")
    for name, number in (("scale", scale), ("softcap", softcap)):
        if number is not None and not hasattr(number, "__float__"):
            raise TypeError(f"{name}: expected a number, got {number!r}")
    if scale is not None and not 0 < float(scale) < math.inf:
        raise InvalidArgument(
            f"scale: expected a finite number > 0, or None for head_dim^-0.5, got {scale}"
        )
    if softcap is not None and not 0 <= float(softcap) < math.inf:
        raise InvalidArgument(f"softcap: expected 0 (off) or a finite number > 0, got {softcap}")


def refuse_numbers_that_learn(**numbers):
    """A number that is a tensor is read, and its gradient would be lost without a word."""
    for name, value in numbers.items():
        if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
            raise Unsupported(
                f"{name}: expected a number, got a tensor that needs a gradient, which does not "
                f"flow into it; {INSTEAD_OF_LEARNING.get(name, '')}detach() it"
            )


INSTEAD_OF_LEARNING = {
    "scale": "multiply q by it, or ",
    "softcap": "use fa3.flex_attention, or ",
}


def number_now(value):
    """The number that a tensor, an array or a NumPy scalar holds: who wrote another one into it
    before the backward would change the gradient. What holds several is left to be refused."""
    is_one = hasattr(value, "item") and math.prod(value.shape) == 1
    return value.item() if is_one else value


def refuse_without_strides(**tensors):
    """Refuses tensors whose elements do not lie in one memory with strides: nested and sparse ones.

    A nested tensor of sequences is what cu_seqlens is for.
    """
    for name, tensor in tensors.items():
        if tensor.is_nested:
            instead = "pass its to_padded_tensor(0.0)"
            if name in ("q", "k", "v"):
                side = "q" if name == "q" else "k"
                instead = f"pass its values(), and its offsets() in int32 as cu_seqlens_{side}"
            raise InvalidArgument(
                f"{name}: expected a tensor with strides, got a nested one; {instead}"
            )
        if tensor.layout != torch.strided:
            raise InvalidArgument(
                f"{name}: expected a tensor with strides, got one of {tensor.layout}; pass its "
                "to_dense()"
            )


def refuse_sharded(*tensors):
    """For calls that are more than one operator, or one that nobody says how to cut."""
    sharded = sys.modules.get("torch.distributed.tensor")
    if sharded is not None and any(isinstance(x, sharded.DTensor) for x in tensors):
        raise Unsupported(
            "DTensor: expected plain tensors beside FP8, score_mod, mask_mod, bias and "
            "alibi_slopes; call it on the parts, such as by "
            "torch.distributed.tensor.experimental.local_map"
        )


def refuse_transforms():
    """What torch.func takes apart comes back in wrappers without memory, and would be kept."""
    if torch._C._are_functorch_transforms_active():
        raise Unsupported(
            "score_mod, mask_mod, bias, alibi_slopes: not inside of torch.func's transforms (grad, "
            "vmap, ...); use torch.autograd, or a fa3.masks.BlockMask as the only mask"
        )


def refuse_tangents(*arguments):
    """fa3 has no forward-mode derivatives, and torch would silently take them for zero."""
    if any(isinstance(a, torch.Tensor) and may_have_tangent(a) for a in arguments):
        raise Unsupported(
            "no forward-mode derivative here (torch.func.jvp, torch.autograd.forward_ad)"
        )


def may_have_tangent(tensor):
    try:
        return forward_ad.unpack_dual(tensor).tangent is not None
    except RuntimeError:  # under vmap torch does not say
        return True

# SPDX-License-Identifier: Apache-2.0
"""The two passes as flash_attn's private functions want them, and what they accept in tensors.

_passes_of_fa2.py and _passes_of_fa3.py have the functions. torch.ops.fa3.backward_out is the
backward that writes into the caller's dq, dk and dv.
"""

import torch
from torch.nn.functional import pad

import fa3
from fa3._options import OF_BOTH_PASSES, in_order
from fa3.compat._arguments import int32, rows_of_stride_1
from fa3.errors import Unsupported
from fa3.torch import operators
from fa3.torch.library import define, unrecorded, written


def rows(*tensors):
    """The tensors; one whose last dimension is strided is copied, as the originals do."""
    return [rows_of_stride_1(x) for x in tensors]


def whole_chunks(*tensors):
    """The tensors, with columns of zeros up to a multiple of 8, as flash_attn 2 makes them.

    A GPU reads 16 bytes of a row at once. The scale is to be that of the columns before.
    """
    return [
        pad(x, (0, -x.shape[-1] % 8)) if x is not None and x.shape[-1] % 8 else x for x in tensors
    ]


def indices(*tensors):
    """Tensors of lengths, offsets and pages as fa3 reads them."""
    return [int32(x) for x in tensors]


def backward_out_kernel(do, q, k, v, out, lse, dq, dk, dv, *options):
    operators.run_backward(do, q, k, v, out, lse, None, (dq, dk, dv, None), options)


def backward_out_shapes(*arguments):
    return None


def record_backward_out(op, *arguments):
    """Nothing: gradients are written in place, so they have no gradient, as in the originals."""
    unrecorded(op, *arguments)
    written(*arguments[6:9])


backward_out = define(
    "backward_out",
    "(Tensor do, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor(a!) dq, "
    f"Tensor(b!) dk, Tensor(c!) dv, {operators.BACKWARD_OPTIONS}) -> ()",
    backward_out_kernel,
    backward_out_shapes,
    record_backward_out,
)


class NoGradient(torch.autograd.Function):
    """(sentence, out, lse, q, k, v) -> (out, lse), whose backward refuses with the sentence.

    The exception itself would keep the frames that it came through, and with them every tensor.
    """

    @staticmethod
    def forward(ctx, sentence, out, lse, *inputs):
        ctx.sentence = sentence
        return out.view_as(out), lse.view_as(lse)

    @staticmethod
    def backward(ctx, *gradients):
        raise Unsupported(ctx.sentence)


def attention(q, k, v, return_lse, named):
    """fa3.attention with options by name; what has no gradient is refused in backward(), as late
    as in the originals."""
    q, k, v = rows(q, k, v)
    try:
        return fa3.attention(q, k, v, return_lse=return_lse, **named)
    except Unsupported as refusal:
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))):
            raise
        with torch.no_grad():
            result = fa3.attention(q, k, v, return_lse=True, **named)
        out, lse = NoGradient.apply(str(refusal), *result, q, k, v)
        return (out, lse) if return_lse else out


def forward(q, k, v, named):
    """(out, lse) of a call."""
    return attention(q, k, v, True, named)


def backward(dout, q, k, v, out, lse, dq, dk, dv, named):
    """Writes the gradients into dq, dk and dv; those that are None are made. Returns the three."""
    dout, q, k, v, out = rows(dout, q, k, v, out)
    dq, dk, dv = (
        torch.empty_like(x) if gradient is None else gradient
        for gradient, x in ((dq, q), (dk, k), (dv, v))
    )
    options = in_order("attention", named, OF_BOTH_PASSES)
    backward_out(dout, q, k, v, out, lse.contiguous(), dq, dk, dv, *options)
    return dq, dk, dv


def no_softmax_d(lse):
    """In place of softmax_d: the sum of dout * out over columns stays in fa3's workspace."""
    return lse.new_empty(0)

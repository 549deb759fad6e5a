# SPDX-License-Identifier: Apache-2.0
"""The two passes as flash_attn's private functions want them, and what they accept in tensors.

_passes_of_fa2.py and _passes_of_fa3.py have the functions. torch.ops.fa3.backward_out is the
backward that writes into the caller's dq, dk and dv.
"""

import torch

import fa3
from fa3._options import OF_BOTH_PASSES, in_order
from fa3.compat._arguments import int32, rows_of_stride_1
from fa3.torch import operators
from fa3.torch.library import define, unrecorded, written


def rows(*tensors):
    """The tensors; one whose last dimension is strided is copied, as the originals do."""
    return [rows_of_stride_1(x) for x in tensors]


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


def forward(q, k, v, named):
    """(out, lse) of fa3.attention with options by name."""
    return fa3.attention(*rows(q, k, v), return_lse=True, **named)


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

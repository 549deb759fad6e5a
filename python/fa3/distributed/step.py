# SPDX-License-Identifier: Apache-2.0
"""One step of a ring: local queries against the keys that have just come, for rings of one's own.

Without autograd. run.py makes a ring of the calls below these.
"""

import torch

from fa3._options import OF_BOTH_PASSES, in_order, takes_options
from fa3.torch.operators import new_rows, resolved, result_shapes, run_backward, run_forward


@takes_options(OF_BOTH_PASSES)
def forward_step(q, k, v, partial=None, *, out=None, lse=None, out_dtype=torch.float32, **options):
    """Attention over these keys and those of `partial`: what fa3.merge makes of both, in one pass.

    Args:
        q, k, v: as in fa3.attention.
        partial: (out, lse) of earlier steps in float32, over other keys of the same queries; None
            in the first step. Rows that see no key here keep what they had.
        out, lse: where the results go: also those of partial. None: new tensors.
        out_dtype: of a new out: float32 until the last step, which may round it to q's dtype.
        options: those of fa3.attention that have gradients.

    Returns:
        (out, lse).
    """
    shape, lse_shape = result_shapes(q, v)
    if out is None:
        out = new_rows(shape, out_dtype, q.device)
    if lse is None:
        lse = torch.empty(lse_shape, dtype=torch.float32, device=q.device)
    q, k, v = resolved(q, k, v)
    run_forward(q, k, v, out, lse, in_order("forward_step", options, OF_BOTH_PASSES), partial)
    return out, lse


@takes_options(OF_BOTH_PASSES)
def backward_step(
    do, q, k, v, out, lse, dq, dk, dv, *, dlse=None, accumulate_dq=False, accumulate_dkv=False,
    **options,
):  # fmt: skip
    """Writes what these keys give to the gradients, or adds it to what is there, in float32.

    Args:
        do, q, k, v: the gradient of out, and the step's tensors.
        out, lse: the results over all keys, out in q's dtype.
        dq, dk, dv: written, of the shapes of q, k and v, in q's dtype or float32. Float32 takes the
            CPU engine, or on H100 and H200 head dims to 128, without softcap and dropout.
        dlse: the gradient of lse; None: zero.
        accumulate_dq, accumulate_dkv: whether dq, and dk and dv, are added to.
        options: as in forward_step.
    """
    if dlse is None:
        # A call of one key takes its weights for 1, so no gradient, unless the LSE has one: here
        # the key may be one of several.
        dlse = torch.zeros_like(lse)
    named = in_order("backward_step", options, OF_BOTH_PASSES)
    gradients, accumulate = (dq, dk, dv, None), (accumulate_dq, accumulate_dkv)
    do, q, k, v, out, lse, dlse = resolved(do, q, k, v, out, lse, dlse)
    run_backward(do, q, k, v, out, lse, dlse, gradients, named, accumulate)

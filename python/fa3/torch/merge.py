# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.merge, and fa3.merge through it: training through attention over parts of the keys.

With weights w_i = exp(lse_i - lse):  out = sum_i w_i o_i, so
do_i = w_i do  and  dlse_i = w_i (dlse + sum_d do (o_i - out)).
"""

import torch

from fa3 import _calls
from fa3.torch import textbook
from fa3.torch.checks import refuse_other_than_tensor
from fa3.torch.library import Function, define, recorded_by
from fa3.torch.operators import threads_of


class Merge(Function):
    """(run, o_partial, lse_partial, num_threads) -> (out, lse)."""

    @staticmethod
    def forward(ctx, run, *arguments):
        out, lse = run(*arguments)
        ctx.save_for_backward(*arguments[:2], out, lse)
        return out, lse

    # Made of torch's own operators, so it has derivatives of its own.
    @staticmethod
    def backward(ctx, do, dlse):
        o_partial, lse_partial, out, lse = ctx.saved_tensors
        weight = (lse_partial - lse).where(lse_partial != lse, 0.0).exp()
        weight = weight.where(lse_partial != -torch.inf, 0.0)
        weight = weight / (lse_partial == torch.inf).sum(0).clamp(min=1)  # infinite ones share
        counts = weight != 0  # nothing is read of other partials
        rows = counts.transpose(-1, -2)[..., None]
        gain = ((o_partial - out).where(rows, 0.0) * do).sum(-1).transpose(-1, -2)
        d_o_partial = (weight.transpose(-1, -2)[..., None] * do).where(rows, 0.0)
        d_lse_partial = (weight * (dlse + gain)).where(counts, 0.0)
        return None, d_o_partial, d_lse_partial, *(None for _ in ctx.needs_input_grad[3:])


def kernel(o_partial, lse_partial, num_threads=0):
    return _calls.merge(o_partial, lse_partial, threads_of(o_partial, num_threads))


def shapes(o_partial, lse_partial, num_threads=0):
    return o_partial.new_empty(o_partial.shape[1:]), lse_partial.new_empty(lse_partial.shape[1:])


combine = define(
    "merge",
    "(Tensor o_partial, Tensor lse_partial, int num_threads=0) -> (Tensor out, Tensor lse)",
    kernel,
    shapes,
    recorded_by(Merge),
)


def merge(o_partial, lse_partial, num_threads=0):
    """fa3.merge of torch tensors."""
    refuse_other_than_tensor("lse_partial", lse_partial)
    if textbook.is_for(o_partial, lse_partial):
        return textbook.merge(o_partial, lse_partial)
    return combine(o_partial, lse_partial, num_threads)

# SPDX-License-Identifier: Apache-2.0
"""fa3.merge with autograd: training through attention over parts of the keys.

With weights w_i = exp(lse_i - lse):  out = sum_i w_i o_i, so
do_i = w_i do  and  dlse_i = w_i (dlse + sum_d do (o_i - out)).
"""

import torch
from torch.autograd import forward_ad

from fa3 import _calls
from fa3.torch.checks import refuse_other_than_tensor, refuse_tangents


class Merge(torch.autograd.Function):
    """(o_partial, lse_partial, num_threads) -> (out, lse)."""

    @staticmethod
    def forward(ctx, o_partial, lse_partial, num_threads):
        out, lse = _calls.merge(o_partial, lse_partial, num_threads)
        ctx.save_for_backward(o_partial, lse_partial, out, lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        o_partial, lse_partial, out, lse = ctx.saved_tensors
        weight = (lse_partial - lse).exp()
        infinite = lse_partial == torch.inf  # these share the row
        weight = torch.where(lse == torch.inf, infinite / infinite.sum(0), weight)
        counts = (weight != 0) & (lse != -torch.inf)  # else its out may be anything
        weight = weight.masked_fill(~counts, 0.0)
        gain = ((o_partial - out) * do).sum(-1).transpose(-1, -2).masked_fill(~counts, 0.0)
        return weight.transpose(-1, -2)[..., None] * do, weight * (dlse + gain), None


def merge(o_partial, lse_partial, num_threads):
    refuse_other_than_tensor("lse_partial", lse_partial)
    if getattr(forward_ad, "_current_level", 0) >= 0:
        refuse_tangents(o_partial, lse_partial)
    return Merge.apply(o_partial, lse_partial, num_threads)

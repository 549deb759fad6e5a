# SPDX-License-Identifier: Apache-2.0
"""Floating point operations of the operators, for torch.utils.flop_counter.FlopCounterMode.

Counted as torch counts scaled_dot_product_attention, so that the two can be compared: every score
of every sequence, masked or not. Forward: 2 products; backward: 5, one recomputes the scores.
"""

import logging

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fa3._options import BOTH_PASSES, Options
from fa3.torch import autograd as autograd  # defines torch.ops.fa3.*
from fa3.torch import fp8

# Without Triton the counter logs on import that it cannot count Triton kernels, which does not
# concern fa3.
counter_log = logging.getLogger("torch.utils.flop_counter")
counter_log.disabled = True
from torch.utils.flop_counter import register_flop_formula  # noqa: E402

counter_log.disabled = False


@register_flop_formula(torch.ops.fa3.forward, get_raw=True)
def forward_flops(q, k, v, *options, **_):
    return 2 * scores(q, k, Options(*options)) * (q.shape[-1] + v.shape[-1])


@register_flop_formula(torch.ops.fa3.forward_max_logit, get_raw=True)
def forward_max_logit_flops(q, k, v, *options, **_):
    return forward_flops(q, k, v, *options)


@register_flop_formula(torch.ops.fa3.forward_out, get_raw=True)
def forward_out_flops(q, k, v, out, *options, **_):
    return forward_flops(q, k, v, *options)


@register_flop_formula(torch.ops.fa3.forward_fp8, get_raw=True)
def forward_fp8_flops(*arguments, **_):
    call, options = fp8.Call(*arguments[: fp8.OWN]), arguments[fp8.OWN :]
    return forward_flops(call.q, call.k, call.v, *options)


@register_flop_formula(torch.ops.fa3.backward, get_raw=True)
def backward_flops(do, q, k, v, out, lse, *rest, **_):
    options = Options(*rest[: len(BOTH_PASSES)])
    return 2 * scores(q, k, options) * (3 * q.shape[-1] + 2 * v.shape[-1])


def scores(q, k, options):
    """heads * sum over the batch of seqlen_q * seqlen_k."""
    lengths_q = packed_lengths(q, options.cu_seqlens_q)
    lengths_k = packed_lengths(k, options.cu_seqlens_k)
    pages = options.page_table
    room = k.shape[1] if pages is None else pages.shape[1] * k.shape[1]
    if lengths_q is None:
        batch = q.shape[0] if lengths_k is None else len(lengths_k)
        lengths_q = [q.shape[1]] * batch
    if lengths_k is None:
        lengths_k = [room] * len(lengths_q)
    return q.shape[-2] * sum(a * b for a, b in zip(lengths_q, lengths_k, strict=True))


def packed_lengths(tensor, cu_seqlens):
    """Lengths of a packed tensor's sequences; None if it is not packed."""
    if cu_seqlens is None:
        return None
    if isinstance(cu_seqlens, FakeTensor) or cu_seqlens.is_meta:
        return [tensor.shape[0]] * (cu_seqlens.shape[0] - 1)  # no values: the upper bound
    return cu_seqlens.diff().tolist()

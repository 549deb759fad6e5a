# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.append, and fa3.append of torch tensors through it.

Caches are written in place, so no gradient goes through them; through the queries, which are only
turned, it does.
"""

import torch

from fa3 import _calls
from fa3._calls import Append
from fa3.torch.checks import refuse_other_than_tensor
from fa3.torch.library import (
    Function,
    define,
    needs_gradient,
    outer_levels_record,
    refuse_gradients,
    unrecorded,
    written,
)
from fa3.torch.operators import is_plain_call, threads_of

OPTIONAL = (
    *("cu_seqlens_new", "page_table", "batch_index", "rotary_cos", "rotary_sin"),
    *("first_position", "q", "cu_seqlens_q", "k_descale", "v_descale"),
)
TYPES = {
    "k_cache": "Tensor(a!)",
    "v_cache": "Tensor(b!)",
    **dict.fromkeys(OPTIONAL, "Tensor?"),
    "rotary_interleaved": "bool",
    "queries_share_position": "bool",
    "num_threads": "int",
}
ARGUMENTS = ", ".join(f"{TYPES.get(name, 'Tensor')} {name}" for name in Append._fields)


class Turned(Function):
    """(q, turned q, how) -> turned q, whose gradient is turned back."""

    @staticmethod
    def forward(ctx, q, turned, call):
        # Lengths of a cache change in place before the backward runs.
        positions = call.seqused if call.first_position is None else call.first_position
        ctx.save_for_backward(
            positions.clone(), call.rotary_cos, call.rotary_sin, call.cu_seqlens_q
        )
        ctx.how = call.rotary_interleaved, call.queries_share_position, call.num_threads
        with outer_levels_record():
            return turned.view_as(turned)

    @staticmethod
    def backward(ctx, gradient):
        positions, cos, sin, cu_seqlens_q = ctx.saved_tensors
        interleaved, share_position, num_threads = ctx.how
        batch, dim = len(positions), gradient.shape[-1]
        cache = [gradient.new_empty((batch, 1, 1, dim)) for _ in range(2)]
        nothing = gradient.new_empty((batch, 0, 1, dim))
        call = Append(
            *cache,
            nothing,
            nothing,
            cu_seqlens_new=None,
            seqused=torch.zeros_like(positions),
            page_table=None,
            batch_index=None,
            rotary_cos=cos,
            rotary_sin=None if sin is None else -sin,
            first_position=positions,
            q=gradient if gradient.stride(-1) == 1 else gradient.contiguous(),
            cu_seqlens_q=cu_seqlens_q,
            k_descale=None,
            v_descale=None,
            rotary_interleaved=interleaved,
            queries_share_position=share_position,
            num_threads=num_threads,
        )
        return run(*call), None, None


def kernel(*arguments):
    call = Append(*arguments)
    turned = _calls.append(call._replace(num_threads=threads_of(call.k, call.num_threads)))
    return call.k.new_empty((0,)) if turned is None else turned


def shapes(*arguments):
    call = Append(*arguments)
    return call.k.new_empty((0,) if call.q is None else call.q.shape)


def record(op, *arguments):
    call = Append(*arguments)
    refuse_gradients_of_caches(call)
    turned = unrecorded(op, *arguments)
    written(call.k_cache, call.v_cache)
    if call.q is not None and needs_gradient(call.q):
        return Turned.apply(call.q, turned, call)
    return turned


def refuse_gradients_of_caches(call):
    kept = {name: value for name, value in call._asdict().items() if name != "q"}
    refuse_gradients("since a cache is written in place and keeps none", **kept)


run = define("append", f"({ARGUMENTS}) -> Tensor", kernel, shapes, record)


def append(call):
    for name, value in call._asdict().items():
        if TYPES.get(name, "Tensor").startswith("Tensor") and not (
            value is None and name in OPTIONAL
        ):
            refuse_other_than_tensor(name, value)
    if is_plain_call(call.k_cache, call.v_cache, call.k) and not needs_gradient(*call):
        turned = kernel(*call)
        written(call.k_cache, call.v_cache)
    else:
        turned = run(*call)
    return None if call.q is None else turned

# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.sparse_attention, its backward, and fa3.mla.sparse_attention through them.

The operators take packed tensors: q (total_q, h, d), kv (total_k, d), indices (total_q, k).
"""

import torch

from fa3 import _mla_calls, _native
from fa3._arrays import view
from fa3._mla_calls import VALUE_DIM, Forward
from fa3.errors import InvalidArgument
from fa3.torch.autograd import to_autocast_type
from fa3.torch.checks import refuse_numbers_that_learn, refuse_other_than_tensor
from fa3.torch.library import Function, define, record_gradient, recorded_by, unrecorded
from fa3.torch.operators import is_any_autocast_enabled, threads_of

INPUTS = "Tensor q, Tensor kv, Tensor indices, Tensor? index_count, Tensor? sink"
NUMBERS = "float? scale, bool lse_with_sink, bool deterministic, int engine, int num_threads"


def forward_kernel(q, kv, indices, index_count, sink, scale, lse_with_sink, *others):
    _, engine, num_threads = others
    call = dict.fromkeys(Forward._fields)
    call |= {"q": q, "cache": kv[None], "indices": indices, "index_count": index_count}
    call |= {"rows": 1, "extra_rows": 0, "max_seqlen_q": 0, "num_splits": 0}  # rows: latent
    call |= {
        "causal": False,
        "lse_with_sink": lse_with_sink,
        "empty_lse": False,
        "batch_invariant": False,
    }
    call |= {"sink": sink, "scale": scale, "engine": engine}
    call = Forward(**{**call, "num_threads": threads_of(q, num_threads)})
    results = _mla_calls.new_results(call, True, True)
    _mla_calls.forward(call, *results)
    return results


def forward_shapes(q, *_):
    per_row = (q.shape[1], q.shape[0])
    out = q.new_empty((*q.shape[:-1], VALUE_DIM))
    return out, *(q.new_empty(per_row, dtype=torch.float32) for _ in range(2))


def new_gradients(q, kv, sink):
    dsink = q.new_empty((0 if sink is None else sink.shape[0],), dtype=torch.float32)
    return q.new_empty(q.shape), kv.new_empty(kv.shape), dsink


def backward_kernel(do, q, kv, indices, index_count, sink, out, lse, dlse, *numbers):
    *numbers, num_threads = numbers
    gradients = dq, dkv, dsink = new_gradients(q, kv, sink)
    tensors = {"q": q, "kv": kv[None], "indices": indices, "index_count": index_count}
    tensors |= {"sink": sink, "out": out, "lse": lse, "do": do.contiguous(), "dlse": dlse}
    tensors |= {"dq": dq, "dkv": dkv[None], "dsink": None if sink is None else dsink}
    views = (None if x is None else view(x, name) for name, x in tensors.items())
    _native.mla_backward(_mla_calls.lender(q), *views, *numbers, threads_of(q, num_threads))
    return gradients


def backward_shapes(do, q, kv, indices, index_count, sink, *_):
    return new_gradients(q, kv, sink)


def is_deterministic(numbers):
    """Whether the call or torch asks for repeatable gradients."""
    return numbers[2] or torch.are_deterministic_algorithms_enabled()


class SparseAttention(Function):
    """(run, q, kv, indices, index_count, sink, *numbers) -> (out, lse, max)."""

    @staticmethod
    def forward(ctx, run, q, kv, indices, index_count, sink, *numbers):
        out, lse, largest = run(q, kv, indices, index_count, sink, *numbers)
        ctx.mark_non_differentiable(largest)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, kv, indices, index_count, sink, out, lse)
        ctx.numbers = numbers
        return out, lse, largest

    @staticmethod
    def backward(ctx, do, dlse, _):
        q, kv, indices, index_count, sink, out, lse = ctx.saved_tensors
        scale, lse_with_sink, _, *others = ctx.numbers
        do = torch.zeros_like(out) if do is None else do
        inputs = do, q, kv, indices, index_count, sink, out, lse, dlse
        numbers = scale, lse_with_sink, is_deterministic(ctx.numbers), *others
        if torch._C._are_functorch_transforms_active():
            gradients = run_backward(*inputs, *numbers)  # the dispatcher, which takes levels apart
        else:
            run = record_gradient if torch.is_grad_enabled() else unrecorded
            gradients = run(run_backward, *inputs, *numbers)
        dq, dkv, dsink = gradients
        dsink = None if sink is None else dsink
        return None, dq, dkv, None, None, dsink, *(None for _ in numbers)


run_forward = define(
    "sparse_attention",
    f"({INPUTS}, {NUMBERS}) -> (Tensor out, Tensor lse, Tensor max)",
    forward_kernel,
    forward_shapes,
    recorded_by(SparseAttention),
)
run_backward = define(
    "sparse_attention_backward",
    f"(Tensor do, {INPUTS}, Tensor out, Tensor lse, Tensor? dlse, {NUMBERS}) -> "
    "(Tensor dq, Tensor dkv, Tensor dsink)",
    backward_kernel,
    backward_shapes,
    record_gradient,
)


def attend(q, kv, indices, index_count, sink, causal, numbers):
    """out, lse and max in the shapes of fa3.mla.sparse_attention."""
    given = {"q": q, "kv": kv, "indices": indices, "index_count": index_count, "sink": sink}
    for name, value in given.items():
        if value is not None:
            refuse_other_than_tensor(name, value)
    refuse_numbers_that_learn(scale=numbers[0])
    if is_any_autocast_enabled():
        q, kv = to_autocast_type(q, kv)
    kv = without_head("kv", kv, q.ndim)
    indices = without_head("indices", indices, q.ndim)
    check_shapes(q, kv, indices, index_count)
    if causal:
        last = torch.arange(q.shape[-3], device=q.device) + (kv.shape[-2] - q.shape[-3])
        indices = indices.where(indices <= last[:, None], -1)
    if q.ndim == 3:
        return run_forward(q, *some_rows(kv, indices), index_count, sink, *numbers)
    batch, rows = q.shape[0], kv.shape[1]
    first = torch.arange(batch, dtype=torch.int32, device=q.device)[:, None, None] * rows
    inside = (indices >= 0) & (indices < rows)
    indices = torch.where(inside, indices + first, -1).int()
    packed, *others = (x.flatten(0, 1) for x in (q, kv, indices))
    if index_count is not None:
        index_count = index_count.flatten()
    out, *per_row = run_forward(packed, *some_rows(*others), index_count, sink, *numbers)
    sequences = batch, q.shape[1]
    return out.unflatten(0, sequences), *(
        x.unflatten(1, sequences).transpose(0, 1) for x in per_row
    )


def check_shapes(q, kv, indices, index_count):
    """Of rank 3, or without sequences of rank 2."""
    rows = tuple(q.shape[:-2])
    if kv.shape[:-2] != q.shape[:-3]:
        raise InvalidArgument(
            f"kv: expected the {q.shape[0]} sequences of q, got {tuple(kv.shape)}"
        )
    if indices.shape[:-1] != rows:
        raise InvalidArgument(
            f"indices: expected {rows} lists, one for each query, got {tuple(indices.shape)}"
        )
    if indices.dtype not in (torch.int32, torch.int64):
        raise InvalidArgument(f"indices: expected int32 or int64, got {indices.dtype}")
    if index_count is not None and index_count.shape != rows:
        raise InvalidArgument(
            f"index_count: expected {rows}, a count for each query, got {tuple(index_count.shape)}"
        )


def some_rows(kv, indices):
    """Both, or where there are no rows one that no index names."""
    if kv.shape[0] > 0:
        return kv, indices
    return torch.nn.functional.pad(kv, (0, 0, 0, 1)), torch.full_like(indices, -1)


def without_head(name, tensor, ndim):
    """(..., rows, 1, n) as (..., rows, n)."""
    if tensor.ndim == ndim and tensor.shape[-2] == 1:
        return tensor.squeeze(-2)
    if tensor.ndim == ndim - 1:
        return tensor
    raise InvalidArgument(
        f"{name}: expected rank {ndim - 1}, or rank {ndim} with one head, beside a q of rank "
        f"{ndim}, got {tuple(tensor.shape)}"
    )

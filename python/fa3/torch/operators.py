# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.{forward, forward_out, forward_max_logit, backward}: what compilers and modes see.

Operators have a fixed number of results, and strides of outputs follow from shapes (new_out), so
that the kernels of shapes are right. library.py says how they are defined, autograd.py has the
gradient.
"""

import torch

from fa3 import _native
from fa3._dropout import require_seed, seed_view
from fa3._options import BOTH_PASSES, DEFAULTS, FORWARD, IN_ORDER, Options
from fa3.torch.nvrtc import load_nvrtc

QKV = "Tensor q, Tensor k, Tensor v"
FORWARD_OPTIONS, BACKWARD_OPTIONS = ", ".join(FORWARD), ", ".join(BOTH_PASSES)
SCHEMAS = {
    "forward": f"({QKV}, {FORWARD_OPTIONS}) -> (Tensor out, Tensor lse)",
    "forward_max_logit": f"({QKV}, {FORWARD_OPTIONS}) -> "
    "(Tensor out, Tensor lse, Tensor max_logit)",
    "forward_out": f"({QKV}, Tensor(a!) out, {FORWARD_OPTIONS}) -> Tensor lse",
    "backward": f"(Tensor do, {QKV}, Tensor out, Tensor lse, {BACKWARD_OPTIONS}, "
    "Tensor? dlse=None) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink, Tensor dgate)",
}
NUM_THREADS = list(DEFAULTS).index("num_threads")
DROPOUT_SEED = list(DEFAULTS).index("dropout_seed")
GATE = list(DEFAULTS).index("gate")
DROPOUT_P = list(DEFAULTS).index("dropout_p")
AVAILABLE_THREADS = _native.available_threads()

_native.keep_block_lists(torch.cuda.is_current_stream_capturing)

# Whatever may watch or replace a call. These names are private: if one is missing, every call goes
# through the dispatcher.
try:
    from torch._C import (
        _are_functorch_transforms_active,
        _get_tracing_state,
        _has_storage,
        _is_torch_function_mode_enabled,
        _len_torch_dispatch_stack,
    )
    from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled
    from torch.autograd import _profiler_enabled, profiler

    profiler._is_profiler_enabled  # noqa: B018  there at all?

    CAN_SEE_WATCHERS = True
except (ImportError, AttributeError):
    CAN_SEE_WATCHERS = False

    def is_any_autocast_enabled():
        return True


HAVE_MEMORY = torch.Tensor, torch.nn.Parameter


def is_watched():
    """Whether a compiler, tracer, profiler (of any thread), mode or transform is active.

    Python cannot see a bare ExecutionTraceObserver or another kernel that was registered for
    fa3::forward: these see calls of torch.ops.fa3 alone.
    """
    return (
        torch.compiler.is_compiling()
        or not CAN_SEE_WATCHERS
        or _len_torch_dispatch_stack()
        or _is_torch_function_mode_enabled()
        or _are_functorch_transforms_active()
        or (profiler._is_profiler_enabled or _profiler_enabled())
        or _get_tracing_state() is not None
    )


def is_plain_call(q, k, v):
    """Whether torch's dispatcher would only call the kernel, which takes it 4 us.

    So: nothing watches, and no tensor is of a subclass, on another device, a lazily negated view,
    nested, or without memory of its own (sparse, or a wrapper).
    """
    return (
        not is_watched()
        and type(q) is type(k) is type(v) is torch.Tensor
        and (q.is_cpu or q.is_cuda)
        and not (q.is_neg() or k.is_neg() or v.is_neg())
        and (_has_storage(q) and _has_storage(k) and _has_storage(v))
        and not (q.is_nested or k.is_nested or v.is_nested)
    )


def are_plain(tensors):
    """Whether tensors beside q, k and v are plain torch tensors with storage, not negated."""
    for x in tensors:
        if type(x) is not torch.Tensor or x.is_neg() or not _has_storage(x):
            return False
    return True


def resolved(*tensors):
    """The arguments, of which tensors hold their numbers themselves: the memory of a lazily negated
    view (torch._neg_view, the imaginary part of a conjugate) has them without the sign. torch's
    dispatcher sees to that for operators; whoever calls the library beside it asks here.
    """
    return [x.resolve_neg() if isinstance(x, torch.Tensor) and x.is_neg() else x for x in tensors]


def have_memory(*tensors):
    """Whether the library could read the tensors now: no wrapper, tracer or compiler holds them."""
    if not CAN_SEE_WATCHERS or _are_functorch_transforms_active():
        return False
    for tensor in tensors:
        if type(tensor) not in HAVE_MEMORY:
            return False
    return tensors[0].is_cuda or tensors[0].is_cpu


def result_shapes(q, v):
    """Shapes of out and lse: (b, s, h, dv), (b, h, s), or packed (total, h, dv), (h, total)."""
    if q.ndim == 4:
        batch, rows, heads, _ = q.shape
        return (batch, rows, heads, v.shape[-1]), (batch, heads, rows)
    if q.ndim == 3:
        rows, heads, _ = q.shape
        return (rows, heads, v.shape[-1]), (heads, rows)
    return (0,), ()  # the library will refuse q before it looks at these


def new_out(q, v):
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    return new_rows(result_shapes(q, v)[0], dtype, q.device)


def new_out_quickly(q, v):
    """new_out, by torch.empty_like where that gives the same strides: it takes half the time."""
    if is_out_like(q, v):
        return torch.empty_like(q, memory_format=torch.contiguous_format)
    return new_out(q, v)


def is_out_like(q, v):
    """Whether new_out(q, v) is a contiguous tensor like q."""
    shape, of_values = q.shape, v.shape
    rank = len(shape)
    if 3 <= rank <= 4 and len(of_values) == rank:
        columns = shape[-1]
        return of_values[-1] == columns and columns % 8 == 0 and q.dtype != torch.float8_e4m3fn
    return False


def new_rows(shape, dtype, device):
    """A new tensor. On a GPU its rows lie a multiple of 16 bytes apart, as TMA requires."""
    if device.type == "cuda":
        return new_rows_for_tma(shape, dtype, device)
    return torch.empty(shape, dtype=dtype, device=device)


def new_rows_for_tma(shape, dtype, device):
    *rows, columns = shape
    gap = -columns % (16 // dtype.itemsize)
    tensor = torch.empty((*rows, columns + gap), dtype=dtype, device=device)
    return tensor[..., :columns] if gap else tensor


def readable_by_tma(tensor):
    """The tensor, or a copy of it with an address and strides that TMA can read.

    Both must be positive multiples of 16 bytes, and the last stride 1. Autograd makes gradients of
    any layout, expanded, sliced or cut out of others, which the caller of backward() cannot repair.
    """
    *extents, _ = tensor.shape
    *strides, last = tensor.stride()
    unit = 16 // tensor.element_size()
    fits = all(
        extent < 2 or (stride > 0 and stride % unit == 0)
        for extent, stride in zip(extents, strides, strict=True)
    )
    if fits and last == 1 and tensor.data_ptr() % 16 == 0:
        return tensor
    return new_rows_for_tma(tensor.shape, tensor.dtype, tensor.device).copy_(tensor)


def with_own_heads(x):
    """A backward's keys or values, or a copy of them where heads share memory, as expand() leaves
    them. The forward takes these as one head; the backward has a gradient for each."""
    return readable_by_tma(x) if heads_share_memory(x) else x


def heads_share_memory(x):
    return x.ndim > 2 and x.shape[-2] > 1 and x.stride(-2) == 0


def new_lse(q):
    return torch.empty(result_shapes(q, q)[1], dtype=torch.float32, device=q.device)


def new_max_logit(q, options):
    """(sequences, heads)"""
    cu_seqlens_q = Options(*options).cu_seqlens_q
    sequences = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    return q.new_empty((sequences, q.shape[-2]), dtype=torch.float32)


def new_gradients(q, k, v, sink, gate=None):
    """dq, dk, dv, dsink and dgate; the last two have no elements without a sink and a gate."""
    dsink = q.new_empty((0,), dtype=torch.float32) if sink is None else sink.new_empty(sink.shape)
    dgate = q.new_empty((0,)) if gate is None else gate.new_empty(gate.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink, dgate


def run_forward(q, k, v, out, lse, options, partial=None, max_logit=None):
    """Writes out and, unless they are None, lse and max_logit. options: in order, or some of the
    first.

    partial: out and LSE over other keys, in float32, which the call goes on from; may be out, lse.
    """
    if not q.is_cuda:
        options = with_threads(q, options)
    elif max_logit is not None or (len(options) > GATE and options[GATE] is not None):
        load_nvrtc()
    if len(options) > DROPOUT_SEED:
        options = with_seed_viewed(options)
    if partial is not None or max_logit is not None:
        options = [*options, *IN_ORDER[len(options) :], max_logit, *(partial or ())]
    _native.forward(lend, q, k, v, out, lse, *options)


def run_backward(do, q, k, v, out, lse, dlse, gradients, options, accumulate=(False, False)):
    """Writes gradients, (dq, dk, dv, dsink), of which the last is None without a sink, and dgate
    behind them where there is a gate.

    accumulate: whether dq, and whether dk and dv, which are float32 then, are added to instead.
    """
    do, k, v = readable_by_tma(do), with_own_heads(k), with_own_heads(v)
    options = with_seed_viewed(with_threads(q, options))
    *gradients, dgate = gradients if len(gradients) > 4 else (*gradients, None)
    if dgate is not None or any(accumulate):
        options = [*options, *IN_ORDER[len(options) : len(BOTH_PASSES)], dgate, *accumulate]
    _native.backward(lend, do, q, k, v, out, lse, dlse, *gradients, *options)


def refuse_without_backward(q, k, v, options):
    """Raises what the backward of this call would raise, where that can be known now.

    The CPU engine has every gradient.
    """
    if not q.is_cpu and have_memory(q, k, v):
        k, v = (
            new_rows_for_tma(x.shape, x.dtype, x.device) if heads_share_memory(x) else x
            for x in (k, v)
        )
        _native.backward_supported(q, k, v, *with_seed_viewed(options))


def with_seed_viewed(options):
    """The options, with dropout's seed as the compiled module reads it."""
    if len(options) <= DROPOUT_SEED:
        return options
    if options[DROPOUT_SEED] is None:
        p = options[DROPOUT_P] if len(options) > DROPOUT_P else 0.0
        if isinstance(p, (int, float)) and 0 < p <= 1:
            require_seed({"dropout_p": p})
        return options
    seed = seed_view(options[DROPOUT_SEED])
    return [*options[:DROPOUT_SEED], seed, *options[DROPOUT_SEED + 1 :]]


def with_threads(q, options):
    """The options, with a number of threads if torch wants fewer than fa3 would take."""
    if q.is_cuda or (len(options) > NUM_THREADS and options[NUM_THREADS]):
        return options
    threads = threads_of(q)
    if threads == 0:
        return options
    filled = [*options, *IN_ORDER[len(options) : NUM_THREADS + 1]]
    filled[NUM_THREADS] = threads
    return filled


def threads_of(tensor, asked=0):
    """num_threads for the library: torch.set_num_threads and OMP_NUM_THREADS hold for fa3 too."""
    if asked or not tensor.is_cpu:
        return asked
    of_torch = torch.get_num_threads()
    return of_torch if of_torch < AVAILABLE_THREADS else 0


def lend(count, index):
    """Workspace on a GPU from torch's own allocator: stream-ordered, and safe inside CUDA graphs.

    The compiled module asks the allocator itself, and here where it gets nothing, for the error.
    """
    memory = torch.empty(count, dtype=torch.uint8, device=f"cuda:{index}")
    return memory, memory.data_ptr()


def forward_kernel(q, k, v, *options):
    out, lse = new_out_quickly(q, v), new_lse(q)
    run_forward(q, k, v, out, lse, options)
    return out, lse


def forward_max_logit_kernel(q, k, v, *options):
    out, lse, max_logit = new_out_quickly(q, v), new_lse(q), new_max_logit(q, options)
    run_forward(q, k, v, out, lse, options, max_logit=max_logit)
    return out, lse, max_logit


def run_plainly(q, k, v, out, return_lse, return_max_logit, options):
    """attention() of a plain call: no operator, for the dispatcher need not see it."""
    out = new_out_quickly(q, v) if out is None else out
    lse = new_lse(q) if return_lse else None
    if return_max_logit:
        max_logit = new_max_logit(q, options)
        run_forward(q, k, v, out, lse, options, max_logit=max_logit)
        return (out, lse, max_logit) if return_lse else (out, max_logit)
    run_forward(q, k, v, out, lse, options)
    return (out, lse) if return_lse else out


def forward_out_kernel(q, k, v, out, *options):
    lse = new_lse(q)
    run_forward(q, k, v, out, lse, options)
    return lse


def backward_kernel(do, q, k, v, out, lse, *rest):
    options = rest[: len(BOTH_PASSES)]
    dlse = rest[-1] if len(rest) > len(BOTH_PASSES) else None
    named = Options(*options)
    dq, dk, dv, dsink, dgate = new_gradients(q, k, v, named.sink, named.gate)
    of_options = None if named.sink is None else dsink, None if named.gate is None else dgate
    run_backward(do, q, k, v, out, lse, dlse, (dq, dk, dv, *of_options), options)
    return dq, dk, dv, dsink, dgate


def forward_shapes(q, k, v, *options):
    return new_out(q, v), new_lse(q)


def forward_max_logit_shapes(q, k, v, *options):
    return new_out(q, v), new_lse(q), new_max_logit(q, options)


def forward_out_shapes(q, k, v, out, *options):
    return new_lse(q)


def backward_shapes(do, q, k, v, out, lse, *rest):
    options = Options(*rest[: len(BOTH_PASSES)])
    return new_gradients(q, k, v, options.sink, options.gate)

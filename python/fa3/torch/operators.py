# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.{forward, forward_out, backward}: the calls that compilers and modes see.

Plain define + impl: a Python kernel behind one dispatch, the cheapest boundary that torch has for
code that is not compiled against it. The operators have no autograd formula of their own;
autograd.py wraps them (torch.library.register_autograd costs several times the call itself).
Operators are functional with a fixed number of results, and strides of outputs follow from shapes
(new_out), so that the fake kernels are right.
"""

import torch

from fa3 import _native
from fa3._options import BOTH_PASSES, FORWARD, Options
from fa3.errors import InvalidArgument

KEYS = {"cpu": "CPU", "cuda": "CUDA"}  # device type: dispatch key
QKV = "Tensor q, Tensor k, Tensor v"
FORWARD_OPTIONS, BACKWARD_OPTIONS = ", ".join(FORWARD), ", ".join(BOTH_PASSES)
SCHEMAS = {
    "forward": f"({QKV}, {FORWARD_OPTIONS}) -> (Tensor out, Tensor lse)",
    "forward_out": f"({QKV}, Tensor(a!) out, {FORWARD_OPTIONS}) -> Tensor lse",
    "backward": f"(Tensor do, {QKV}, Tensor out, Tensor lse, {BACKWARD_OPTIONS}, "
    "Tensor? dlse=None) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink)",
}

# An operator gets the memory that the caller passed, strides included.
KEEP_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)

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
    from torch.autograd import _profiler_enabled, profiler

    profiler._is_profiler_enabled  # noqa: B018  there at all?

    CAN_SEE_WATCHERS = True
except (ImportError, AttributeError):
    CAN_SEE_WATCHERS = False

library = torch.library.Library("fa3", "DEF")
for name, schema in SCHEMAS.items():
    library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag, KEEP_STRIDES))

# The overloads themselves: attribute chains cost time in every call.
forward = torch.ops.fa3.forward.default
forward_out = torch.ops.fa3.forward_out.default
backward = torch.ops.fa3.backward.default

# Tensors of torch before 2.10 are viewed through __dlpack__, which refuses those with a gradient.
NEEDS_DETACHED = not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def is_plain_call(q, k, v):
    """Whether torch's dispatcher would only call the kernel, which takes it 4 us.

    So: no compiler, tracer, profiler (of any thread), mode or transform is active, and no tensor
    is of a subclass, on another device, a lazily negated view, or without memory of its own
    (sparse, or a wrapper). Python cannot see a bare ExecutionTraceObserver or another kernel that
    was registered for fa3::forward: these see calls of torch.ops.fa3 alone.
    """
    if torch.compiler.is_compiling() or not CAN_SEE_WATCHERS:
        return False
    return (
        type(q) is type(k) is type(v) is torch.Tensor
        and not _len_torch_dispatch_stack()
        and not _is_torch_function_mode_enabled()
        and not _are_functorch_transforms_active()
        and not (profiler._is_profiler_enabled or _profiler_enabled())
        and _get_tracing_state() is None
        and (q.is_cpu or q.is_cuda)
        and not (q.is_neg() or k.is_neg() or v.is_neg())
        and (_has_storage(q) and _has_storage(k) and _has_storage(v))
    )


def detached(*arguments):
    return (a.detach() if isinstance(a, torch.Tensor) else a for a in arguments)


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
    if q.ndim in (3, 4) and v.ndim == q.ndim and q.is_contiguous():
        columns = q.shape[-1]
        if v.shape[-1] == columns and columns % 8 == 0 and q.dtype != torch.float8_e4m3fn:
            return torch.empty_like(q, memory_format=torch.contiguous_format)
    return new_out(q, v)


def new_rows(shape, dtype, device):
    """A new tensor. On a GPU its rows lie a multiple of 16 bytes apart, as TMA requires."""
    *rows, columns = shape
    gap = -columns % 8 if device.type == "cuda" else 0
    tensor = torch.empty((*rows, columns + gap), dtype=dtype, device=device)
    return tensor[..., :columns] if gap else tensor


def new_lse(q):
    return torch.empty(result_shapes(q, q)[1], dtype=torch.float32, device=q.device)


def new_gradients(q, k, v, sink):
    """dq, dk, dv and dsink; dsink has no elements where there is no sink."""
    dsink = q.new_empty((0,), dtype=torch.float32) if sink is None else sink.new_empty(sink.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink


def run_forward(q, k, v, out, lse, options):
    """Writes out and, unless it is None, lse. options: in order, or some of the first."""
    if NEEDS_DETACHED:
        q, k, v, out, lse, *options = detached(q, k, v, out, lse, *options)
    _native.forward(lend_like(q) if q.is_cuda else None, q, k, v, out, lse, *options)


def run_backward(do, q, k, v, out, lse, dlse, gradients, options):
    """Writes gradients, (dq, dk, dv, dsink), of which the last is None without a sink."""
    # Autograd hands over gradients of any layout, an expanded scalar for out.sum(). The caller of
    # backward() could not repair that, so it is done here.
    if do.stride(-1) != 1:
        do = do.contiguous()
    if NEEDS_DETACHED:
        do, q, k, v, out, lse, dlse, *options = detached(do, q, k, v, out, lse, dlse, *options)
    lend = lend_like(q) if q.is_cuda else None
    _native.backward(lend, do, q, k, v, out, lse, dlse, *gradients, *options)


def lend_like(tensor):
    """Workspace from torch's own allocator: stream-ordered, and safe inside CUDA graphs."""
    return lambda count: torch.empty(count, dtype=torch.uint8, device=tensor.device)


def forward_kernel(q, k, v, *options):
    out, lse = new_out_quickly(q, v), new_lse(q)
    run_forward(q, k, v, out, lse, options)
    return out, lse


def forward_without_lse(q, k, v, options):
    """No operator: for calls that the dispatcher need not see. options: in order."""
    out = new_out_quickly(q, v)
    run_forward(q, k, v, out, None, options)
    return out


def forward_out_kernel(q, k, v, out, *options):
    lse = new_lse(q)
    run_forward(q, k, v, out, lse, options)
    return lse


def backward_kernel(do, q, k, v, out, lse, *rest):
    options = rest[: len(BOTH_PASSES)]
    dlse = rest[-1] if len(rest) > len(BOTH_PASSES) else None
    sink = Options(*options).sink
    dq, dk, dv, dsink = new_gradients(q, k, v, sink)
    gradients = dq, dk, dv, None if sink is None else dsink
    run_backward(do, q, k, v, out, lse, dlse, gradients, options)
    return dq, dk, dv, dsink


for key in KEYS.values():
    library.impl("forward", forward_kernel, key)
    library.impl("forward_out", forward_out_kernel, key)
    library.impl("backward", backward_kernel, key)


def refuse_partly_meta(*arguments):
    """One tensor on meta sends the whole call to the fake kernel, which computes nothing."""
    kinds = [a.device.type for a in arguments if isinstance(a, torch.Tensor)]
    if "meta" in kinds and set(kinds) != {"meta"}:
        raise InvalidArgument(
            f"q, k, v, ...: expected all tensors on meta or none, got {', '.join(kinds)}"
        )


@torch.library.register_fake("fa3::forward", lib=library)
def _(q, k, v, *options):
    refuse_partly_meta(q, k, v, *options)
    return new_out(q, v), new_lse(q)


@torch.library.register_fake("fa3::forward_out", lib=library)
def _(q, k, v, out, *options):
    refuse_partly_meta(q, k, v, out, *options)
    return new_lse(q)


@torch.library.register_fake("fa3::backward", lib=library)
def _(do, q, k, v, out, lse, *rest):
    refuse_partly_meta(do, q, k, v, out, lse, *rest)
    return new_gradients(q, k, v, Options(*rest[: len(BOTH_PASSES)]).sink)

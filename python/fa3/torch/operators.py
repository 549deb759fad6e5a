# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.{forward, forward_out, backward}: what compilers, counters and modes see.

Plain define + impl: a Python kernel behind one dispatch, the cheapest boundary that torch has for
code that is not compiled against it. The operators have no autograd formula of their own;
autograd.py wraps them (torch.library.register_autograd costs several times the call itself).
Operators are functional with a fixed number of results, and outputs are contiguous, so that the
fake kernels can tell the truth.
"""

import torch

from fa3 import _native

OPTIONS = (
    "bool causal=False, SymInt window_left=-1, SymInt window_right=-1, float softcap=0.0, "
    "float? scale=None, Tensor? sink=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, SymInt max_seqlen_q=0, "
    "SymInt max_seqlen_k=0, bool deterministic=False, int engine=0, int num_threads=0"
)
QKV = "Tensor q, Tensor k, Tensor v"
SCHEMAS = {
    "forward": f"({QKV}, {OPTIONS}) -> (Tensor out, Tensor lse)",
    "forward_out": f"({QKV}, Tensor(a!) out, {OPTIONS}) -> Tensor lse",
    "backward": f"(Tensor do, {QKV}, Tensor out, Tensor lse, {OPTIONS}) "
    "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink)",
}

# The memory that an operator gets is the memory that the caller passed, strides included.
KEEP_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)

library = torch.library.Library("fa3", "DEF")
for name, schema in SCHEMAS.items():
    library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag, KEEP_STRIDES))

# The overloads themselves: attribute chains cost time in every call.
forward = torch.ops.fa3.forward.default
forward_out = torch.ops.fa3.forward_out.default
backward = torch.ops.fa3.backward.default

if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):  # torch 2.10 and later

    def viewed(tensor):
        return tensor
else:

    def viewed(tensor):
        return None if tensor is None else tensor.detach()  # __dlpack__ refuses gradients


def lse_shape(q):
    *batch, rows, heads, _ = q.shape
    return *batch, heads, rows


def new_out(q, v):
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def new_lse(q):
    return q.new_empty(lse_shape(q), dtype=torch.float32)


def new_gradients(q, k, v, sink):
    """dq, dk, dv and dsink; dsink has no elements where there is no sink."""
    dsink = q.new_empty((0,), dtype=torch.float32) if sink is None else sink.new_empty(sink.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsink


def run_forward(
    allocate,
    q,
    k,
    v,
    out,
    causal=False,
    window_left=-1,
    window_right=-1,
    softcap=0.0,
    scale=None,
    sink=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    max_seqlen_q=0,
    max_seqlen_k=0,
    deterministic=False,
    engine=0,
    num_threads=0,
):
    lse = new_lse(q)
    _native.forward(
        viewed(q),
        viewed(k),
        viewed(v),
        viewed(out),
        lse,
        viewed(sink),
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_q,
        seqused_k,
        max_seqlen_q,
        max_seqlen_k,
        causal,
        window_left,
        window_right,
        softcap,
        scale,
        deterministic,
        engine,
        num_threads,
        allocate,
    )
    return lse


def run_backward(
    allocate,
    do,
    q,
    k,
    v,
    out,
    lse,
    causal=False,
    window_left=-1,
    window_right=-1,
    softcap=0.0,
    scale=None,
    sink=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    max_seqlen_q=0,
    max_seqlen_k=0,
    deterministic=False,
    engine=0,
    num_threads=0,
):
    # Autograd hands over gradients of any layout, an expanded scalar for out.sum(). Nobody who
    # calls backward() could repair that, so it is done here.
    if do.stride(-1) != 1:
        do = do.contiguous()
    dq, dk, dv, dsink = new_gradients(q, k, v, sink)
    _native.backward(
        viewed(do),
        viewed(q),
        viewed(k),
        viewed(v),
        viewed(out),
        viewed(lse),
        viewed(sink),
        dq,
        dk,
        dv,
        None if sink is None else dsink,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_q,
        seqused_k,
        max_seqlen_q,
        max_seqlen_k,
        causal,
        window_left,
        window_right,
        softcap,
        scale,
        deterministic,
        engine,
        num_threads,
        allocate,
    )
    return dq, dk, dv, dsink


def lend_like(tensor):
    """Workspace from torch's own allocator: stream-ordered, and safe inside CUDA graphs."""
    return lambda count: torch.empty(count, dtype=torch.uint8, device=tensor.device)


def forward_cpu(q, k, v, *options):
    out = new_out(q, v)
    return out, run_forward(None, q, k, v, out, *options)


def forward_cuda(q, k, v, *options):
    out = new_out(q, v)
    return out, run_forward(lend_like(q), q, k, v, out, *options)


def forward_out_cpu(q, k, v, out, *options):
    return run_forward(None, q, k, v, out, *options)


def forward_out_cuda(q, k, v, out, *options):
    return run_forward(lend_like(q), q, k, v, out, *options)


def backward_cpu(do, *arguments):
    return run_backward(None, do, *arguments)


def backward_cuda(do, *arguments):
    return run_backward(lend_like(do), do, *arguments)


library.impl("forward", forward_cpu, "CPU")
library.impl("forward", forward_cuda, "CUDA")
library.impl("forward_out", forward_out_cpu, "CPU")
library.impl("forward_out", forward_out_cuda, "CUDA")
library.impl("backward", backward_cpu, "CPU")
library.impl("backward", backward_cuda, "CUDA")


@torch.library.register_fake("fa3::forward", lib=library)
def _(q, k, v, *options):
    return new_out(q, v), new_lse(q)


@torch.library.register_fake("fa3::forward_out", lib=library)
def _(q, k, v, out, *options):
    return new_lse(q)


@torch.library.register_fake("fa3::backward", lib=library)
def _(do, q, k, v, out, lse, causal=False, wl=-1, wr=-1, softcap=0.0, scale=None, sink=None, *_):
    return new_gradients(q, k, v, sink)

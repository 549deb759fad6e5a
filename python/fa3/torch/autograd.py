# SPDX-License-Identifier: Apache-2.0
"""fa3.torch.attention: the operators with autograd and autocast around them."""

import torch
from torch.autograd import forward_ad

from fa3 import ops
from fa3._arrays import refuse_negated
from fa3._options import engine_id, window_ends
from fa3.errors import InvalidArgument, Unsupported
from fa3.torch import operators
from fa3.torch.checks import refuse_other_than_tensor, refuse_tangents


class Attention(torch.autograd.Function):
    """(q, k, v, sink, *the other options of the operator) -> (out, lse)."""

    # In one function, not with setup_context: torch binds the arguments of that form with
    # inspect.signature, which costs more than everything else in a call.
    @staticmethod
    def forward(ctx, q, k, v, sink, *options):
        out, lse = operators.forward(q, k, v, *options[:5], sink, *options[5:])
        lengths = options[5:9]  # cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k
        ctx.set_materialize_grads(False)  # most losses do not read the LSE
        ctx.save_for_backward(q, k, v, sink, *lengths, out, lse)
        ctx.options = options
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, sink, *lengths, out, lse = ctx.saved_tensors
        options = ctx.options
        do = torch.zeros_like(out) if do is None else do
        dq, dk, dv, dsink = operators.backward(
            do, q, k, v, out, lse, *options[:5], sink, *lengths, *options[9:], dlse
        )
        return dq, dk, dv, None if sink is None else dsink, *(None for _ in options)


def attention(
    q,
    k,
    v,
    *,
    causal=False,
    window=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    scale=None,
    sink=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    k_mean=None,
    v_mean=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    max_seqlen_q=0,
    max_seqlen_k=0,
    page_table=None,
    batch_index=None,
    left_padding=None,
    num_splits=0,
    out=None,
    return_lse=False,
    deterministic=False,
    batch_invariant=False,
    engine="auto",
    num_threads=0,
):
    """fa3.attention for torch tensors: same arguments, differentiable in q, k, v and sink.

    Traceable by torch.compile(fullgraph=True); under autocast, q, k and v become the autocast type.
    The LSE is differentiable too (a z-loss, a merge); second and forward-mode derivatives are not.
    Gradients are also bitwise repeatable under torch.use_deterministic_algorithms(True).
    """
    return attend(
        q,
        k,
        v,
        causal,
        window,
        softcap,
        scale,
        sink,
        (q_descale, k_descale, v_descale, k_mean, v_mean),
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_q,
        seqused_k,
        max_seqlen_q,
        max_seqlen_k,
        page_table,
        batch_index,
        left_padding,
        num_splits,
        out,
        return_lse,
        deterministic,
        engine,
        num_threads,
        attention_chunk,
        batch_invariant,
    )


def attend(
    q,
    k,
    v,
    causal,
    window,
    softcap,
    scale,
    sink,
    scales,
    cu_seqlens_q,
    cu_seqlens_k,
    seqused_q,
    seqused_k,
    max_seqlen_q,
    max_seqlen_k,
    page_table,
    batch_index,
    left_padding,
    num_splits,
    out,
    return_lse,
    deterministic,
    engine,
    num_threads,
    attention_chunk,
    batch_invariant,
):
    """attention() by position: keywords cost time in every call. scales: q_descale to v_mean."""
    if getattr(forward_ad, "_current_level", 0) >= 0:
        refuse_tangents(q, k, v, sink)
    if not (isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        refuse_other_than_tensor("k", k)
        refuse_other_than_tensor("v", v)
    device_type = q.device.type
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        q, k, v = to_autocast_type(device_type, q, k, v)
    is_pair = type(window) is tuple and len(window) == 2
    left, right = window if is_pair else window_ends(window)
    wants_gradient = torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (isinstance(sink, torch.Tensor) and sink.requires_grad)
    )
    is_packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    is_padded = seqused_q is not None or seqused_k is not None
    q_descale, k_descale, v_descale, k_mean, v_mean = scales
    is_scaled = q_descale is not None or k_descale is not None or v_descale is not None
    is_scaled = is_scaled or k_mean is not None or v_mean is not None
    is_cached = page_table is not None or batch_index is not None or left_padding is not None
    is_cached = is_cached or num_splits != 0
    if wants_gradient and k.dtype == torch.float8_e4m3fn:
        raise Unsupported(
            "k, v: no gradients through float8_e4m3fn; use torch.no_grad(), or q.detach()"
        )
    is_rare = is_packed or is_padded or is_scaled or is_cached
    is_rare = is_rare or out is not None or sink is not None or wants_gradient
    is_rare = is_rare or attention_chunk != 0 or batch_invariant
    if not is_rare and engine == "auto" and num_threads == 0:
        is_plain = operators.is_plain_call(q, k, v)
        if is_plain and not return_lse:
            return operators.forward_without_lse(q, k, v, causal, left, right, softcap, scale)
        forward = operators.forward_kernel if is_plain else operators.forward
        # The dispatcher converts every argument that it is given: a microsecond for all of them.
        result = forward(q, k, v, causal, left, right, softcap, scale)
        return result if return_lse else result[0]

    options = (causal, left, right, softcap, scale)
    lengths = (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    rest = (*lengths, deterministic, engine_id(engine), num_threads)
    rest += (attention_chunk, batch_invariant)
    cache = (page_table, batch_index, left_padding, num_splits)
    if out is not None:
        refuse_other_than_tensor("out", out)
        refuse_negated(out, "out")
        if wants_gradient:
            raise InvalidArgument(
                "out: expected None for tensors that need a gradient; use torch.no_grad()"
            )
    if is_cached and wants_gradient:
        raise Unsupported(
            "page_table, batch_index, left_padding, num_splits: no gradient goes through a cache; "
            "use torch.no_grad()"
        )
    try:
        if wants_gradient:
            out, lse = Attention.apply(q, k, v, sink, *options, *rest)
        elif out is None:
            out, lse = operators.forward(q, k, v, *options, sink, *rest, *cache, *scales)
        else:
            lse = operators.forward_out(q, k, v, out, *options, sink, *rest, *cache, *scales)
    except RuntimeError as error:
        if type(error) is RuntimeError:
            integers = {"num_threads": num_threads, "attention_chunk": attention_chunk}
            flags = {"causal": causal, "batch_invariant": batch_invariant}
            refuse_wrong_types(sink, options, lengths, integers, flags, cache, scales)
        raise
    return (out, lse) if return_lse else out


def refuse_wrong_types(sink, options, lengths, integers, flags, cache, scales):
    """What the dispatcher refuses in terms of its schema, in terms of our arguments."""
    names = "sink cu_seqlens_q cu_seqlens_k seqused_q seqused_k page_table batch_index left_padding"
    names += " q_descale k_descale v_descale k_mean v_mean"
    given = (sink, *lengths[:4], *cache[:3], *scales)
    for name, value in zip(names.split(), given, strict=True):
        if value is not None:
            refuse_other_than_tensor(name, value)
    _, left, right, softcap, scale = options
    integers |= {"window[0]": left, "window[1]": right, "num_splits": cache[3]}
    integers |= {"max_seqlen_q": lengths[4], "max_seqlen_k": lengths[5]}
    for name, value in integers.items():
        if not hasattr(value, "__index__"):
            raise TypeError(f"{name}: expected an integer, got {value!r}")
        if not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"{name}: expected an integer of 64 bits, got {value}")
    for name, value in {"softcap": softcap, "scale": 1.0 if scale is None else scale}.items():
        if not hasattr(value, "__float__"):
            raise TypeError(f"{name}: expected a number, got {value!r}")
    for name, value in flags.items():
        if not isinstance(value, (bool, int)):
            raise TypeError(f"{name}: expected True or False, got {value!r}")


def to_autocast_type(device_type, *tensors):
    """As torch's own attention: what is floating point, but for float64, becomes that type."""
    dtype = torch.get_autocast_dtype(device_type)
    kept = (torch.float64, torch.float8_e4m3fn)  # without its scale, e4m3 is not a number
    return (t if t.dtype in kept else t.to(dtype) for t in tensors)


ops.attend_torch = attend

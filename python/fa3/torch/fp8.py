# SPDX-License-Identifier: Apache-2.0
"""fa3.attention_fp8 with a gradient: torch.ops.fa3.forward_fp8 of quantized tensors.

The gradient is that of attention in the wider type, at the LSE and the output of the FP8 forward;
rounding to float8_e4m3fn counts as the identity. The backward reads k without its mean, and the LSE
of that: so P sums to what the forward's did, and no mean of k multiplies what rounding leaves of
rowsum(dS). Numbers: docs/fp8.md.
"""

from typing import Any, NamedTuple

import torch

from fa3._options import BOTH_PASSES, Options, in_order
from fa3.masks import refuse_other_extents
from fa3.torch import fp8_samples, operators
from fa3.torch.autograd import NO_GRADIENTS, run_gradients
from fa3.torch.dropout import seeded
from fa3.torch.library import Function, define, recorded_by
from fa3.torch.quantize import dequantize_together, quantize


class Call(NamedTuple):
    """The arguments of the operator before the options of both passes."""

    q: Any  # wider tensors: what gradients flow into
    k: Any
    v: Any
    q8: Any
    k8: Any
    v8: Any
    q_descale: Any
    k_descale: Any
    v_descale: Any
    k_mean: Any  # turned by Hadamard, as fa3.quantize returns it; None without center
    v_mean: Any
    centred: bool  # the LSE and the backward do without k_mean
    hadamard: bool
    seed: int
    saves_quantized: bool
    v_transposed: bool
    num_splits: int


OWN = len(Call._fields)
SCHEMA = (
    f"({operators.QKV}, Tensor q8, Tensor k8, Tensor v8, Tensor q_descale, Tensor k_descale, "
    "Tensor v_descale, Tensor? k_mean, Tensor? v_mean, bool centred, bool hadamard, int seed, "
    f"bool saves_quantized, bool v_transposed, int num_splits, {operators.BACKWARD_OPTIONS}) "
    "-> (Tensor out, Tensor lse)"
)


def kernel(*arguments):
    """out, and the LSE, without k's mean if call.centred."""
    call, options = Call(*arguments[:OWN]), Options(*arguments[OWN:])
    k_mean = None if call.centred else call.k_mean
    descales = {name: getattr(call, name) for name in ("q_descale", "k_descale", "v_descale")}
    layout = {"v_transposed": call.v_transposed, "num_splits": call.num_splits}
    given = options._replace(**descales, k_mean=k_mean, v_mean=call.v_mean, **layout).given()
    out, lse = shapes(*arguments)
    operators.run_forward(call.q8, call.k8, call.v8, out, lse, given)
    wide = call.q, call.k, call.v
    of_both = options[: len(BOTH_PASSES)]
    fp8_samples.see(*wide, out, lambda: operators.forward_kernel(*wide, *of_both)[0])
    return out, lse


def shapes(*arguments):
    call = Call(*arguments[:OWN])
    return operators.new_out(call.q, call.v), operators.new_lse(call.q)


class AttentionFp8(Function):
    """(run, *Call, *options of both passes) -> (out, lse)."""

    @staticmethod
    def forward(ctx, run, *arguments):
        call, options = Call(*arguments[:OWN]), Options(*arguments[OWN:])
        operators.refuse_without_backward(call.q, call.k, call.v, options[: len(BOTH_PASSES)])
        out, lse = run(*arguments)
        ctx.set_materialize_grads(False)
        saved = kept(call)
        ctx.save_for_backward(out, lse, *saved, *options.tensors())
        ctx.call = call._replace(**dict.fromkeys(Call._fields[: len(saved)]))
        ctx.options = options.with_tensors(NO_GRADIENTS.tensors())
        ctx.num_arguments = len(arguments)
        return out, lse

    @staticmethod
    def backward(ctx, do, dlse):
        out, lse, *tensors = ctx.saved_tensors
        num_options = len(ctx.options.tensors())
        saved, of_options = tensors[:-num_options], tensors[-num_options:]
        call = ctx.call._replace(**dict(zip(Call._fields, saved, strict=False)))
        options = ctx.options.with_tensors(of_options)
        q, k, v = numbers_of_backward(call, out.dtype, options)
        dq, dk, dv, named = run_gradients(do, q, k, v, out, lse, ctx.options, of_options, dlse)
        others = (None,) * (OWN - 3)
        return None, dq, dk, dv, *others, *named[: ctx.num_arguments - OWN]


def kept(call):
    """The tensors that the backward reads, in the order of Call."""
    wide, small = call[:3], call[3:9]
    none = (None,) * 6
    numbers = (None, None, None, *small) if call.saves_quantized else (*wide, *none)
    return *numbers, call.k_mean, call.v_mean


def numbers_of_backward(call, dtype, options):
    """q, k and v of the backward."""
    cu_q, cu_k = options.cu_seqlens_q, options.cu_seqlens_k
    if not call.saves_quantized:
        if not call.centred:
            return call.q, call.k, call.v
        k_mean = turned_back(call.k_mean, rotation(call))
        return call.q, minus(call.k, k_mean, cu_k), call.v
    k_mean = None if call.centred else call.k_mean
    of_q = call.q8, call.q_descale
    of_k, of_v = (call.k8, call.k_descale, k_mean), (call.v8, call.v_descale, call.v_mean)
    lengths_q = cu_q, options.seqused_q, options.max_seqlen_q
    lengths_k = cu_k, options.seqused_k, options.max_seqlen_k
    turned = call.hadamard, call.seed
    how = *turned, *lengths_q, *lengths_k, call.v_transposed, options.num_threads
    return dequantize_together(*of_q, *of_k, *of_v, dtype, *how)


def rotation(call):
    """(d, d) float32: fa3.quantize turns a row x of q or k into x @ rotation. None: it does not.

    The mean of one row is that row, turned.
    """
    if not call.hadamard:
        return None
    units = torch.eye(call.q.shape[-1], dtype=torch.float32, device=call.q.device)[:, None, None]
    options = False, True, call.seed, None, None, 0, False, 0, 0
    return quantize(units, "block", True, None, None, *options)[2][:, 0]


def turned_back(mean, turn):
    """In float64, which autocast leaves alone."""
    return mean if turn is None else (mean.double() @ turn.T.double()).float()


def minus(x, mean, cu_seqlens):
    return (x - of_rows(mean, cu_seqlens, x)).to(x.dtype)


def of_rows(x, cu_seqlens, rows):
    """x, (sequences, heads, n), for each row of `rows`; 0 where there are no sequences."""
    if cu_seqlens is None:
        return x[:, None]
    if x.shape[0] == 0:
        return x.new_zeros((rows.shape[0], *x.shape[1:]))
    return x[sequences(cu_seqlens, rows)]


def sequences(cu_seqlens, rows):
    """The sequence of each packed row; the last one of rows that no sequence owns."""
    index = torch.arange(rows.shape[0], dtype=cu_seqlens.dtype, device=rows.device)
    found = torch.searchsorted(cu_seqlens[1:], index, right=True)
    return found.clamp(max=cu_seqlens.shape[0] - 2)


forward_fp8 = define("forward_fp8", SCHEMA, kernel, shapes, recorded_by(AttentionFp8))


def attend_fp8(inputs, quantized, how, options):
    """attention_fp8() of tensors that need a gradient, or of a call that samples are taken of.

    Args:
        inputs: q, k, v.
        quantized: a Quantized of each.
        how: hadamard, seed, saves_quantized, v_transposed and learns, by name.
        options: those of attention_fp8(), by name.
    """
    q, k, _ = inputs
    own = "return_lse", "return_max_logit", "generator"
    given = {name: value for name, value in options.items() if name not in own}
    if "block_mask" in options:
        refuse_other_extents(options["block_mask"], q, k, options)
    q8, k8, v8 = quantized
    named = Options(*seeded(q, in_order("attention_fp8", given), options.get("generator")))
    # A softcap, a sink and a gate see the scores and the output themselves.
    is_shifted = named.softcap or named.sink is not None or named.gate is not None
    learns = how.pop("learns")
    centred = k8.mean is not None and not is_shifted and (learns or not options.get("return_lse"))
    call = Call(
        *(*inputs, q8.x, k8.x, v8.x, q8.descale, k8.descale, v8.descale, k8.mean, v8.mean),
        centred=centred,
        num_splits=named.num_splits,
        **how,
    )
    out, lse = forward_fp8(*call, *named[: len(BOTH_PASSES)])
    if not options.get("return_lse"):
        return out
    if call.centred:
        k_mean = turned_back(k8.mean, rotation(call))
        group = q.shape[-2] // k_mean.shape[1]
        mean = of_rows(k_mean.repeat_interleave(group, 1), named.cu_seqlens_q, q)
        scale = q.shape[-1] ** -0.5 if named.scale is None else named.scale
        of_mean = scale * (q.float() * mean).sum(-1).transpose(-1, -2)
        lse = torch.where(lse > -torch.inf, lse + of_mean, lse)  # q of no sequence may be NaN
    return out, lse

# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.quantize: fa3.quantize; quantize_together and dequantize_together: q, k and v of
attention_fp8, there and back.
"""

import torch

from fa3 import _calls
from fa3.torch.checks import refuse_other_than_tensor, refuse_sharded
from fa3.torch.library import define, refuse_gradients, unrecorded
from fa3.torch.operators import new_rows, threads_of

SCHEMA = (
    '(Tensor x, str scaling="block", bool center=False, Tensor? rotary_cos=None, '
    "Tensor? rotary_sin=None, bool interleaved=False, bool hadamard=False, int seed=0, "
    "Tensor? cu_seqlens=None, Tensor? seqused=None, SymInt max_seqlen=0, bool transposed=False, "
    "int engine=0, int num_threads=0) -> (Tensor y, Tensor descale, Tensor mean)"
)
OF_SHAPES = 5, 7, 8  # positions of cu_seqlens, max_seqlen and transposed after center


def shapes(x, scaling="block", center=False, *options):
    """y, descale and mean; mean has no elements where it is not wanted."""
    given = (options[at] if len(options) > at else None for at in OF_SHAPES)
    cu_seqlens, max_seqlen, transposed = given
    y, descale, mean = _calls.new_quantized(
        x, scaling, center, cu_seqlens, max_seqlen or 0, transposed
    )
    return y, descale, x.new_empty((0,), dtype=torch.float32) if mean is None else mean


def kernel(x, scaling="block", center=False, *options):
    y, descale, mean = shapes(x, scaling, center, *options)
    defaults = (None, None, False, False, 0, None, None, 0, False, 0, 0)
    options = *options, *defaults[len(options) :]
    threads = threads_of(x, options[-1])
    _calls.quantize(x, y, descale, mean if center else None, *options[:-1], threads)
    return y, descale, mean


def record(op, x, scaling="block", center=False, cos=None, sin=None, *options):
    tables = {"rotary's cos": cos, "rotary's sin": sin}
    refuse_gradients("since rounding has none", x=x, **tables)
    return unrecorded(op, x, scaling, center, cos, sin, *options)


run = define("quantize", SCHEMA, kernel, shapes, record)


def quantize(x, scaling, center, cos, sin, *options):
    """fa3.quantize of a torch tensor: options in the order of torch.ops.fa3.quantize."""
    refuse_sharded(x)
    tensors = {"rotary": cos, "rotary's sin": sin, "cu_seqlens": options[3], "seqused": options[4]}
    for name, tensor in tensors.items():
        if tensor is not None:
            refuse_other_than_tensor(name, tensor)
    y, descale, mean = run(x, scaling, center, cos, sin, *options)
    return y, descale, mean if center else None


TOGETHER = (
    "(Tensor q, Tensor k, Tensor v, str scaling, bool center, bool hadamard, int seed, "
    "Tensor? cu_seqlens_q, Tensor? seqused_q, SymInt max_seqlen_q, Tensor? cu_seqlens_k, "
    "Tensor? seqused_k, SymInt max_seqlen_k, bool transposed, int engine, int num_threads) -> "
    "(Tensor q8, Tensor q_descale, Tensor q_mean, Tensor k8, Tensor k_descale, Tensor k_mean, "
    "Tensor v8, Tensor v_descale, Tensor v_mean)"
)


def shapes_together(q, k, v, scaling, center, hadamard, seed, *options):
    """What quantize() gives of each. q has no mean; v alone may be transposed."""
    cu_q, _, max_q, cu_k, _, max_k, transposed, *_ = options
    found = []
    for x, centred, cu, longest, turned in (
        (q, False, cu_q, max_q, False),
        (k, center, cu_k, max_k, False),
        (v, center, cu_k, max_k, transposed),
    ):
        y, descale, mean = _calls.new_quantized(x, scaling, centred, cu, longest, turned)
        found += y, descale, x.new_empty((0,), dtype=torch.float32) if mean is None else mean
    return tuple(found)


def kernel_together(q, k, v, scaling, center, hadamard, seed, *options):
    found = shapes_together(q, k, v, scaling, center, hadamard, seed, *options)
    *lengths, transposed, engine, num_threads = options
    threads = threads_of(q, num_threads)

    def call(x, at, mixed, centred, of_lengths, turned):
        y, descale, mean = found[at : at + 3]
        numbers = x, y, descale, mean if centred else None, None, None, False
        return *numbers, mixed, seed, *of_lengths, turned, engine, threads

    calls = {
        "q": call(q, 0, hadamard, False, lengths[:3], False),
        "k": call(k, 3, hadamard, center, lengths[3:], False),
        "v": call(v, 6, False, center, lengths[3:], transposed),
    }
    _calls.quantize_together(calls)
    return found


def record_together(op, *arguments):
    refuse_gradients("since rounding has none", **dict(zip("qkv", arguments, strict=False)))
    return unrecorded(op, *arguments)


run_together = define(
    "quantize_together", TOGETHER, kernel_together, shapes_together, record_together
)


def quantize_together(q, k, v, scaling, center, hadamard, seed, lengths_q, lengths_k, *options):
    """(x, descale, mean or None) of each. lengths_q, lengths_k: cu_seqlens, seqused, max_seqlen.
    options: the operator's behind these."""
    refuse_sharded(q, k, v)
    for side, (cu_seqlens, seqused, _) in (("q", lengths_q), ("k", lengths_k)):
        for name, tensor in (("cu_seqlens", cu_seqlens), ("seqused", seqused)):
            if tensor is not None:
                refuse_other_than_tensor(f"{name}_{side}", tensor)
    lengths = *lengths_q, *lengths_k
    found = run_together(q, k, v, scaling, center, hadamard, seed, *lengths, *options)
    return [(*found[at : at + 2], found[at + 2] if center and at > 0 else None) for at in (0, 3, 6)]


DEQUANTIZE = (
    "(Tensor q8, Tensor q_descale, Tensor k8, Tensor k_descale, Tensor? k_mean, Tensor v8, "
    "Tensor v_descale, Tensor? v_mean, ScalarType dtype, bool hadamard, int seed, "
    "Tensor? cu_seqlens_q, Tensor? seqused_q, SymInt max_seqlen_q, Tensor? cu_seqlens_k, "
    "Tensor? seqused_k, SymInt max_seqlen_k, bool transposed, int num_threads) -> "
    "(Tensor q, Tensor k, Tensor v)"
)


def wide_shapes(q8, q_descale, k8, k_descale, k_mean, v8, v_descale, v_mean, dtype, *_):
    return tuple(new_rows(x.shape, dtype, x.device) for x in (q8, k8, v8))


def wide_kernel(q8, q_descale, k8, k_descale, k_mean, v8, v_descale, v_mean, dtype, *options):
    """What q8, k8 and v8 stand for, in `dtype`; a mean that is not given stays away."""
    q, k, v = found = wide_shapes(
        q8, q_descale, k8, k_descale, k_mean, v8, v_descale, v_mean, dtype
    )
    hadamard, seed, *lengths, transposed, num_threads = options
    threads = threads_of(q8, num_threads)

    def call(x, x8, descale, mean, mixed, of_lengths, turned):
        numbers = x, x8, descale, mean, None, None, False, mixed, seed
        return *numbers, *of_lengths, turned, 0, threads

    calls = {
        "q": call(q, q8, q_descale, None, hadamard, lengths[:3], False),
        "k": call(k, k8, k_descale, k_mean, hadamard, lengths[3:], False),
        "v": call(v, v8, v_descale, v_mean, False, lengths[3:], transposed),
    }
    _calls.dequantize_together(calls)
    return found


def record_wide(op, *arguments):
    return unrecorded(op, *arguments)


dequantize_together = define(
    "dequantize_together", DEQUANTIZE, wide_kernel, wide_shapes, record_wide
)

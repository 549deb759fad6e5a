# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.quantize, and fa3.quantize of torch tensors through it."""

import torch

from fa3 import _calls
from fa3.torch.checks import refuse_other_than_tensor
from fa3.torch.library import define, refuse_gradients, unrecorded
from fa3.torch.operators import threads_of

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
    tensors = {"rotary": cos, "rotary's sin": sin, "cu_seqlens": options[3], "seqused": options[4]}
    for name, tensor in tensors.items():
        if tensor is not None:
            refuse_other_than_tensor(name, tensor)
    y, descale, mean = run(x, scaling, center, cos, sin, *options)
    return y, descale, mean if center else None

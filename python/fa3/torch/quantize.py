# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.quantize, and fa3.quantize of torch tensors through it."""

import torch

from fa3 import _calls
from fa3.errors import InvalidArgument
from fa3.torch.checks import refuse_other_than_tensor
from fa3.torch.operators import KEYS, library, refuse_partly_meta

library.define(
    'quantize(Tensor x, str scaling="block", bool center=False, Tensor? rotary_cos=None, '
    "Tensor? rotary_sin=None, bool interleaved=False, bool hadamard=False, int seed=0, "
    "Tensor? cu_seqlens=None, Tensor? seqused=None, SymInt max_seqlen=0, int engine=0, "
    "int num_threads=0) -> (Tensor y, Tensor descale, Tensor mean)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LENGTHS = 5, 7  # positions of cu_seqlens and max_seqlen after center


def results(x, scaling, center, options):
    """y, descale and mean; mean has no elements where it is not wanted."""
    cu_seqlens, max_seqlen = (options[at] if len(options) > at else None for at in LENGTHS)
    y, descale, mean = _calls.new_quantized(x, scaling, center, cu_seqlens, max_seqlen or 0)
    return y, descale, x.new_empty((0,), dtype=torch.float32) if mean is None else mean


def kernel(x, scaling="block", center=False, *options):
    y, descale, mean = results(x, scaling, center, options)
    defaults = (None, None, False, False, 0, None, None, 0, 0, 0)
    options += defaults[len(options) :]
    _calls.quantize(x.detach(), y, descale, mean if center else None, *options)
    return y, descale, mean


for key in KEYS.values():
    library.impl("quantize", kernel, key)


@torch.library.register_fake("fa3::quantize", lib=library)
def _(x, scaling="block", center=False, *options):
    refuse_partly_meta(x, *options)
    return results(x, scaling, center, options)


def quantize(x, scaling, center, cos, sin, *options):
    tensors = {"rotary": cos, "rotary's sin": sin, "cu_seqlens": options[3], "seqused": options[4]}
    for name, tensor in tensors.items():
        if tensor is not None:
            refuse_other_than_tensor(name, tensor)
    if torch.is_grad_enabled() and x.requires_grad:
        raise InvalidArgument(
            "x: expected a tensor that needs no gradient, since rounding has none; use "
            "torch.no_grad(), or x.detach()"
        )
    y, descale, mean = torch.ops.fa3.quantize(x, scaling, center, cos, sin, *options)
    return y, descale, mean if center else None

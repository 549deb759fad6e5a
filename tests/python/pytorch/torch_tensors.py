# SPDX-License-Identifier: Apache-2.0
"""Tensors for the tests of torch, in the type that the engine of their device has."""

import torch


def tensors(device, *shapes):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]

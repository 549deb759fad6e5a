# SPDX-License-Identifier: Apache-2.0
"""Drop-in for sgl_kernel.flash_mla: FlashMLA's calls, whose metadata is two tensors here."""

import torch

from fa3.compat.flash_mla import flash_mla_sparse_fwd as flash_mla_sparse_fwd
from fa3.compat.flash_mla import flash_mla_with_kvcache as flash_mla_with_kvcache

__all__ = ["flash_mla_sparse_fwd", "flash_mla_with_kvcache", "get_mla_metadata"]


def __dir__():
    return __all__


NUMBERS_OF_A_PART = 8


def get_mla_metadata(
    cache_seqlens,
    num_q_tokens_per_head_k,
    num_heads_k,
    num_heads_q=None,
    is_fp8_kvcache=False,
    topk=None,
):
    """Zeros in the shapes of the original's, int32 (SMs, 8) and (b + 1,), on cache_seqlens' device.

    sglang copies them into buffers of a graph. flash_mla_with_kvcache does not read them: fa3 plans
    within the call. The shapes depend on the device and on the batch alone.
    """
    device = cache_seqlens.device
    parts = 1
    if device.type == "cuda":
        parts = torch.cuda.get_device_properties(device).multi_processor_count
    zeros = {"dtype": torch.int32, "device": device}
    scheduler = torch.zeros(parts, NUMBERS_OF_A_PART, **zeros)
    return scheduler, torch.zeros(cache_seqlens.shape[0] + 1, **zeros)

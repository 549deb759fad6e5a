# SPDX-License-Identifier: Apache-2.0
"""vLLM's writer of latent caches (MLA): concat_and_cache_mla of its custom operators."""

import torch

import fa3
from fa3.errors import InvalidArgument

__all__ = ["concat_and_cache_mla"]


def __dir__():
    return __all__


PLAIN = "auto", "float16", "bfloat16", "float32"
ONE_SCALE = "fp8", "fp8_e4m3"
ROWS_OF_656 = "fp8_ds_mla"


@torch.no_grad()
def concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale):
    """Writes rows [kv_c | k_pe] into kv_cache, in place and bit for bit as vLLM does.

    Args:
        kv_c, k_pe: (tokens, 512) and (tokens, 64); k_pe may have 0 channels. Tokens behind those of
            slot_mapping are padding.
        kv_cache: (blocks, block_size, 576) in kv_c's type, or bytes of e4m3; with "fp8_ds_mla"
            (blocks, block_size, 656) bytes.
        slot_mapping: int64 (n,): block * block_size + row; -1 is not written.
        kv_cache_dtype: "auto" (kv_c's type), "fp8" or "fp8_e4m3" (one scale), or "fp8_ds_mla".
        scale: float32 of one element, which "fp8" rows are divided by; else ignored.
    """
    tokens = slot_mapping.shape[0]
    kv_c, k_pe = kv_c[:tokens], (k_pe[:tokens] if k_pe.shape[-1] else None)
    call = {"slots": slot_mapping}
    if kv_cache_dtype in PLAIN:
        call["rows"] = "latent"
    elif kv_cache_dtype in ONE_SCALE:
        call |= {"rows": "tensor", "descale": scale.float().reshape(1)}
    elif kv_cache_dtype == ROWS_OF_656:
        call |= {"rows": "group128", "scaling": "exact"}
    else:
        raise InvalidArgument(
            f"kv_cache_dtype: expected auto, fp8, fp8_e4m3 or fp8_ds_mla, got {kv_cache_dtype!r}"
        )
    fa3.mla.append(kv_cache, kv_c, k_pe, **call)

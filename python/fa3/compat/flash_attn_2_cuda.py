# SPDX-License-Identifier: Apache-2.0
"""The compiled module of FlashAttention-2 in name: programs import it to see whether it works.

TransformerEngine takes varlen_bwd from it, unsloth flash_attn_gpu. Calls raise: its functions count
their arguments by position, differently in each version.
"""

from fa3.errors import Unsupported


def absent(name):
    def function(*arguments, **named):
        raise Unsupported(
            f"flash_attn_2_cuda.{name}: fa3 is not called by flash_attn's compiled module; use the "
            "functions of flash_attn.flash_attn_interface, _flash_attn_forward and the like too"
        )

    return function


fwd, varlen_fwd, bwd, varlen_bwd, fwd_kvcache = map(
    absent, ("fwd", "varlen_fwd", "bwd", "varlen_bwd", "fwd_kvcache")
)

# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fa3_fp8": attention in FP8, its gradient in the model's own type.

Layers and masks are those of "fa3". Calls over a cache run in the model's type: few queries would
not pay for quantizing all keys again. So do sequences of their own lengths on a GPU, which has no
quantizer for them.
"""

import functools

from fa3.fp8 import attention_fp8
from fa3.hf.attention import attention_forward as with_options
from fa3.torch import attention

NAME = "fa3_fp8"


def attend(q, k, v, **options):
    if q.is_cuda and options.get("cu_seqlens_k") is not None:
        return attention(q, k, v, **options)
    return attention_fp8(q, k, v, **options)


attention_forward = functools.partial(with_options, attend=attend)

# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fa3_fp8": attention in FP8, its gradient in the model's own type.

Layers and masks are those of "fa3". Calls over a cache run in the model's type: few queries would
not pay for quantizing all keys again.
"""

import functools

from fa3.fp8 import attention_fp8
from fa3.hf.attention import attention_forward as with_options

NAME = "fa3_fp8"

attention_forward = functools.partial(with_options, attend=attention_fp8)

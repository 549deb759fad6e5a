# SPDX-License-Identifier: Apache-2.0
"""fa3 for Hugging Face Transformers: importing this module adds attn_implementation="fa3"::

    import fa3.hf
    model = AutoModel.from_pretrained(path, attn_implementation="fa3")

Transformers asks for a mask once a forward pass (mask.py) and hands it to every attention layer
(attention.py). What fa3 cannot do raises fa3.Unsupported; no argument is dropped in silence.
"fa3_fp8" computes in FP8 (fp8.py). "fa3_flex" takes any mask and scores of a model's own (flex.py).
"flash_fa3" is the same under a name that Transformers 5.5 and later takes for flash attention
(flash.py): vision towers call once for all their windows, and generate_batch() runs.

Raises ImportError with a Transformers older than 4.57.
"""

import transformers
from packaging.version import Version

if Version(transformers.__version__).release < (4, 57):
    raise ImportError(
        f"fa3.hf: expected Transformers 4.57 or later, got {transformers.__version__}; "
        "run: pip install 'transformers>=4.57'"
    )

from transformers import AttentionInterface, AttentionMaskInterface

from fa3.errors import InvalidArgument
from fa3.hf import flash, flex, fp8, tables
from fa3.hf.attention import attention_forward
from fa3.hf.mask import attention_mask

NAME = "fa3"
VERSION = Version(transformers.__version__).release


def register(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"name: expected an attn_implementation, a text, got {name!r}")
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


register(NAME)
AttentionInterface.register(fp8.NAME, fp8.attention_forward)
AttentionMaskInterface.register(fp8.NAME, attention_mask)
AttentionInterface.register(flex.NAME, flex.attention_forward)
AttentionMaskInterface.register(flex.NAME, flex.attention_mask)
if VERSION >= (5, 5):
    register(flash.NAME)
    flash.provide_functions()
tables.watch({NAME, fp8.NAME, flash.NAME, flex.NAME})

# SPDX-License-Identifier: Apache-2.0
"""fa3 for Hugging Face Transformers: importing this module adds attn_implementation="fa3"::

    import fa3.hf
    model = AutoModel.from_pretrained(path, attn_implementation="fa3")

Transformers asks for a mask once a forward pass (mask.py) and hands it to every attention layer
(attention.py). What fa3 cannot do raises fa3.Unsupported; no argument is dropped in silence.
"""

from transformers import AttentionInterface, AttentionMaskInterface

from fa3.hf.attention import attention_forward
from fa3.hf.mask import attention_mask

NAME = "fa3"

AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, attention_mask)

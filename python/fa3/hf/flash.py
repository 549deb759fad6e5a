# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="flash_fa3": fa3 on the paths that Transformers keeps for flash attention.

Transformers goes by the name: where it holds "flash", vision towers hand over all their windows
in one packed call instead of one call each, and generate_batch() takes the model. Layers and masks
are those of "fa3". Transformers also wants to import the functions behind such a name.
"""

import functools

from transformers import modeling_flash_attention_utils as transformers_flash

from fa3.compat import flash_attn_interface

NAME = "flash_fa3"


def provide_functions():
    """Tells Transformers which functions to import for NAME."""
    import_functions = transformers_flash._lazy_imports

    @functools.wraps(import_functions)
    def with_fa3(implementation, *arguments, **keywords):
        if implementation != NAME:
            return import_functions(implementation, *arguments, **keywords)
        return (
            flash_attn_interface.flash_attn_func,
            flash_attn_interface.flash_attn_varlen_func,
            flash_attn_interface.flash_attn_with_kvcache,
            transformers_flash._pad_input,
            transformers_flash._unpad_input,
        )

    transformers_flash._lazy_imports = with_fa3

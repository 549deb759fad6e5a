# SPDX-License-Identifier: Apache-2.0
"""The files of the names of flash_attn, and of a hub kernel: path -> text. adopt.py writes them."""

import functools
import json

VERSIONS = {
    "flash-attn-3": "3.0.0+fa3",
    "flash-attn": "2.8.3+fa3",
    "flash-attn-4": "4.0.0+fa3",
    "ring-flash-attn": "0.1.8+fa3",
}
RING_PARTS = (
    *("ring_flash_attn", "ring_flash_attn_varlen", "llama3_flash_attn_varlen"),
    *("zigzag_ring_flash_attn", "zigzag_ring_flash_attn_varlen"),
)
NOT_ATTENTION = ("layers", "losses", "models", "modules", "ops", "utils")

NOTE = "# Written by fa3 adopt, removed by fa3 adopt --undo.\n"
EVERY_NAME = (
    NOTE
    + """\
try:
    from fa3.compat import {module} as answers
except ModuleNotFoundError as error:
    if error.name != "fa3":
        raise
    raise ModuleNotFoundError(
        __name__ + ": expected fa3, which answers here since fa3 adopt, but fa3 is not installed; "
        "install fa3, or pip uninstall {distribution}",
        name="fa3",
    ) from None

globals().update({{n: value for n, value in vars(answers).items() if not n.startswith("__")}})
"""
)
# Before return_attn_probs there was no other form: Wan and its forks take [0] of the answer.
TUPLES = """
from functools import partial

flash_attn_func = partial(answers.flash_attn_func, return_attn_probs=True)
flash_attn_varlen_func = partial(answers.flash_attn_varlen_func, return_attn_probs=True)
"""
HUB_MODULE = """\
# Written by fa3 adopt --hub-kernel.
from fa3.compat import flash_attn_interface
from fa3.compat.flash_attn_interface import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_interface",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]
"""


def modules(name, returns_tuple):
    """Path in site-packages -> text, for the modules of a distribution."""
    every_name = functools.partial(EVERY_NAME.format, distribution=name)
    version = f'{NOTE}__version__ = "{VERSIONS[name]}"\n'
    if name == "flash-attn-3":
        interface = every_name(module="flash_attn_interface") + TUPLES * returns_tuple
        return {
            "flash_attn_interface.py": interface,
            "flash_attn_3/__init__.py": version,
            "flash_attn_3/flash_attn_interface.py": interface,
        }
    if name == "ring-flash-attn":
        names = every_name(module="ring_flash_attn")
        adapters = ("adapters/__init__", "adapters/hf_adapter")
        return {
            "ring_flash_attn/__init__.py": names + f'__version__ = "{VERSIONS[name]}"\n',
            **{f"ring_flash_attn/{part}.py": names for part in (*RING_PARTS, *adapters)},
        }
    if name == "flash-attn-4":  # flash_attn may be a package of others, or have no file at all
        names = every_name(module="flash_attn_4")
        return {
            "flash_attn/cute/__init__.py": names + f'__version__ = "{VERSIONS[name]}"\n',
            "flash_attn/cute/interface.py": names,
        }
    # FlashAttention-4 is flash_attn.cute: it may come from another folder.
    beside_others = (
        "from pkgutil import extend_path\n\n"
        "from flash_attn.flash_attn_interface import (  # noqa: F401\n"
        "    flash_attn_func,\n"
        "    flash_attn_kvpacked_func,\n"
        "    flash_attn_qkvpacked_func,\n"
        "    flash_attn_varlen_func,\n"
        "    flash_attn_varlen_kvpacked_func,\n"
        "    flash_attn_varlen_qkvpacked_func,\n"
        "    flash_attn_with_kvcache,\n"
        ")\n\n__path__ = extend_path(__path__, __name__)\n"
    )
    return {
        "flash_attn/__init__.py": version + beside_others,
        "flash_attn/flash_attn_interface.py": every_name(module="flash_attn"),
        "flash_attn/bert_padding.py": every_name(module="bert_padding"),
        "flash_attn_2_cuda.py": every_name(module="flash_attn_2_cuda"),
        **{f"flash_attn/{part}/__init__.py": not_attention(part) for part in NOT_ATTENTION},
    }


def not_attention(part):
    sentence = (
        f"flash_attn.{part}: fa3 stands in for flash_attn here and has its attention alone; use "
        "torch's own operation, or flash-attn in place of fa3 (fa3 adopt --undo, pip install "
        "flash-attn)"
    )
    return f"{NOTE}raise ImportError({sentence!r})\n"


def hub_kernel():
    """A kernel repository for every backend of torch: path -> text."""
    about = {
        "id": "_fa3_hub_kernel",  # the name under which kernels imports it
        "name": "fa3",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }
    variant = "build/torch-universal"
    return {
        f"{variant}/__init__.py": HUB_MODULE,
        f"{variant}/metadata.json": json.dumps(about, indent=2) + "\n",
    }

# SPDX-License-Identifier: Apache-2.0
"""Exact attention that never stores the score matrix, after FlashAttention-3::

    import fa3
    out = fa3.attention(q, k, v, causal=True)  # NumPy, torch (differentiable), any DLPack array

fa3.torch has the torch operators and the switch for scaled_dot_product_attention, fa3.hf the one
for Transformers, fa3.jax attention for compiled JAX programs, fa3.distributed attention over
several ranks, fa3.mla attention to latent caches, fa3.monitor what calls cost, fa3.compat the names
of the flash_attn packages.
`python -m fa3 doctor` says what works on this machine.
"""

from fa3 import mla as mla
from fa3 import monitor as monitor
from fa3._dropout import dropout_mask
from fa3._flex import flex_attention
from fa3._native import version as _version
from fa3.errors import (
    CommunicationError,
    DeviceError,
    Error,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    Unsupported,
    WorkspaceTooSmall,
)
from fa3.fp8 import Advice, advise, attention_fp8
from fa3.ops import (
    Gradients,
    append,
    attention,
    attention_backward,
    engines,
    merge,
    plan,
    validate,
)
from fa3.quantization import Quantized, quantize

__version__ = _version()
monitor.read_environment()

__all__ = [
    "Advice",
    "CommunicationError",
    "DeviceError",
    "Error",
    "Gradients",
    "InternalError",
    "InvalidArgument",
    "OutOfMemory",
    "Quantized",
    "Unsupported",
    "WorkspaceTooSmall",
    "advise",
    "append",
    "attention",
    "attention_backward",
    "attention_fp8",
    "dropout_mask",
    "engines",
    "flex_attention",
    "merge",
    "plan",
    "quantize",
    "validate",
]

PACKAGES = {"compat", "distributed", "errors", "hf", "jax", "masks", "mla", "monitor", "torch"}


def __dir__():
    return [*__all__, "__version__", *(PACKAGES & globals().keys())]

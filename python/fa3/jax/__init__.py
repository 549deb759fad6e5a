# SPDX-License-Identifier: Apache-2.0
"""fa3 for JAX: attention inside of jax.jit, with gradients, on CPUs and CUDA devices::

    import fa3.jax
    out = fa3.jax.attention(q, k, v, causal=True)

The library is called by XLA's FFI: a compiled program runs without Python. fa3.attention takes JAX
arrays too, outside of every transformation.
"""

import jax

from fa3.errors import Unsupported

if not hasattr(jax, "shard_map"):
    raise Unsupported(f"fa3.jax: expected JAX 0.7 or later, got JAX {jax.__version__}")

from fa3.jax.cache import append
from fa3.jax.dot_product import dot_product_attention
from fa3.jax.vjp import attention

__all__ = ["append", "attention", "dot_product_attention"]

# SPDX-License-Identifier: Apache-2.0
"""fa3.jax.dot_product_attention: the arguments of jax.nn.dot_product_attention."""

import jax
import jax.numpy as jnp
import numpy as np

from fa3._arrays import in_int32
from fa3.errors import InvalidArgument
from fa3.jax.vjp import attention
from fa3.masks import BLOCK, BlockMask, from_rule


def dot_product_attention(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    scale=None,
    is_causal=False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size=None,
    implementation=None,
    return_residual=False,
):
    """jax.nn.dot_product_attention by fa3: same arguments, shapes and alignment.

    So a query sees the keys up to its own number (top-left) with is_causal, and local_window_size
    counts from there. Takes what fa3.jax.attention takes. Differs where a query sees no key: its
    output is 0, where JAX's own is the mean of the values.

    Args:
        query: (b, t, n, h) or (t, n, h).
        key, value: (b, s, k, h) or (s, k, h); n % k == 0.
        bias: floats that broadcast to (b, n, t, s), added to the scores by XLA's operations (see
            fa3.jax.attention).
        mask: booleans that broadcast to (b, n, t, s), True where a query sees a key.
        scale: of q.k; None is h ** -0.5.
        is_causal, local_window_size: values that are known while the program is traced.
        query_seq_lengths, key_value_seq_lengths: (b,) int32. Queries past the end get 0.
        implementation: accepted and ignored.
        return_residual: also return the LSE, (b, t, n), without a gradient.
    """
    arrays = [jnp.asarray(x) for x in (query, key, value)]
    bias, mask = (None if x is None else jnp.asarray(x) for x in (bias, mask))
    is_one = arrays[0].ndim == 3
    q, k, v = (x[None] if x.ndim == 3 else x for x in arrays)
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise InvalidArgument(
            "query, key, value: expected rank 3 (seq, heads, dim) or 4, with a batch in front, got "
            f"{', '.join(str(x.shape) for x in arrays)}"
        )
    if mask is not None and mask.dtype != bool:
        raise InvalidArgument(f"mask: expected booleans, got {mask.dtype}; pass floats as bias")
    t, s = q.shape[1], k.shape[1]
    left, right = ends(is_causal, local_window_size)
    lengths = {"seqused_q": query_seq_lengths, "seqused_k": key_value_seq_lengths}
    options = {
        name: jnp.asarray(in_int32(x if hasattr(x, "dtype") else np.asarray(x)))
        for name, x in lengths.items()
        if x is not None
    }
    has_window = left is not None or right is not None
    has_own_number = min(left or 0, right or 0) >= 0
    # fa3's window counts from the last key of the last query, and has no negative ends.
    if has_window and has_own_number and not options:
        options |= {"window": (left, right), "window_shift": t - s}
    elif has_window and bias is None and mask is None:
        options["block_mask"] = band(t, s, left, right)
    elif has_window:
        query_number, key_number = jnp.arange(t)[:, None], jnp.arange(s)
        seen = in_band(left, right, query_number, key_number)
        mask = seen if mask is None else mask & seen
    if bias is not None and not jnp.issubdtype(bias.dtype, jnp.floating):
        raise InvalidArgument(f"bias: expected floats, got {bias.dtype}; booleans are a mask")
    if bias is not None and mask is not None:
        bias = jnp.where(mask, bias, -jnp.inf)
    elif mask is not None:
        bias = mask
    out, lse = attention(q, k, v, bias=bias, scale=scale, return_lse=True, **options)
    lse = jax.lax.stop_gradient(lse.swapaxes(-1, -2).astype(q.dtype))
    if is_one:
        out, lse = out[0], lse[0]
    return (out, lse) if return_residual else out


def ends(is_causal, window):
    """(left, right) keys around a query's own number; None is unbounded, and negative ones leave
    that number out."""
    left, right = (window, window) if window is None or isinstance(window, int) else window
    return left, min(0, right or 0) if is_causal else right


def in_band(left, right, query, key):
    seen = (query >= 0) | (key >= 0)
    if left is not None:
        seen = seen & (key - query >= -left)
    return seen if right is None else seen & (key - query <= right)


def band(t, s, left, right):
    """A block mask of keys around a query's own number. A block depends on its distance from the
    diagonal alone, so that a row of blocks has all of them."""
    rows, columns = -(-t // BLOCK), -(-s // BLOCK)
    before = rows - 1
    strip = from_rule(
        lambda b, h, q, k: in_band(left, right, q, k - before * BLOCK),
        *(1, 1, BLOCK, (before + columns) * BLOCK),
        compact=True,
    )
    place = np.arange(columns) - np.arange(rows)[:, None] + before
    return BlockMask(strip.blocks[:, :, 0, place], strip.bits)

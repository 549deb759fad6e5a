# SPDX-License-Identifier: Apache-2.0
"""Attention with floats that are added to the scores, in XLA's operations.

The library adds such a bias on a GPU alone, as text that torch's side writes (fa3/flex/bias.py).
Here a block of queries is computed at a time, and computed again for gradients, so that memory
holds the scores of one block.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fa3._options import OF_FORWARD, instead_of, window_ends
from fa3.errors import InvalidArgument, Unsupported
from fa3.masks import BLOCK, from_dense

FAR = 1 << 30  # keys
TOGETHER = {
    *("causal", "window", "window_shift", "softcap", "scale", "seqused_q", "seqused_k"),
    *("num_threads", "deterministic"),
}


def four_dimensions(bias, q, k, options):
    """bias as (b | 1, hq | 1, sq | 1, sk | 1)."""
    if any(x is not None for x in map(options.get, ("cu_seqlens_q", "cu_seqlens_k", "page_table"))):
        raise Unsupported(
            "bias: expected None together with cu_seqlens and page_table; pass booleans as "
            "block_mask (fa3.masks.from_dense), with rows and keys that count from 0"
        )
    if q.ndim != 4 or k.ndim != 4:
        raise InvalidArgument(
            "q, k: expected rank 4 (batch, seq, heads, dim) together with bias, got "
            f"{q.shape} and {k.shape}"
        )
    full = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    shape = (*[1] * (4 - bias.ndim), *bias.shape)
    if any(have not in (1, want) for have, want in zip(shape, full, strict=False)) or bias.ndim > 4:
        raise InvalidArgument(
            f"bias: expected a shape that broadcasts to (b, hq, sq, sk) = {full}, got {bias.shape}"
        )
    return bias.reshape(shape)


def mask_of(seen, q, k, options):
    """Booleans as a block mask; of NumPy's, bits of blocks that need them alone."""
    is_known = isinstance(seen, np.ndarray)
    seen = four_dimensions(seen, q, k, options)
    whole = (*seen.shape[:2], q.shape[1], k.shape[1])
    seen = (np if is_known else jnp).broadcast_to(seen, whole)
    return from_dense(seen, compact=is_known)


def refuse_beside_bias(q, k, v, options):
    """What attention(bias=) of floats has not, and the library has."""
    for name, value in options.items():
        if name not in OF_FORWARD:
            message = f"attention() got an unexpected keyword argument {name!r}"
            raise TypeError(message + instead_of(name, OF_FORWARD))
        if name not in TOGETHER and value is not None and value is not OF_FORWARD[name][2]:
            raise Unsupported(f"{name}: not together with a bias of floats")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if str(getattr(x, "dtype", "")).startswith("float8"):
            raise Unsupported(f"{name}: not together with a bias of floats, got {x.dtype}")


def attend_with_bias(q, k, v, bias, return_lse, options):
    """attention(bias=) of floats, of a call that the library would take. options: by name."""
    if not jnp.issubdtype(bias.dtype, jnp.floating):
        raise InvalidArgument(f"bias: expected floats or booleans, got {bias.dtype}")
    q, k, v, bias = map(jnp.asarray, (q, k, v, four_dimensions(bias, q, k, options)))
    (b, sq, hq, d), (sk, hk) = q.shape, k.shape[1:3]
    group = hq // hk
    if sq == 0:
        out, lse = jnp.zeros((b, 0, hq, v.shape[-1]), q.dtype), jnp.zeros((b, hq, 0), jnp.float32)
        return (out, lse) if return_lse else out
    rows = min(BLOCK, sq)
    blocks = -(-sq // rows)
    sees = visible(options, sq, sk)
    scale = d**-0.5 if options.get("scale") is None else options["scale"]
    if isinstance(scale, str) or np.shape(scale):
        raise TypeError(f"scale: expected a number, got {scale!r}")
    scale = jnp.asarray(scale, jnp.float32)
    # What is stored behind a sequence may be NaN, which a weight of 0 would pass on.
    q = within(options.get("seqused_q"), q)
    k, v = (within(options.get("seqused_k"), x) for x in (k, v))
    softcap = options.get("softcap")

    @jax.checkpoint
    def block(q, bias, first):
        scores = jnp.einsum("bigrd,bjgd->bgrij", q, k, preferred_element_type=jnp.float32) * scale
        if softcap:
            scores = softcap * jnp.tanh(scores / softcap)
        scores += bias.astype(jnp.float32)
        scores = jnp.where(sees(first + jnp.arange(rows)), scores, -jnp.inf)
        top = jax.lax.stop_gradient(scores.max(-1, keepdims=True, initial=-jnp.inf))
        top = jnp.where(jnp.isfinite(top), top, 0)
        weights = jnp.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        some = total > 0
        weights = (weights / jnp.where(some, total, 1)).astype(v.dtype)
        out = jnp.einsum("bgrij,bjge->bigre", weights, v, preferred_element_type=jnp.float32)
        lse = jnp.where(some, jnp.log(jnp.where(some, total, 1)) + top, -jnp.inf)[..., 0]
        return out.reshape(b, rows, hq, v.shape[-1]).astype(q.dtype), lse.reshape(b, hq, rows)

    def in_blocks(x, axis):
        """Blocks of queries in front."""
        pad = [(0, blocks * rows - sq if at == axis else 0) for at in range(x.ndim)]
        x = jnp.pad(x, pad)
        return jnp.moveaxis(x.reshape(*x.shape[:axis], blocks, rows, *x.shape[axis + 1 :]), axis, 0)

    heads = (hk, group) if bias.shape[1] > 1 else (1, 1)
    bias = bias.reshape(bias.shape[0], *heads, *bias.shape[2:])
    has_rows = bias.shape[3] > 1
    parts = {"q": in_blocks(q.reshape(b, sq, hk, group, d), 1), "first": jnp.arange(blocks) * rows}
    parts |= {"bias": in_blocks(bias, 3)} if has_rows else {}
    outs, lses = jax.lax.map(lambda x: block(**{"bias": bias, **x}), parts)
    out = jnp.moveaxis(outs, 0, 1).reshape(b, blocks * rows, hq, v.shape[-1])[:, :sq]
    lse = jnp.moveaxis(lses, 0, 2).reshape(b, hq, blocks * rows)[:, :, :sq]
    return (out, lse) if return_lse else out


def with_checked_lengths(attend, q, k, options):
    """q, behind a call of the library that computes zeros, one for each row of q.

    On the CPU the library refuses lengths that lead out of their tensors. On a GPU it reads none.
    """
    lengths = {name: options.get(name) for name in ("seqused_q", "seqused_k")}
    if not any(x is not None for x in lengths.values()):
        return q

    def read(q):
        zeros = [jnp.zeros((*x.shape[:2], 1, 1), jnp.float32) for x in (q, k)]
        return q + attend(*zeros, zeros[1], window=(0, 0), **lengths).astype(q.dtype)

    return jax.lax.platform_dependent(jnp.asarray(q), cpu=read, default=lambda q: q)


def within(lengths, x):
    """x (b, s, heads, dim), with zeros behind the sequences."""
    if lengths is None:
        return x
    row = jnp.arange(x.shape[1])[None]
    return jnp.where((row < jnp.asarray(lengths)[:, None])[..., None, None], x, 0)


def visible(options, sq, sk):
    """A function of query numbers: booleans (b | 1, 1, 1, queries, keys), what they see."""
    left, right = map(int, window_ends(options.get("window")))
    shift = int(options.get("window_shift") or 0)
    # Ends beyond every key, short enough that int32 holds a sum with a query's number.
    first, last = (min(max(x, -FAR), FAR) for x in (shift - left, shift + right))

    def used(side, longest):
        lengths = options.get(f"seqused_{side}")
        lengths = np.int32([longest]) if lengths is None else jnp.clip(lengths, 0, longest)
        return jnp.asarray(lengths)[:, None, None]

    used_q, used_k = used("q", sq), used("k", sk)
    key = jnp.arange(sk)[None, None]

    def sees(query):
        query = query[None, :, None]
        level = query + used_k - used_q  # bottom-right
        seen = (query < used_q) & (key < used_k)
        if options.get("causal"):
            seen &= key <= level
        if left >= 0:
            seen &= key >= level + first
        if right >= 0:
            seen &= key <= level + last
        return seen[:, None, None]

    return sees

# SPDX-License-Identifier: Apache-2.0
"""fa3.jax.attention: arguments and derivatives. Next: calls.py."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fa3 import _native
from fa3._arrays import no_array, refuse_masked
from fa3._dropout import require_seed, words
from fa3._options import (
    BOTH_PASSES,
    DEFAULTS,
    PUBLIC_FORMS,
    TYPES,
    in_order,
    refuse_positions,
    takes_options,
)
from fa3.errors import InvalidArgument, Unsupported
from fa3.jax.bias import attend_with_bias, mask_of, refuse_beside_bias, with_checked_lengths
from fa3.jax.calls import OPTION_TENSORS, Call, described, in_order_of
from fa3.jax.primitives import run
from fa3.jax.sharding import vary_alike
from fa3.masks import refuse_other_extents

ONLY_FORWARD = [*TYPES][len(BOTH_PASSES) :]
INPUT_TYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@takes_options()
def attention(q, k, v, *others, return_lse=False, return_max_logit=False, bias=None, **options):
    """fa3.attention for JAX, inside and outside of jax.jit: same arguments, shapes and results.

    Differentiable in q, k, v, sink and gate, also through the LSE, by jax.grad and jax.vjp; works
    under jax.vmap, jax.checkpoint, jax.lax.scan and jax.shard_map. Arrays that are sharded over
    batch or heads are computed where they are: the devices must divide the key heads, or be as many
    as divide the query heads of a single key head.

    Arrays are q, k, v, bias, sink, gate, cu_seqlens, seqused, dropout_seed, block_mask, page_table,
    batch_index, left_padding, descales and means; everything else is a Python value, known while
    the program is traced.

    Args:
        q, k, v: as in fa3.attention.
        return_lse: also return the LSE.
        return_max_logit: also return the largest logit of each sequence and head. No gradient.
        bias: booleans that broadcast to (b, hq, sq, sk), True where a query sees a key, are a
            block mask. 16- or 32-bit floats are added to the scores, behind the softcap and before
            the mask, and are differentiable: XLA's operations compute such a call, one block of
            queries at a time, and not the library. Beside them go causal, window, window_shift,
            softcap, scale and seqused.
        block_mask: a fa3.masks.BlockMask of NumPy or JAX arrays; fa3.masks.from_dense makes one
            inside jax.jit too.
        page_table, batch_index, left_padding, num_splits, descales: keys and values in a cache,
            which fa3.jax.append writes. No gradients.
        max_seqlen_q, max_seqlen_k: with cu_seqlens on a GPU they are needed.
        dropout_p, dropout_seed: the seed is a key of JAX (jax.random.key or PRNGKey) of
            2 or 4 words, or (seed, offset). Each call needs one of its own, and within
            jax.shard_map each device (jax.random.fold_in): there sequences and heads are counted
            anew. Elsewhere a call with dropout is not cut over devices.
        deterministic: gradients are bitwise repeatable. The forward pass always is.

    Returns:
        out, or a tuple of out, lse and max_logit, as fa3.attention does.

    Raises:
        fa3.InvalidArgument, fa3.Unsupported, TypeError: while the program is traced and compiled.
        RuntimeError, ValueError: while it runs, by JAX and with the library's sentence: lengths in
            host memory that lead out of their tensors.
    """
    if others:
        refuse_positions("attention", 3, others)
    require_seed(options)
    if bias is not None:
        refuse_no_array(bias, "bias")
        if bias.dtype != bool:
            if return_max_logit:
                raise Unsupported("return_max_logit: expected False with a bias of floats")
            refuse_beside_bias(q, k, v, options)
            arrays, given = arrays_and_values(q, k, v, options)
            given.pop("scale", None)  # 0, or known as the program runs: XLA's operations take it
            refuse_wrong_kinds(arrays, given | {"return_lse": return_lse})
            refuse_wrong_call(arrays, given)
            q = with_checked_lengths(attention, q, k, options)
            return attend_with_bias(q, k, v, bias, return_lse, options)
        if options.get("block_mask") is not None:
            raise Unsupported("bias: expected floats or None together with block_mask")
        options["block_mask"] = mask_of(bias, q, k, options)
    refuse_other_extents(options.get("block_mask"), q, k, options)
    if options.get("dropout_seed") is not None:
        options["dropout_seed"] = seed_words(options["dropout_seed"])
    arrays, given = arrays_and_values(q, k, v, options)
    asked = {"return_lse": return_lse, "return_max_logit": return_max_logit}
    refuse_wrong_kinds(arrays, given | asked)
    refuse_wrong_call(arrays, given)
    results = "out", *(["lse"] if return_lse else []), *(["max_logit"] if return_max_logit else [])
    static = Static(results, tuple((x, plain(x, given[x])) for x in given))
    arrays = {name: jnp.asarray(array) for name, array in arrays.items()}
    return attend(static, vary_alike(arrays))


def arrays_and_values(q, k, v, options):
    """(arrays, other options) of a call, by their names in _options.py, without defaults."""
    listed = in_order("attention", options)
    given = {
        name: value
        for name, value in zip(DEFAULTS, listed, strict=False)
        if value is not DEFAULTS[name]
    }
    arrays = {"q": q, "k": k, "v": v}
    arrays |= {name: given.pop(name) for name in OPTION_TENSORS if name in given}
    return arrays, given


def seed_words(seed):
    """Dropout's seed as the library reads it, 4 int32, from a key of JAX or two integers."""
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    if not isinstance(seed, jax.Array) or seed.dtype != jnp.uint32:
        return jnp.asarray(words(seed).view(np.int32))
    if seed.shape not in ((2,), (4,)):
        raise InvalidArgument(
            f"dropout_seed: expected a key of 2 or 4 words, got the shape {seed.shape}"
        )
    return jnp.pad(seed, (0, 4 - seed.size)).view(jnp.int32)


class Static(NamedTuple):
    """What is known while a program is traced."""

    results: tuple  # of "out", "lse" and "max_logit"
    options: tuple  # of Call

    def forward(self, arrays, results):
        return run(Call.of("forward", arrays, results, self.options), arrays)

    def backward(self, arrays, results):
        return run(Call.of("backward", arrays, results, self.options), arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(static, arrays):
    return results_of(static, static.forward(arrays, static.results))


def results_of(static, found):
    results = tuple(found[name] for name in static.results)
    return results if len(results) > 1 else results[0]


def attend_forward(static, arrays):
    refuse_without_gradient(arrays, static.options)
    wanted = [x for x in ("out", "lse", "max_logit") if x == "lse" or x in static.results]
    found = static.forward(arrays, tuple(wanted))
    saved = {name: found[name] for name in ("out", "lse")}
    return results_of(static, found), (arrays, saved)


def attend_backward(static, saved, cotangents):
    arrays, found = saved
    if len(static.results) == 1:
        cotangents = (cotangents,)
    given = dict(zip(static.results, cotangents, strict=True))
    operands = {"do": given["out"], **arrays, **found}
    if "lse" in given:
        operands["dlse"] = given["lse"]
    results = ("dq", "dk", "dv", *(f"d{x}" for x in ("sink", "gate") if x in arrays))
    gradients = static.backward(operands, results)
    return ({name: gradients.get(f"d{name}") for name in arrays},)


attend.defvjp(attend_forward, attend_backward)


def refuse_no_array(array, name):
    if not isinstance(array, (jax.Array, np.ndarray)):
        raise no_array(array, name)
    refuse_masked(array, name)


def refuse_wrong_kinds(arrays, options):
    """Arrays that are none, and options that a compiled program would only know as it runs."""
    for name, array in arrays.items():
        refuse_no_array(array, name)
        if array.ndim == 0:  # the library takes a tensor of rank 0 for none
            raise InvalidArgument(f"{name}: expected one dimension or more, got a single number")
    for name in ("q", "k", "v"):
        if str(arrays[name].dtype) not in INPUT_TYPES:
            raise InvalidArgument(
                f"{name}: expected one of {', '.join(INPUT_TYPES)}, got {arrays[name].dtype}"
            )
        if not all(isinstance(extent, int) for extent in arrays[name].shape):
            raise Unsupported(
                f"{name}: expected extents that are known while the program is traced, got "
                f"{arrays[name].shape}; the size of a workspace follows from them"
            )
    for name, value in options.items():
        if isinstance(value, jax.core.Tracer):
            raise TypeError(
                f"{PUBLIC_FORMS.get(name, (name,))[0]}: expected a value that is known while the "
                f"program is traced (see static_argnames of jax.jit), got {value}"
            )


def views_of(direction, arrays, options):
    """A call of tensors on the CPU, for questions that no device answers otherwise."""
    views = {name: described(array.shape, array.dtype) for name, array in arrays.items()}
    tensors = [views[name] for name in ("q", "k", "v")]
    return tensors, in_order_of(direction, views, {**options, "engine": 0})


def refuse_wrong_call(arrays, options):
    """Asks the library, which refuses a wrong call with its own sentence."""
    tensors, every_option = views_of("forward", arrays, options)
    _native.forward_plan(*tensors, None, None, *every_option)


def refuse_without_gradient(arrays, options):
    for name in (*arrays, *dict(options)):
        if name in ONLY_FORWARD:
            raise Unsupported(
                f"{name}: expected None where gradients are taken; caches and quantized tensors "
                "have none (jax.lax.stop_gradient)"
            )
    tensors, every_option = views_of("backward", arrays, dict(options))
    _native.backward_supported(*tensors, *every_option)


def plain(name, value):
    """An option as a Python value of its type."""
    kind = TYPES[name]
    return bool(value) if kind == "bool" else int(value) if "nt" in kind else float(value)

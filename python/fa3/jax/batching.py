# SPDX-License-Identifier: Apache-2.0
"""vmap: examples become sequences of a larger batch where they can, and a loop where not."""

import jax
import jax.numpy as jnp


def batched(function, call, size, mapped, *operands):
    """The rule of jax.custom_batching. function(call) takes the operands, of which those that are
    `mapped` have an example for each of `size` in front."""
    if joins_batch(call, mapped):
        results = fold(function(call), call, size, mapped, operands)
    else:
        results = loop(function(call), mapped, operands)
    return results, tuple(True for _ in results)


def joins_batch(call, mapped):
    """Whether every example may be more sequences of one call: not where tensors are packed, which
    have no batch, nor where examples have sinks of their own or sum over them, nor with dropout,
    where an example has the mask that it would have alone."""
    if call.has_dropout():
        return False
    names = [name for name, is_mapped in zip(call.operands, mapped, strict=True) if is_mapped]
    return all(call.extents(name).startswith("b") for name in (*names, *call.results))


def fold(run, call, size, mapped, operands):
    def folded(name, x, is_mapped):
        if not call.extents(name).startswith("b"):
            return x
        x = x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))
        return x.reshape(size * x.shape[1], *x.shape[2:])

    batch = next(x.shape[1] for x, is_mapped in zip(operands, mapped, strict=True) if is_mapped)
    results = run(*map(folded, call.operands, operands, mapped))
    return tuple(x.reshape(size, batch, *x.shape[1:]) for x in results)


def loop(run, mapped, operands):
    def of_one(examples):
        each = iter(examples)
        arrays = [next(each) if m else x for x, m in zip(operands, mapped, strict=True)]
        return run(*arrays)

    return jax.lax.map(of_one, [x for x, m in zip(operands, mapped, strict=True) if m])

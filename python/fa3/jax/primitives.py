# SPDX-License-Identifier: Apache-2.0
"""The passes as functions that JAX transforms, and what XLA calls for them.

A pass is a primitive, of one device's shard, that lowers to a call of python/native/ffi.cpp with a
workspace as its last result. Around it: custom partitioning (sharding.py), vmap (batching.py), the
refusal of further derivatives, and jax.jit for calls outside of a compiled program.
"""

import functools

import jax
import numpy as np
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import mlir

from fa3 import _native
from fa3.errors import Unsupported
from fa3.jax import sharding
from fa3.jax.batching import batched
from fa3.jax.calls import DEVICE_TYPES, TENSORS

# The handler aligns the workspace itself, to 256 bytes.
WORKSPACE_PADDING = 255


def run(call, operands):
    """The results of a Call by name. operands: arrays by name."""
    arrays = [operands[name] for name in call.operands]
    return dict(zip(call.results, function(call)(*arrays), strict=True))


@functools.cache
def function(call):
    """A Call as a function of its operands."""
    partitioned = sharding.partitioned(SHARDS[call.direction])
    over_examples = custom_vmap(functools.partial(partitioned, call))
    over_examples.def_vmap(functools.partial(batched, function, call))
    once = jax.custom_jvp(over_examples)
    once.defjvp(refuse_derivative)
    return jax.jit(once)


def refuse_derivative(primals, tangents):
    raise Unsupported(
        "fa3.jax.attention: expected first derivatives in reverse mode (jax.grad, jax.vjp), got a "
        "second or a forward-mode one, which fa3 does not have"
    )


def lower(platform, ctx, *operands, call):
    """A call of XLA's FFI on that platform."""
    call = call.on(platform)
    count = call.workspace_bytes(ctx.avals_in, ctx.avals_out, platform)
    shape = (count + WORKSPACE_PADDING,) if count else (0,)
    workspace = jax.core.ShapedArray(shape, np.dtype("uint8"))
    rule = jax.ffi.ffi_lowering(f"fa3_{call.direction}")
    results = rule(
        ctx.replace(avals_out=[*ctx.avals_out, workspace]),
        *operands,
        operands=" ".join(call.operands),
        results=" ".join((*call.results, "workspace")),
        **{name: attribute(value) for name, value in call.options},
    )
    return results[:-1]


def attribute(value):
    """An option in the width that ffi.cpp reads."""
    if isinstance(value, bool):
        return np.bool_(value)
    return np.int64(value) if isinstance(value, int) else np.float64(value)


def refuse_platform(ctx, *operands, call):
    platforms = ", ".join(ctx.module_context.platforms)
    raise Unsupported(f"fa3.jax: expected the platform cpu or cuda, got {platforms}")


def evaluate(shard, *operands, call):
    """Under jax.disable_jit, where no program is around the primitive."""
    with jax.disable_jit(False):
        return jax.jit(functools.partial(shard.bind, call=call))(*operands)


def make_shard(direction):
    """The primitive of a pass on one device."""
    shard = Primitive(f"fa3_{direction}")
    shard.multiple_results = True
    shard.def_abstract_eval(sharding.result_types)
    shard.def_impl(functools.partial(evaluate, shard))
    mlir.register_lowering(shard, refuse_platform)
    for platform in DEVICE_TYPES:
        mlir.register_lowering(shard, functools.partial(lower, platform), platform=platform)
    return shard


for target, platform, capsule in _native.ffi_handlers():
    jax.ffi.register_ffi_target(target, capsule, platform=platform)

SHARDS = {direction: make_shard(direction) for direction in TENSORS}

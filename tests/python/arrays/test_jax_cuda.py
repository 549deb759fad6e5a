# SPDX-License-Identifier: Apache-2.0
"""fa3.jax.attention under JAX's transformations on a GPU, beside the same on the CPU in bfloat16.

test_jax.py holds the CPU's results to fa3.attention and to float64. A mesh of one GPU cuts nothing,
but the program goes through XLA's partitioner all the same.
"""

import numpy as np
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
jax = pytest.importorskip("jax", "0.7", reason="JAX 0.7 or later is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import fa3.jax  # noqa: E402, F811

attention = fa3.jax.attention
SINK = jnp.arange(4, dtype=jnp.float32)
STARTS = jnp.array([[0, 3, 3, 8], [0, 1, 2, 9]], jnp.int32)
STARTS_K = jnp.array([0, 4, 6, 11], jnp.int32)


@pytest.fixture
def gpu():
    try:
        return jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("JAX finds no CUDA device on this machine")


def arrays(*shapes):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal(s, np.float32), jnp.bfloat16) for s in shapes]


def loss(q, k, v, **options):
    return (attention(q, k, v, **options).astype(jnp.float32) ** 2).sum()


def examples(q):
    return jnp.stack([q, q + 1, q - 1])


def vmap_of_calls(q, k, v):
    return jax.vmap(lambda q, k: attention(q, k, v, causal=True), (0, None))(examples(q), k)


def vmap_of_gradients_with_a_sink(q, k, v):
    gradient = jax.grad(lambda q, sink: loss(q, k, v, sink=sink), (0, 1))
    return jax.jit(jax.vmap(gradient, (0, None)))(examples(q), SINK)


def vmap_of_packed_sequences(q, k, v):
    q = q.reshape(-1, *q.shape[2:])[:18].reshape(2, 9, *q.shape[2:])
    k, v = (x.reshape(-1, *x.shape[2:])[:11] for x in (k, v))

    def attend(q, starts):
        lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": STARTS_K}
        return attention(q, k, v, max_seqlen_q=9, max_seqlen_k=5, **lengths)

    return jax.jit(jax.vmap(attend))(q, STARTS)


def recomputation_in_a_loop(q, k, v):
    attend = jax.checkpoint(lambda x: attention(x, k, v, causal=True)[..., :16])

    def of(x):
        x, _ = jax.lax.scan(lambda x, _: (attend(x), None), x, length=2)
        return (x.astype(jnp.float32) ** 2).sum()

    return jax.jit(jax.grad(of))(q)


def used_rows(q, k, v):
    used = {"seqused_q": jnp.array([10, 4], jnp.int32), "seqused_k": jnp.array([0, 7], jnp.int32)}
    return jax.jit(lambda q, k, v, **used: attention(q, k, v, **used))(q, k, v, **used)


def dropout_under_vmap(q, k, v):
    keys = jax.random.split(jax.random.key(3))
    gradient = jax.grad(lambda q, key: loss(q, k, v, dropout_p=0.4, dropout_seed=key))
    return jax.vmap(gradient, (None, 0))(q, keys)


def exported(q, k, v):
    platform = "cuda" if q.device.platform == "gpu" else "cpu"
    allowed = [jax.export.DisabledSafetyCheck.custom_call("fa3_forward")]
    program = jax.jit(lambda *a: attention(*a, causal=True))
    return jax.export.export(program, platforms=[platform], disabled_checks=allowed)(q, k, v).call(
        q, k, v
    )


def sharded(kind, spec, q, k, v):
    mesh = jax.make_mesh((1,), ("x",), (kind,), devices=[q.device])
    q, k, v = (jax.device_put(x, NamedSharding(mesh, spec)) for x in (q, k, v))
    sink = jax.device_put(SINK, NamedSharding(mesh, P()))
    gradient = jax.grad(lambda q, k, v, sink: loss(q, k, v, sink=sink, causal=True), (0, 1, 2, 3))
    return jax.jit(gradient)(q, k, v, sink)


def sharded_over_the_batch(*qkv):
    return sharded(AxisType.Auto, P("x"), *qkv)


def sharded_over_heads_explicitly(*qkv):
    return sharded(AxisType.Explicit, P(None, None, "x"), *qkv)


def shard_map(q, k, v):
    mesh = jax.make_mesh((1,), ("x",), (AxisType.Auto,), devices=[q.device])
    specs = P("x"), P("x"), P("x")
    mapped = jax.shard_map(
        lambda *a: attention(*a, causal=True), mesh=mesh, in_specs=specs, out_specs=P("x")
    )
    gradient = jax.grad(lambda *a: (mapped(*a).astype(jnp.float32) ** 2).sum(), (0, 1, 2))
    return jax.jit(gradient)(q, k, v)


TRANSFORMATIONS = (
    vmap_of_calls,
    vmap_of_gradients_with_a_sink,
    vmap_of_packed_sequences,
    recomputation_in_a_loop,
    used_rows,
    dropout_under_vmap,
    exported,
    sharded_over_the_batch,
    sharded_over_heads_explicitly,
    shard_map,
)


@pytest.mark.parametrize("transformation", TRANSFORMATIONS, ids=lambda f: f.__name__)
def test_a_gpu_computes_what_the_cpu_does(transformation, gpu):
    results = []
    for device in (jax.devices("cpu")[0], gpu):
        with jax.default_device(device):
            qkv = arrays((2, 10, 4, 16), (2, 12, 2, 16), (2, 12, 2, 24))
            qkv = [jax.device_put(x, device) for x in qkv]
            found = jax.tree.leaves(transformation(*qkv))
        assert all(x.devices() == {device} for x in found)
        results.append([np.asarray(x, np.float64) for x in found])
    for expected, actual in zip(*results, strict=True):
        assert np.isfinite(actual).all() and expected.any()
        assert np.linalg.norm(actual - expected) < 0.03 * np.linalg.norm(expected)

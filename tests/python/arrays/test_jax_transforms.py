# SPDX-License-Identifier: Apache-2.0
"""fa3.jax.attention under JAX's transformations: vmap, recomputation, loops, and programs that are
cut over devices, of which conftest.py gives JAX two.
"""

import numpy as np
import pytest
from jax_arrays import PACKED, random_arrays

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
jax = pytest.importorskip("jax", "0.7", reason="JAX 0.7 or later is not installed")

from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import fa3.jax  # noqa: E402, F811


def test_vmap_is_a_loop_of_calls(qkv):
    q, k, v = qkv
    examples = np.stack([q, q + 1, q - 1])
    found = jax.vmap(lambda q, k: fa3.jax.attention(q, k, v, causal=True), (0, None))(examples, k)
    for ours, q in zip(found, examples, strict=True):
        np.testing.assert_array_equal(ours, fa3.attention(q, k, v, causal=True))


def test_vmap_over_nothing(qkv):
    none = np.zeros((0, *qkv[0].shape), np.float32)
    found = jax.vmap(lambda q: fa3.jax.attention(q, *qkv[1:]))(none)
    assert found.shape == (0, 2, 10, 4, 24)


def test_vmap_joins_examples_into_one_batch(qkv):
    examples = [np.stack([x] * 3) for x in qkv]
    program = str(jax.make_jaxpr(jax.vmap(fa3.jax.attention))(*examples))
    assert "fa3_forward" in program and "scan" not in program and "6,10,4,16" in program


@pytest.mark.parametrize("each_its_own", [False, True])
def test_vmap_of_gradients_with_a_sink(qkv, each_its_own):
    """Each example has a gradient of the sink, which no larger batch would give."""
    sinks = np.arange(12, dtype=np.float32).reshape(3, 4)
    examples = np.stack([qkv[0], qkv[0] + 1, qkv[0] - 1])

    def loss(q, sink):
        return (fa3.jax.attention(q, *qkv[1:], sink=sink) ** 2).sum()

    gradient = jax.jit(jax.grad(loss, (0, 1)))
    over = (0, 0) if each_its_own else (0, None)
    found = jax.jit(jax.vmap(gradient, over))(examples, sinks if each_its_own else sinks[0])
    for at, q in enumerate(examples):
        dq, dsink = gradient(q, sinks[at if each_its_own else 0])
        np.testing.assert_array_equal(found[0][at], dq)
        np.testing.assert_array_equal(found[1][at], dsink)


@pytest.mark.parametrize("shape", [(2, 9, 4, 16), (2, 3, 5, 4, 16)], ids=["packed", "keys only"])
def test_vmap_of_packed_sequences(shape):
    q, k, v = random_arrays(shape, (11, 2, 16), (11, 2, 8))
    starts = np.array([[0, 3, 3, 8], [0, 1, 2, 9]], np.int32) if len(shape) == 4 else None

    def attend(q, start):
        cu = PACKED["cu_seqlens_k"]
        return fa3.jax.attention(q, k, v, cu_seqlens_q=start, cu_seqlens_k=cu)

    found = jax.jit(jax.vmap(attend))(q, starts)
    for at, ours in enumerate(found):
        start = None if starts is None else starts[at]
        np.testing.assert_array_equal(ours, attend(q[at], start))


def test_gradients_through_recomputation_and_loops(qkv):
    q, k, v = qkv
    attend = lambda x: fa3.jax.attention(x, k, v, causal=True)[..., :16]  # noqa: E731

    def loss(x, attend):
        return (jax.lax.scan(lambda x, _: (attend(x), None), x, length=2)[0] ** 2).sum()

    plain = jax.jit(jax.grad(lambda x: (attend(attend(x)) ** 2).sum()))(q)
    again = jax.jit(jax.grad(lambda x: loss(x, jax.checkpoint(attend))))(q)
    np.testing.assert_array_equal(again, plain)


def two_devices():
    if len(jax.devices("cpu")) < 2:
        pytest.skip("JAX was started with one CPU device before these tests")
    return jax.devices("cpu")[:2]


@jax.jit
def cut_loss(q, k, v, sink):
    return (fa3.jax.attention(q, k, v, sink=sink, causal=True) ** 2).sum()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("spec", [P("x"), P(None, None, "x"), P(None, "x")], ids=str)
def test_devices_share_batch_or_heads_without_communication(qkv, spec, kind):
    mesh = jax.make_mesh((2,), ("x",), (kind,), devices=two_devices())
    sink = np.arange(4, dtype=np.float32)
    cut = [jax.device_put(x, NamedSharding(mesh, spec)) for x in qkv]
    whole = jax.device_put(sink, NamedSharding(mesh, P()))
    program = jax.jit(lambda q, k, v, sink: fa3.jax.attention(q, k, v, sink=sink, causal=True))
    out = program(*cut, whole)
    np.testing.assert_array_equal(out, fa3.attention(*qkv, sink=sink, causal=True))
    gathers = "all-gather" in program.lower(*cut, whole).compile().as_text()
    in_rows = spec == P(None, "x")  # each row needs all keys: they are gathered
    assert gathers == in_rows
    if not in_rows:
        assert out.sharding.is_equivalent_to(cut[0].sharding, 4)
    found = jax.jit(jax.grad(cut_loss, (0, 1, 2, 3)))(*cut, whole)
    exact = jax.grad(cut_loss, (0, 1, 2, 3))(*qkv, sink)
    for ours, expected in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


def test_devices_share_the_queries_of_a_single_key_head(qkv):
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Auto,), devices=two_devices())
    q, k, v = qkv[0], qkv[1][:, :, :1], qkv[2][:, :, :1]
    sink = np.arange(4, dtype=np.float32)
    cut = jax.device_put(q, NamedSharding(mesh, P(None, None, "x")))
    whole = [jax.device_put(x, NamedSharding(mesh, P())) for x in (k, v, sink)]
    gradient = jax.jit(jax.grad(cut_loss, (0, 1, 2, 3)))
    assert "all-gather" not in gradient.lower(cut, *whole).compile().as_text()
    found, exact = gradient(cut, *whole), jax.grad(cut_loss, (0, 1, 2, 3))(q, k, v, sink)
    for ours, expected in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_heads_that_devices_cannot_divide_are_gathered():
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Auto,), devices=two_devices())
    q, k, v = random_arrays((1, 4, 6, 8), (1, 4, 3, 8), (1, 4, 3, 8))
    cut = jax.device_put(q, NamedSharding(mesh, P(None, None, "x")))
    whole = [jax.device_put(x, NamedSharding(mesh, P())) for x in (k, v)]
    np.testing.assert_array_equal(jax.jit(fa3.jax.attention)(cut, *whole), fa3.attention(q, k, v))


def test_shard_map_sums_gradients_of_what_devices_share(qkv):
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Auto,), devices=two_devices())
    q, k, v = qkv[0], qkv[1][:1], qkv[2][:1]
    sink = np.arange(4, dtype=np.float32)

    def attend(q, k, v, sink):
        return fa3.jax.attention(q, k, v, sink=sink, causal=True)

    specs = P("x"), P(), P(), P()
    on_both = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=P("x"))
    everywhere = [np.concatenate([x, x]) for x in (k, v)]
    np.testing.assert_array_equal(on_both(q, k, v, sink), attend(q, *everywhere, sink))
    loss = jax.jit(lambda *a: (on_both(*a) ** 2).sum())
    found = jax.grad(loss, (0, 1, 2, 3))(q, k, v, sink)
    exact = jax.grad(cut_loss, (0, 1, 2, 3))(q, *everywhere, sink)
    for ours, expected in zip(found, exact, strict=True):
        if expected.shape != ours.shape:
            expected = expected.sum(0, keepdims=True)
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)

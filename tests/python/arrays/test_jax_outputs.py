# SPDX-License-Identifier: Apache-2.0
"""fa3.jax.attention with an output gate and the max logit: values, gradients, vmap, devices."""

import numpy as np
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
jax = pytest.importorskip("jax", "0.7", reason="JAX 0.7 or later is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import fa3.jax  # noqa: E402, F811

CU = np.array([0, 5, 17], dtype=np.int32)


def arrays(*rows, per_row=False):
    """q, k, v, and a gate, of 4 query heads and 2 key heads."""
    random = np.random.default_rng(1)
    shapes = (4, 16), (2, 16), (2, 24), (4,) if per_row else (4, 24)
    return [random.standard_normal((*rows, *s), dtype=np.float32) for s in shapes]


@pytest.mark.parametrize("per_row", [False, True], ids=["full", "row"])
@pytest.mark.parametrize("rows", [(2, 17), (17,)], ids=["dense", "packed"])
def test_both_have_the_bits_of_the_numpy_front(rows, per_row):
    *qkv, gate = arrays(*rows, per_row=per_row)
    options = {"causal": True}
    if len(rows) == 1:
        options |= {"cu_seqlens_q": CU, "cu_seqlens_k": CU}

    @jax.jit
    def run(q, k, v, gate):
        return fa3.jax.attention(
            q, k, v, gate=gate, return_lse=True, return_max_logit=True, **options
        )

    found = run(*qkv, gate)
    want = fa3.attention(*qkv, gate=gate, return_lse=True, return_max_logit=True, **options)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a, b)

    def loss(*given):
        out, max_logit = fa3.jax.attention(
            *given[:3], gate=given[3], return_max_logit=True, **options
        )
        return out.sum() + 0 * max_logit.sum()

    gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*qkv, gate)
    do = np.ones_like(want[0])
    expected = fa3.attention_backward(do, *qkv, *want[:2], gate=gate, **options)
    for a, b in zip(gradients, (*expected[:3], expected.dgate), strict=True):
        np.testing.assert_array_equal(a, b)


def test_vmap_makes_a_larger_batch_of_examples():
    *qkv, gate = arrays(3, 2, 17)

    def run(*given):
        return fa3.jax.attention(*given[:3], gate=given[3], return_max_logit=True)

    for a, b in zip(
        jax.vmap(run)(*qkv, gate), zip(*map(run, *qkv, gate), strict=True), strict=True
    ):
        np.testing.assert_allclose(a, np.stack(b), rtol=1e-6)


@pytest.mark.parametrize("spec", [P("x"), P(None, None, "x")], ids=["batch", "heads"])
def test_devices_compute_their_sequences_or_heads(spec):
    *qkv, gate = arrays(2, 17, per_row=True)
    mesh = jax.make_mesh((2,), ("x",))
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in (*qkv, gate)]

    def loss(*given):
        out, max_logit = fa3.jax.attention(
            *given[:3], gate=given[3], causal=True, return_max_logit=True
        )
        return (out**2).sum(), max_logit

    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))
    (_, want_max), want = step(*map(jnp.asarray, (*qkv, gate)))
    (_, max_logit), found = step(*placed)
    np.testing.assert_array_equal(max_logit, want_max)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_what_cannot_be_is_refused():
    *qkv, gate = arrays(2, 17)
    bias = np.zeros((17, 17), dtype=np.float32)
    with pytest.raises(fa3.Unsupported, match="return_max_logit: expected False"):
        fa3.jax.attention(*qkv, bias=bias, return_max_logit=True)
    with pytest.raises(fa3.Unsupported, match="gate: not together with a bias"):
        fa3.jax.attention(*qkv, bias=bias, gate=gate)
    with pytest.raises(fa3.InvalidArgument, match="gate: expected a last dimension"):
        fa3.jax.attention(*qkv, gate=gate[..., :5])

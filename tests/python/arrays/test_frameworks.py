# SPDX-License-Identifier: Apache-2.0
"""Arrays of CuPy and JAX: results without out=, and the stream on which they are read."""

import contextlib
import sys
import types

import numpy as np
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import _arrays  # noqa: E402

SHAPES = (2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16)


class Asked(Exception):
    """The stream for which a producer was asked to make its array ready."""


class OnGpu:
    """An array that says it is on a GPU, and is asked for it."""

    shape, dtype, device = (1, 1, 1, 8), np.dtype("float16"), contextlib.nullcontext()

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None, max_version=None):
        raise Asked(stream)


class OfCuPy(OnGpu):
    pass


OfCuPy.__module__ = "cupy"


@pytest.fixture
def cupy(monkeypatch):
    """A module in CuPy's place; .stream is its current one."""
    module, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    module.cuda, module.stream, module.empty = cuda, 77, np.empty
    cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=module.stream)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return module


@pytest.mark.parametrize(
    "kind, current, expected",
    [(OfCuPy, 77, 77), (OfCuPy, 0, 1), (OfCuPy, 2, 2), (OnGpu, 77, 1)],
    ids=["own", "default", "per thread", "unknown"],
)
def test_the_stream_of_a_call_is_the_current_one_of_cupy(cupy, kind, current, expected):
    cupy.stream = current
    with pytest.raises(Asked, match=f"^{expected}$"):
        fa3.attention(*[kind()] * 3, out=np.empty(1))


def test_results_of_cupy_are_its_own(cupy):
    result = _arrays.empty((3, 2), OfCuPy(), "float32")
    assert result.shape == (3, 2) and result.dtype == np.float32
    assert _arrays.empty((1,), OfCuPy()).dtype == np.float16


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="JAX is not installed")


@pytest.fixture
def qkv(jax):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(k, s) for k, s in zip(keys, SHAPES, strict=True)]


def test_jax_arrays_give_jax_arrays(jax, qkv):
    out, lse = fa3.attention(*qkv, causal=True, return_lse=True)
    arrays = [np.asarray(a) for a in qkv]
    expected = fa3.attention(*arrays, causal=True, return_lse=True)
    assert isinstance(out, jax.Array)
    np.testing.assert_array_equal(out, expected[0])
    np.testing.assert_array_equal(lse, expected[1])
    gradients = fa3.attention_backward(out, *qkv, out, lse, causal=True)
    exact = fa3.attention_backward(expected[0], *arrays, *expected, causal=True)
    assert isinstance(gradients.dq, jax.Array)
    for ours, theirs in zip(gradients[:3], exact[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_latent_attention_of_jax_arrays_gives_jax_arrays(jax):
    keys = jax.random.split(jax.random.key(1), 2)
    q = jax.random.normal(keys[0], (1, 2, 3, 576))
    cache = jax.random.normal(keys[1], (2, 4, 576))
    indices = jax.numpy.array([[[0, 5], [7, -1]]])
    found = fa3.mla.attention(q, cache, indices=indices, return_lse=True, return_max=True)
    assert all(isinstance(x, jax.Array) for x in found)
    arrays = (np.asarray(x) for x in (q, cache))
    expected = fa3.mla.attention(
        *arrays, indices=np.asarray(indices), return_lse=True, return_max=True
    )
    for ours, numpys in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, numpys)
    with pytest.raises(fa3.InvalidArgument, match="^out: expected memory that may be written"):
        fa3.mla.attention(q, cache, indices=indices, out=q[..., :512])


def test_jax_arrays_are_not_written(jax, qkv):
    q, k, v = qkv
    with pytest.raises(fa3.InvalidArgument, match="^out: .* JAX, which never change"):
        fa3.attention(q, k, v, out=jax.numpy.zeros_like(q))
    cache = jax.numpy.zeros((2, 9, 2, 16))
    with pytest.raises(fa3.InvalidArgument, match="^k_cache: .* JAX, which never change"):
        fa3.append(cache, cache, k, v, seqused=jax.numpy.zeros(2, jax.numpy.int32))


def test_jax_arrays_are_not_quantized_transposed(jax, qkv):
    with pytest.raises(fa3.Unsupported, match="^transposed: .* JAX, which have no strides"):
        fa3.quantize(jax.numpy.asarray(qkv[2]), transposed=True)


def test_a_sharded_jax_array_is_told_where_to_go(jax, qkv):
    if len(jax.devices("cpu")) < 2:
        pytest.skip("JAX was started with one CPU device before these tests")
    q, k, v = qkv
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2])
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    for call in (fa3.attention, fa3.plan):
        with pytest.raises(fa3.Unsupported, match="^k: .* one on 2; call fa3.jax.attention"):
            call(q, jax.device_put(k, spec), v)

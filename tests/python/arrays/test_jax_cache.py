# SPDX-License-Identifier: Apache-2.0
"""Caches in JAX: paged decoding, FP8 caches and fa3.jax.append, with the bits of NumPy's front."""

import numpy as np
import pytest
from jax_arrays import random_arrays

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
jax = pytest.importorskip("jax", "0.7", reason="JAX 0.7 or later is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import fa3.jax  # noqa: E402, F811

PAGES = np.array([[5, 0, 3], [1, 4, 2]], np.int32)
USED = np.array([17, 9], np.int32)
Q, K, V = random_arrays((2, 1, 4, 16), (6, 8, 2, 16), (6, 8, 2, 24))


def paged(**options):
    return {"seqused_k": USED, "page_table": PAGES, "causal": True, **options}


CALLS = {
    "pages": paged(),
    "splits": paged(num_splits=3),
    "padding": paged(left_padding=np.array([3, 0], np.int32)),
    "entries": paged(batch_index=np.array([1, 1], np.int32)),
    "rows of a cache": {"batch_index": np.array([4, 1], np.int32), "causal": True},
}


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_decoding_over_a_cache(options):
    arrays = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    static = {name: x for name, x in options.items() if name not in arrays}
    program = jax.jit(lambda q, k, v, arrays: fa3.jax.attention(q, k, v, **arrays, **static))
    np.testing.assert_array_equal(program(Q, K, V, arrays), fa3.attention(Q, K, V, **options))


def test_packed_prompts_over_pages():
    (q,) = random_arrays((7, 4, 16))
    options = paged(cu_seqlens_q=np.array([0, 5, 7], np.int32))
    np.testing.assert_array_equal(
        fa3.jax.attention(q, K, V, **options), fa3.attention(q, K, V, **options)
    )


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(1,), (2, 2), (2, 2, 1)], ids=str)
def test_a_quantized_cache(dtype, shape):
    k, v = (np.asarray(jnp.asarray(x).astype(dtype)) for x in (K, V))
    scales = np.random.default_rng(3).random((2, *shape), np.float32) + 0.5
    options = paged(k_descale=scales[0], v_descale=scales[1])
    np.testing.assert_array_equal(
        fa3.jax.attention(Q, k, v, **options), fa3.attention(Q, k, v, **options)
    )


def test_quantized_tensors():
    quantized = [fa3.quantize(x) for x in random_arrays((2, 70, 4, 16), *[(2, 90, 2, 16)] * 2)]
    (q, k, v), (dq, dk, dv) = ([x[at] for x in quantized] for at in (0, 1))
    options = {"q_descale": dq, "k_descale": dk, "v_descale": dv, "return_lse": True}
    found = fa3.jax.attention(q, k, v, **options)
    assert found[0].dtype == jnp.bfloat16
    for ours, expected in zip(found, fa3.attention(q, k, v, **options), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_cache_has_no_gradients():
    with pytest.raises(fa3.Unsupported, match="^page_table: expected None where gradients are"):
        jax.grad(lambda q: fa3.jax.attention(q, K, V, **paged()).sum())(Q)


def test_vmap_over_queries_of_one_cache():
    examples = np.stack([Q, Q + 1])
    found = jax.vmap(lambda q: fa3.jax.attention(q, K, V, **paged()))(examples)
    for ours, q in zip(found, examples, strict=True):
        np.testing.assert_array_equal(ours, fa3.attention(q, K, V, **paged()))


@pytest.mark.parametrize("spec", [P("x"), P(None, None, "x")], ids=str)
def test_devices_share_sequences_or_heads(spec):
    if len(jax.devices("cpu")) < 2:
        pytest.skip("JAX was started with one CPU device before these tests")
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2])
    q = jax.device_put(Q, NamedSharding(mesh, spec))
    program = jax.jit(lambda q: fa3.jax.attention(q, K, V, **paged()))
    np.testing.assert_array_equal(program(q), fa3.attention(Q, K, V, **paged()))
    assert "all-gather" not in program.lower(q).compile().as_text()


def test_wrong_pages_are_named_as_the_program_runs():
    program = jax.jit(lambda table: fa3.jax.attention(Q, K, V, **paged(page_table=table)))
    with pytest.raises((ValueError, RuntimeError), match="page_table"):
        program(PAGES + 9).block_until_ready()


ROTARY = dict(zip(("rotary_cos", "rotary_sin"), random_arrays((32, 8), (32, 8)), strict=True))
APPENDED = {
    "pages": {},
    "rotary": {**ROTARY, "q": Q},
    "interleaved": {**ROTARY, "q": Q, "rotary_interleaved": True},
}


@pytest.mark.parametrize("options", APPENDED.values(), ids=APPENDED)
def test_append_returns_what_the_numpy_front_writes(options):
    k, v = random_arrays((2, 3, 2, 16), (2, 3, 2, 24))
    caches = K.copy(), V.copy()
    named = {"seqused": USED, "page_table": PAGES, **options}
    turned = fa3.append(*caches, k, v, **named)
    found = fa3.jax.append(K, V, k, v, **named)
    expected = (*caches, turned) if "q" in options else caches
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (caches[0] != K).any()


def test_append_takes_lengths_and_tables_of_64_bits():
    k, v = random_arrays((2, 3, 2, 16), (2, 3, 2, 24))
    expected = fa3.jax.append(K, V, k, v, seqused=USED, page_table=PAGES)
    for is_wide in (False, True):
        with jax.enable_x64(is_wide):
            wide = {"seqused": USED.astype(np.int64), "page_table": PAGES.astype(np.int64)}
            found = fa3.jax.append(K, V, k, v, **wide)
            wide["seqused"] += 2**32
            with pytest.raises((ValueError, RuntimeError), match="seqused: expected a length"):
                jax.block_until_ready(fa3.jax.append(K, V, k, v, **wide))
        np.testing.assert_array_equal(found[0], expected[0])


def test_a_decoding_loop_writes_its_own_caches():
    """A step appends and attends; donated caches stay where they are."""
    q, k, v = random_arrays((4, 2, 1, 4, 16), (4, 2, 1, 2, 16), (4, 2, 1, 2, 24))

    @jax.jit
    def decode(k_cache, v_cache, q, k, v):
        def step(caches, new):
            *caches, used = caches
            q, k, v = new
            caches = fa3.jax.append(*caches, k, v, seqused=used, page_table=PAGES)
            out = fa3.jax.attention(q, *caches, seqused_k=used + 1, page_table=PAGES, causal=True)
            return (*caches, used + 1), out

        return jax.lax.scan(step, (k_cache, v_cache, USED), (q, k, v))[1]

    caches, used = (K.copy(), V.copy()), USED.copy()
    for at, ours in enumerate(decode(K, V, q, k, v)):
        fa3.append(*caches, k[at], v[at], seqused=used, page_table=PAGES)
        used += 1
        expected = fa3.attention(q[at], *caches, seqused_k=used, page_table=PAGES, causal=True)
        np.testing.assert_array_equal(ours, expected)


def test_a_donated_cache_is_not_copied():
    k, v = random_arrays((2, 3, 2, 16), (2, 3, 2, 24))
    write = jax.jit(
        lambda *caches: fa3.jax.append(*caches, k, v, seqused=USED, page_table=PAGES),
        donate_argnums=(0, 1),
    )
    caches = jax.device_put(K), jax.device_put(V)
    memory = write.lower(*caches).compile().memory_analysis()
    assert memory.alias_size_in_bytes == K.nbytes + V.nbytes
    write(*caches)
    assert all(x.is_deleted() for x in caches)


def test_a_wrong_append_is_refused_as_the_program_runs():
    k, v = random_arrays((2, 3, 2, 16), (2, 3, 2, 24))
    with pytest.raises((ValueError, RuntimeError), match="seqused"):
        jax.block_until_ready(fa3.jax.append(K, V, k, v, seqused=USED + 99, page_table=PAGES))

# SPDX-License-Identifier: Apache-2.0
"""fa3.jax.attention with masks as data, and with a bias. A mask has the bits of fa3.attention."""

import numpy as np
import pytest
from jax_arrays import random_arrays

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
jax = pytest.importorskip("jax", "0.7", reason="JAX 0.7 or later is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import fa3.jax  # noqa: E402, F811

Q, K, V, DO = random_arrays((2, 200, 4, 16), (2, 150, 2, 16), (2, 150, 2, 8), (2, 200, 4, 8))
KINDS = [(2, 4), (1, 4), (2, 1), (1, 1)]


def seen_by(batch, heads, rows=200, keys=150):
    """Booleans with a row that sees nothing."""
    seen = np.random.default_rng(2).random((batch, heads, rows, keys)) < 0.3
    seen[..., 3, :] = False
    return seen


def both_passes(attend, *operands):
    out, pull_back = jax.vjp(attend, *operands)
    return out, *pull_back(jnp.asarray(DO))


def exact(mask, **options):
    out, lse = fa3.attention(Q, K, V, block_mask=mask, return_lse=True, **options)
    gradients = fa3.attention_backward(DO, Q, K, V, out, lse, block_mask=mask, **options)
    return out, *gradients[:3]


def assert_bits(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_block_mask_has_the_bits_of_the_numpy_front(kind):
    mask = fa3.masks.from_dense(seen_by(*kind), compact=True)
    attend = jax.jit(lambda q, k, v, mask: fa3.jax.attention(q, k, v, block_mask=mask, causal=True))
    found = both_passes(lambda *a: attend(*a, mask), Q, K, V)
    assert_bits(found, exact(mask, causal=True))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_booleans_are_a_block_mask_made_in_the_program(kind):
    seen = seen_by(*kind)
    attend = jax.jit(lambda q, k, v, seen: fa3.jax.attention(q, k, v, bias=seen))
    found = both_passes(lambda *a: attend(*a, seen), Q, K, V)
    assert_bits(found, exact(fa3.masks.from_dense(seen)))


@pytest.mark.parametrize("shape", [(150,), (200, 1), (4, 1, 150), (2, 1, 1, 150)], ids=str)
def test_booleans_broadcast(shape):
    seen = np.random.default_rng(4).random(shape) < 0.5
    whole = np.broadcast_to(seen, (2, 4, 200, 150))
    expected = fa3.attention(Q, K, V, block_mask=fa3.masks.from_dense(whole))
    np.testing.assert_array_equal(fa3.jax.attention(Q, K, V, bias=seen), expected)


def test_masks_of_jax_arrays_are_those_of_numpy():
    seen = seen_by(2, 1, 300, 257)
    ours, theirs = jax.jit(fa3.masks.from_dense)(seen), fa3.masks.from_dense(seen)
    assert_bits(ours, theirs)
    for block, shape in ((128, (1, 2, 3, 2)), (64, (1, 2, 5, 3))):
        blocks = np.random.default_rng(5).random(shape) < 0.5
        ours = fa3.masks.from_block_map(jnp.asarray(blocks), block=block)
        theirs = fa3.masks.from_block_map(blocks, block=block)
        assert isinstance(ours.blocks, jax.Array)
        np.testing.assert_array_equal(ours.blocks, theirs.blocks)
        if block == 64:
            np.testing.assert_array_equal(ours.bits, theirs.bits)


def test_lengths_beside_a_mask():
    used = np.array([150, 40], np.int32)
    mask = fa3.masks.from_dense(seen_by(1, 1))
    found = jax.jit(lambda used: fa3.jax.attention(Q, K, V, block_mask=mask, seqused_k=used))(used)
    np.testing.assert_array_equal(found, fa3.attention(Q, K, V, block_mask=mask, seqused_k=used))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("spec", [P("x"), P(None, None, "x")], ids=str)
def test_a_mask_is_cut_with_batch_or_heads(kind, spec):
    if len(jax.devices("cpu")) < 2:
        pytest.skip("JAX was started with one CPU device before these tests")
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2])
    mask = fa3.masks.from_dense(seen_by(*kind), compact=True)
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in (Q, K, V)]
    program = jax.jit(lambda q, k, v: fa3.jax.attention(q, k, v, block_mask=mask))
    np.testing.assert_array_equal(program(*placed), fa3.attention(Q, K, V, block_mask=mask))
    assert "all-gather" not in program.lower(*placed).compile().as_text()


@pytest.mark.parametrize("each_its_own", [False, True])
def test_vmap_of_masks(each_its_own):
    seen = np.stack([seen_by(2, 1), ~seen_by(2, 1)])
    examples = np.stack([Q, Q + 1])
    over = (0, 0 if each_its_own else None)
    attend = lambda q, seen: fa3.jax.attention(q, K, V, bias=seen)  # noqa: E731
    found = jax.vmap(attend, over)(examples, seen if each_its_own else seen[0])
    for at, ours in enumerate(found):
        expected = attend(examples[at], seen[at if each_its_own else 0])
        np.testing.assert_array_equal(ours, expected)


def textbook(q, k, v, bias, seen=True, softcap=None, scale=0.25):
    """Attention that stores its scores, with zeros where a query sees no key."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) * scale
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    scores = jnp.where(seen, scores + bias, -1e30)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True)) * (scores > -1e29)
    total = weights.sum(-1)
    out = jnp.einsum("bhij,bjhe->bihe", weights / jnp.maximum(total, 1e-30)[..., None], v)
    lse = jnp.log(total) + scores.max(-1)
    return out, lse


ROW, KEY = np.arange(200)[:, None], np.arange(150)
MASKED = {
    "none": ({}, True),
    "window": ({"window": (30, 7)}, (KEY >= ROW - 80) & (KEY <= ROW - 43)),
    "moved": ({"window": (None, 0), "window_shift": 50}, KEY <= ROW),
    "softcap": ({"softcap": 2.0, "scale": 0.25}, True),
    "used": (
        {"seqused_k": np.array([150, 20], np.int32), "causal": True},
        np.stack([KEY <= ROW - 50, (KEY <= ROW - 180) & (KEY < 20)])[:, None],
    ),
}


SHAPES = {"none": (2, 4, 200, 150), "softcap": (4, 1, 150)}


@pytest.mark.parametrize("name", MASKED)
def test_a_bias_of_floats_and_its_gradient(name):
    options, seen = MASKED[name]
    softcap = options.get("softcap")

    @jax.jit
    def found(*operands):
        def attend(q, k, v, bias):
            return fa3.jax.attention(q, k, v, bias=bias, return_lse=True, **options)

        return both_passes(lambda *a: attend(*a)[0], *operands), attend(*operands)[1]

    @jax.jit
    def exact(*operands):
        attend = lambda *a: textbook(*a, seen, softcap)  # noqa: E731
        return both_passes(lambda *a: attend(*a)[0], *operands), attend(*operands)[1]

    operands = Q, K, V, *random_arrays(SHAPES.get(name, (1, 1, 200, 150)))
    (results, lse), (expected, expected_lse) = found(*operands), exact(*operands)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=2e-6)
    for name, ours, theirs in zip(("out", "q", "k", "v", "bias"), results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5, err_msg=name)


def test_a_bias_hides_keys_and_whole_rows():
    bias = np.zeros((200, 150), np.float32)
    bias[:, 100:] = -np.inf
    bias[7] = -np.inf

    def loss(bias):
        out, lse = fa3.jax.attention(Q, K, V, bias=bias, return_lse=True)
        return (out**2).sum(), (out, lse)

    gradient, (out, lse) = jax.jit(jax.grad(loss, has_aux=True))(bias)
    np.testing.assert_allclose(out[:, 8], fa3.attention(Q, K[:, :100], V[:, :100])[:, 8], atol=2e-6)
    assert (out[:, 7] == 0).all() and (lse[:, :, 7] == -np.inf).all()
    assert np.isfinite(gradient).all() and (np.asarray(gradient)[7] == 0).all()


def test_beside_a_bias_nothing_behind_a_sequence_counts_and_scale_0_is_0():
    bias = np.random.default_rng(6).standard_normal((4, 200, 150)).astype(np.float32)
    used = {"seqused_q": np.int32([120, 200]), "seqused_k": np.int32([90, 150])}

    def attend(q, k, v):
        return fa3.jax.attention(q, k, v, bias=bias, **used)

    garbage = [np.copy(x) for x in (Q, K, V)]
    for x, rows in zip(garbage, (120, 90, 90), strict=True):
        x[0, rows:] = np.nan
    assert_bits(both_passes(attend, *garbage), both_passes(attend, Q, K, V))
    by_bias = fa3.jax.attention(Q, K, V, bias=bias, scale=0.0)
    weights = jax.nn.softmax(bias, axis=-1)
    expected = jnp.einsum("hij,bjhe->bihe", weights, jnp.repeat(V, 2, axis=2))
    np.testing.assert_allclose(by_bias, expected, rtol=0, atol=1e-5)


def test_a_bias_takes_no_queries_and_lengths_of_each_sequence_alone():
    bias = np.zeros((1, 1, 1, 150), np.float32)
    assert fa3.jax.attention(Q[:, :0], K, V, bias=bias).shape == (2, 0, 4, 8)
    assert fa3.jax.attention(Q[:, :0], K, V, bias=bias[:, :, :0]).shape == (2, 0, 4, 8)
    with pytest.raises(fa3.InvalidArgument, match="seqused_k: expected entries = 2"):
        fa3.jax.attention(Q, K, V, bias=bias, seqused_k=np.int32([3]))
    with pytest.raises(fa3.InvalidArgument, match="bias: expected floats, got bool"):
        fa3.jax.dot_product_attention(Q, K, K, bias=bias == 0)


@pytest.mark.parametrize("window", [(2**31 - 1, 2**31 - 1), (2**40, None), jnp.array([9, 3])])
def test_beside_a_bias_a_window_is_what_it_is_without(window):
    bias = np.zeros((200, 150), np.float32)
    found = fa3.jax.attention(Q, K, V, bias=bias, window=window)
    np.testing.assert_allclose(found, fa3.attention(Q, K, V, window=window), rtol=0, atol=2e-6)


def test_a_bias_of_any_float_is_added_in_float32():
    bias = np.random.default_rng(7).integers(-4, 4, (200, 150)).astype(np.float32)
    expected = fa3.jax.attention(Q, K, V, bias=bias, return_lse=True)
    with jax.enable_x64(True):
        assert_bits(fa3.jax.attention(Q, K, V, bias=bias.astype(float), return_lse=True), expected)
    with jax.numpy_dtype_promotion("strict"):
        for dtype in (jnp.bfloat16, jnp.float8_e4m3fn):
            found = fa3.jax.attention(Q, K, V, bias=bias.astype(dtype), return_lse=True)
            assert_bits(found, expected)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_devices_share_sequences_beside_a_bias(kind):
    if len(jax.devices("cpu")) < 2:
        pytest.skip("JAX was started with one CPU device before these tests")
    mesh = jax.make_mesh((2,), ("x",), (kind,), devices=jax.devices("cpu")[:2])
    options = {"bias": np.zeros((200, 150), np.float32), "seqused_k": np.int32([150, 20])}
    placed = [jax.device_put(x, NamedSharding(mesh, P("x"))) for x in (Q, K, V)]
    found = fa3.jax.attention(*placed, return_lse=True, **options)
    whole = fa3.jax.attention(Q, K, V, return_lse=True, **options)
    for ours, expected in zip(found, whole, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-6)


def test_a_bias_keeps_one_block_of_scores():
    """Not the scores of all queries, in neither pass: these would be 64 MiB."""
    (x,) = random_arrays((1, 4096, 1, 16))
    bias = jax.ShapeDtypeStruct((4096,), np.float32)
    gradient = jax.jit(
        jax.grad(lambda x, bias: fa3.jax.attention(x, x, x, bias=bias).sum(), (0, 1))
    )
    assert gradient.lower(x, bias).compile().memory_analysis().temp_size_in_bytes < 40 << 20

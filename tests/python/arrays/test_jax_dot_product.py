# SPDX-License-Identifier: Apache-2.0
"""fa3.jax.dot_product_attention in the place of jax.nn.dot_product_attention."""

import inspect

import numpy as np
import pytest
from jax_arrays import random_arrays

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
jax = pytest.importorskip("jax", "0.7", reason="JAX 0.7 or later is not installed")

import fa3.jax  # noqa: E402, F811

SHAPES = (2, 140, 4, 16), (2, 300, 2, 16), (2, 300, 2, 16)
Q, K, V = random_arrays(*SHAPES)
BIAS, SEEN = random_arrays((1, 4, 140, 300), (1, 4, 140, 300))
SEEN = SEEN < 0.5
SEEN[..., 0] = True  # where a query sees no key, JAX has the mean of the values
LENGTHS = {
    "query_seq_lengths": np.array([140, 77], np.int32),
    "key_value_seq_lengths": np.array([9, 300], np.int32),
}
CALLS = {
    "causal": {"is_causal": True},
    "scale, window": {"scale": 0.1, "local_window_size": (5, 130)},
    "window of one number": {"local_window_size": 3, "is_causal": True},
    "lengths": LENGTHS,
    "lengths, causal": {**LENGTHS, "is_causal": True},
    "lengths, window": {
        "query_seq_lengths": LENGTHS["query_seq_lengths"],
        "local_window_size": 150,
    },
    "mask of keys": {"mask": np.arange(300) % 3 < 2},
    "mask, causal": {"mask": SEEN, "is_causal": True},
    "mask, lengths, causal": {**LENGTHS, "mask": SEEN, "is_causal": True},
    "bias, mask, causal": {"bias": BIAS, "mask": SEEN, "is_causal": True},
    "bias, lengths, window": {**LENGTHS, "bias": BIAS, "local_window_size": (200, 20)},
}


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_it_equals_jax(options):
    arrays = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    static = {name: x for name, x in options.items() if name not in arrays}

    def both_passes(attention):
        @jax.jit
        def run(q, k, v, arrays):
            def attend(q, k, v):
                return attention(q, k, v, **arrays, **static, return_residual=True)

            (out, lse), pull_back = jax.vjp(attend, q, k, v)
            return out, lse, *pull_back((out, lse))

        return run(Q, K, V, arrays)

    found = both_passes(fa3.jax.dot_product_attention)
    expected = both_passes(jax.nn.dot_product_attention)
    used = np.arange(140) < options.get("query_seq_lengths", np.array([140]))[:, None]
    for name, ours, theirs in zip(("out", "lse", "dq", "dk", "dv"), found, expected, strict=True):
        if name == "lse":  # JAX's own is large and negative where there is no query
            ours, theirs = (np.where(used[..., None], x, 0) for x in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5, err_msg=name)


def test_it_takes_examples_without_a_batch():
    def of(attention):
        one = jax.jit(lambda *a: attention(*a, is_causal=True, return_residual=True))
        return one(Q[0], K[0], V[0])

    found, expected = of(fa3.jax.dot_product_attention), of(jax.nn.dot_product_attention)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


def test_it_has_the_arguments_of_jax():
    ours = inspect.signature(fa3.jax.dot_product_attention).parameters
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    assert [*ours] == [*theirs]


def test_a_query_that_sees_no_key_is_zero():
    seen = np.ones((140, 300), bool)
    seen[5] = False
    out = fa3.jax.dot_product_attention(Q, K, V, mask=seen)
    assert (out[:, 5] == 0).all() and (out[:, 6] != 0).any()


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, LENGTHS], ids=["", "causal", "lengths"]
)
@pytest.mark.parametrize("window", [(150, -1), (-2, 150), (-151, 160)])
def test_a_window_may_leave_out_the_querys_own_key(window, options):
    left, right = window
    key_minus_query = np.arange(300) - np.arange(140)[:, None]
    seen = (key_minus_query >= -left) & (key_minus_query <= right)
    found = fa3.jax.dot_product_attention(Q, K, V, local_window_size=window, **options)
    out = fa3.jax.dot_product_attention(Q, K, V, mask=seen, **options)
    np.testing.assert_allclose(found, out, rtol=1e-5, atol=2e-6)
    of_jax = jax.nn.dot_product_attention(Q, K, V, local_window_size=window, **options)
    sees_a_key = (out != 0).any(-1)  # JAX has the mean of the values where not
    np.testing.assert_allclose(found[sees_a_key], of_jax[sees_a_key], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("options", [{"bias": BIAS}, {**LENGTHS, "mask": SEEN}], ids=list)
def test_the_widest_window_hides_nothing(options):
    found = fa3.jax.dot_product_attention(Q, K, V, local_window_size=2**31 - 1, **options)
    expected = fa3.jax.dot_product_attention(Q, K, V, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_lengths_of_64_bits_are_never_taken_for_others():
    lengths = {"key_value_seq_lengths": np.array([2**32 + 9, 300])}
    with pytest.raises((ValueError, RuntimeError), match="seqused_k: expected a length in"):
        jax.block_until_ready(fa3.jax.dot_product_attention(Q, K, V, **lengths))


def test_a_mask_of_numbers_and_wrong_ranks_are_refused():
    with pytest.raises(fa3.InvalidArgument, match="^mask: expected booleans, got float32; pass"):
        fa3.jax.dot_product_attention(Q, K, V, mask=BIAS)
    with pytest.raises(fa3.InvalidArgument, match="^query, key, value: expected rank 3"):
        fa3.jax.dot_product_attention(Q[0, 0], K, V)


def test_lists_are_arrays():
    q, k, v = (x[:1, :5, :2].tolist() for x in (Q, K, V))
    lists = {"bias": BIAS[:, :2, :5, :5].tolist(), "mask": SEEN[0, :2, :5, :5].tolist()}
    lists["key_value_seq_lengths"] = [4]
    arrays = {name: np.asarray(x) for name, x in lists.items()}
    arrays["bias"] = arrays["bias"].astype(np.float32)
    found = fa3.jax.dot_product_attention(q, k, v, **lists)
    expected = jax.nn.dot_product_attention(*(np.float32(x) for x in (q, k, v)), **arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

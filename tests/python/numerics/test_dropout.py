# SPDX-License-Identifier: Apache-2.0
"""Dropout: one mask for every engine and caller, its gradients, and where its seed comes from.

The mask is held to the oracle's, which shares no code with the library; its statistics are those of
tests/cpp/core/dropout_test.cpp.
"""

import c_abi
import numpy as np
import oracle
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

SEED = 0x9E3779B97F4A7C15, 0xFFFFFFFF00000003
ENGINES = "cpu", "reference", "standard"
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (20, 3)},
    "everything": {"causal": True, "window": (30, 5), "softcap": 3.0, "sink": True},
}


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def close(actual, expected, atol=2e-5):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=0, atol=atol)


@pytest.mark.parametrize("shape", [(2, 3, 37, 50), (1, 1, 1, 600), (1, 9, 130, 17), (5, 2, 16, 16)])
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 1.0])
def test_the_mask_is_the_oracles(shape, p):
    expected = oracle.dropout_mask(p, *SEED, shape)
    np.testing.assert_array_equal(fa3.dropout_mask(p, SEED, shape), expected)
    np.testing.assert_array_equal(c_abi.dropout_mask(p, *SEED, shape), expected)


def test_a_larger_mask_begins_with_a_smaller_one():
    large = fa3.dropout_mask(0.3, SEED, (3, 4, 70, 90))
    np.testing.assert_array_equal(
        fa3.dropout_mask(0.3, SEED, (2, 3, 33, 41)), large[:2, :3, :33, :41]
    )


def test_a_part_of_the_mask_is_where_it_begins():
    large = fa3.dropout_mask(0.3, SEED, (3, 4, 70, 150))
    part = fa3.dropout_mask(0.3, SEED, (2, 1, 33, 70), first=(1, 2, 19, 67))
    np.testing.assert_array_equal(part, large[1:, 2:3, 19:52, 67:137])


def test_negative_numbers_are_their_64_bits():
    masks = [
        fa3.dropout_mask(0.5, seed, (1, 1, 8, 64)) for seed in [(-1, -2), (2**64 - 1, 2**64 - 2)]
    ]
    np.testing.assert_array_equal(*masks)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("engine", ENGINES)
def test_both_passes_equal_the_oracle_under_the_mask(engine, name):
    q, k, v, do = arrays((2, 45, 6, 24), (2, 77, 2, 24), (2, 77, 2, 40), (2, 45, 6, 40))
    options = dict(OPTIONS[name])
    if options.pop("sink", False):
        (options["sink"],) = arrays((6,), seed=1)
    kept = oracle.dropout_factors(0.2, *SEED, (2, 6, 45, 77))
    dropout = {"dropout_p": 0.2, "dropout_seed": SEED, "engine": engine}
    out, lse = fa3.attention(q, k, v, return_lse=True, **options, **dropout)
    expected = oracle.forward(q, k, v, kept=kept, **options)
    close(out, expected[0])
    close(lse, expected[1])
    gradients = fa3.attention_backward(do, q, k, v, out, lse, **options, **dropout)
    for actual, wanted in zip(
        gradients[:4], oracle.backward(q, k, v, do, kept=kept, **options), strict=True
    ):
        if wanted is not None:
            close(actual, wanted, 2e-4)


def test_a_packed_sequence_has_the_mask_of_its_place_in_the_batch():
    cu_q, cu_k = np.array([0, 5, 5, 40], np.int32), np.array([0, 9, 12, 60], np.int32)
    q, k, v = arrays((40, 4, 16), (60, 2, 16), (60, 2, 16))
    out = fa3.attention(
        *(q, k, v), cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, dropout_p=0.4, dropout_seed=SEED
    )
    kept = oracle.dropout_factors(0.4, *SEED, (3, 4, 40, 60))
    for n in (0, 2):
        rows, keys = slice(*cu_q[n : n + 2]), slice(*cu_k[n : n + 2])
        of_one = kept[n : n + 1, :, : rows.stop - rows.start, : keys.stop - keys.start]
        expected, _ = oracle.forward(q[None, rows], k[None, keys], v[None, keys], kept=of_one)
        close(out[rows], expected[0])


def test_left_padding_is_not_counted():
    q, k, v = arrays((2, 3, 2, 16), (2, 50, 2, 16), (2, 50, 2, 16))
    named = {"dropout_p": 0.4, "dropout_seed": SEED}
    padded = fa3.attention(
        *(q, k, v),
        seqused_k=np.full(2, 50, np.int32),
        left_padding=np.full(2, 7, np.int32),
        **named,
    )
    close(padded, fa3.attention(q, k[:, 7:], v[:, 7:], **named), 1e-6)


def test_no_probability_changes_no_bit_and_all_gives_zeros():
    q, k, v = arrays((1, 20, 2, 32), (1, 30, 2, 32), (1, 30, 2, 32))
    plain = fa3.attention(q, k, v, return_lse=True)
    for a, b in zip(plain, fa3.attention(q, k, v, return_lse=True, dropout_p=0.0), strict=True):
        np.testing.assert_array_equal(a, b)
    out, lse = fa3.attention(q, k, v, return_lse=True, dropout_p=1, dropout_seed=SEED)
    assert not out.any()
    np.testing.assert_array_equal(lse, plain[1])
    gradients = fa3.attention_backward(q, q, k, v, out, lse, dropout_p=1, dropout_seed=SEED)
    assert not any(gradient.any() for gradient in gradients[:3])


REFUSED = [
    ({"dropout_p": float("nan")}, "dropout_p: expected a probability from 0 to 1, got nan"),
    ({"dropout_p": -0.1}, "dropout_p: expected a probability from 0 to 1, got -0.1"),
    ({"dropout_p": 1.5}, "dropout_p: expected a probability from 0 to 1, got 1.5"),
    ({"dropout_seed": None}, "dropout_seed: expected .* beside dropout_p, got None"),
    ({"dropout_seed": 5}, r"dropout_seed: expected \(seed, offset\), two integers .* got 5"),
    ({"dropout_seed": (1, 2, 3)}, "dropout_seed: .* got .1, 2, 3"),
    ({"dropout_seed": (1, 0.5)}, "dropout_seed: .* got .1, 0.5"),
    ({"generator": object()}, "generator: expected None with arrays that are no torch tensors"),
]


@pytest.mark.parametrize("change, words", REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_a_wrong_argument_is_named(change, words):
    q, k, v = arrays((1, 3, 1, 8), (1, 4, 1, 8), (1, 4, 1, 8))
    with pytest.raises(fa3.InvalidArgument, match=words):
        fa3.attention(q, k, v, **{"dropout_p": 0.1, "dropout_seed": SEED, **change})


def test_a_mask_of_no_shape_or_probability_is_refused():
    with pytest.raises(fa3.InvalidArgument, match=r"shape: expected \(batch, heads, queries, keys"):
        fa3.dropout_mask(0.1, SEED, (1, 2, 3))
    with pytest.raises(fa3.InvalidArgument, match="^first: expected .*got -1, 0, 0, 0"):
        fa3.dropout_mask(0.1, SEED, (1, 1, 1, 1), first=(-1, 0, 0, 0))
    with pytest.raises(fa3.InvalidArgument, match=r"^first: expected .*got \(1, 2\)"):
        fa3.dropout_mask(0.1, SEED, (1, 1, 1, 1), first=(1, 2))
    with pytest.raises(fa3.InvalidArgument, match="dropout_p: expected a probability"):
        fa3.dropout_mask(2.0, SEED, (1, 1, 1, 1))


def test_caches_and_fp8_are_refused_with_a_sentence():
    q, k, v = arrays((2, 3, 2, 16), (2, 32, 2, 16), (2, 32, 2, 16))
    named = {"dropout_p": 0.1, "dropout_seed": SEED, "seqused_k": np.full(2, 9, np.int32)}
    pages = np.array([[0], [1]], np.int32)
    with pytest.raises(fa3.Unsupported, match="dropout_p: expected 0 with page_table"):
        fa3.attention(q, k, v, page_table=pages, **named)
    with pytest.raises(fa3.Unsupported, match="dropout_p: expected 0 with batch_index"):
        fa3.attention(q, k, v, batch_index=pages[:, 0].copy(), **named)
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes gives numpy its float8")
    tiny = [x.astype(ml_dtypes.float8_e4m3fn) for x in (q, k, v)]
    with pytest.raises(fa3.Unsupported, match="dropout_p: expected 0 with float8_e4m3"):
        fa3.attention(*tiny, **named)

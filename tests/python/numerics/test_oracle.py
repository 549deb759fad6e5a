# SPDX-License-Identifier: Apache-2.0
"""Holds oracle.py to things simpler than itself: loops, finite differences, identities."""

import math

import numpy as np
import oracle
import pytest

# name: (b, sq, sk, hq, hk, d, dv), options. "sink" is replaced by logits that fit hq.
CASES = {
    "plain": ((2, 4, 5, 2, 2, 3, 3), {}),
    "one_key": ((1, 3, 1, 1, 1, 2, 2), {}),
    "scale": ((1, 4, 5, 1, 1, 3, 3), {"scale": 0.7}),
    "wide_v": ((1, 4, 5, 2, 2, 3, 5), {}),
    "gqa": ((2, 3, 4, 6, 2, 3, 2), {}),
    "mqa": ((1, 3, 4, 3, 1, 3, 3), {}),
    "causal": ((1, 5, 5, 2, 1, 3, 3), {"causal": True}),
    "causal_more_keys": ((1, 3, 6, 1, 1, 3, 3), {"causal": True}),
    "causal_empty_rows": ((1, 6, 3, 1, 1, 3, 3), {"causal": True}),
    "window": ((1, 6, 6, 1, 1, 3, 3), {"window": (2, 1)}),
    "window_diagonal": ((1, 5, 5, 1, 1, 3, 3), {"window": (0, 0)}),
    "window_left": ((1, 4, 7, 1, 1, 3, 3), {"window": (2, -1)}),
    "window_right": ((1, 7, 4, 1, 1, 3, 3), {"window": (-1, 1)}),
    "chunk": ((1, 7, 9, 1, 1, 3, 3), {"attention_chunk": 4}),
    "chunk_causal": ((1, 9, 6, 2, 1, 3, 3), {"attention_chunk": 4, "causal": True}),
    "window_causal": ((1, 6, 5, 1, 1, 3, 3), {"window": (1, 3), "causal": True}),
    "softcap": ((1, 4, 5, 2, 2, 3, 3), {"softcap": 0.8}),
    "sink": ((2, 4, 5, 2, 2, 3, 3), {"sink": True}),
    "sink_empty_rows": ((1, 6, 3, 2, 1, 3, 3), {"sink": True, "causal": True}),
    "everything": (
        (2, 7, 5, 4, 2, 3, 2),
        {"causal": True, "window": (2, 0), "softcap": 1.3, "scale": 0.9, "sink": True},
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def make_case(name):
    (b, sq, sk, hq, hk, d, dv), options = CASES[name]
    rng = np.random.default_rng(sorted(CASES).index(name))
    shapes = (b, sq, hq, d), (b, sk, hk, d), (b, sk, hk, dv), (b, sq, hq, dv)
    q, k, v, do = (rng.standard_normal(shape) for shape in shapes)
    options = dict(options)
    if options.get("sink"):
        options["sink"] = rng.standard_normal(hq)
    return q, k, v, do, options


def attention_by_loops(
    q, k, v, causal=False, window=(-1, -1), attention_chunk=0, softcap=0, scale=None, sink=None
):
    """One query row at a time, in Python floats."""
    (b, sq, hq, d), (_, sk, hk, dv) = q.shape, v.shape
    o, lse = np.zeros((b, sq, hq, dv)), np.full((b, hq, sq), -np.inf)
    for batch, row, head in np.ndindex(b, sq, hq):
        kv_head, diagonal = head * hk // hq, row + sk - sq
        logits = {}
        for col in range(sk):
            if causal and col > diagonal:
                continue
            if window[0] != -1 and col < diagonal - window[0]:
                continue
            if window[1] != -1 and col > diagonal + window[1]:
                continue
            if attention_chunk and col // attention_chunk != diagonal // attention_chunk:
                continue
            dot = sum(float(q[batch, row, head, x] * k[batch, col, kv_head, x]) for x in range(d))
            logit = dot / math.sqrt(d) if scale is None else dot * scale
            logits[col] = softcap * math.tanh(logit / softcap) if softcap else logit
        exps = {col: math.exp(logit) for col, logit in logits.items()}
        denominator = sum(exps.values()) + (math.exp(sink[head]) if sink is not None else 0.0)
        if denominator:
            lse[batch, head, row] = math.log(denominator)
        for col, e in exps.items():
            o[batch, row, head] += e / denominator * v[batch, col, kv_head]
    return o, lse


def numeric_gradient(loss, x, step=1e-5):
    """Central differences: error about step**2 + 1e-16 / step, so 1e-8 leaves room."""
    gradient = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        kept = x[at]
        x[at] = kept + step
        above = loss()
        x[at] = kept - step
        gradient[at] = (above - loss()) / (2 * step)
        x[at] = kept
    return gradient


@every_case
def test_forward_equals_loops_over_rows(name):
    q, k, v, _, options = make_case(name)
    o, lse = oracle.forward(q, k, v, **options)
    expected_o, expected_lse = attention_by_loops(q, k, v, **options)
    np.testing.assert_allclose(o, expected_o, rtol=0, atol=1e-14)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-14)


@every_case
def test_gradients_equal_finite_differences(name):
    q, k, v, do, options = make_case(name)
    dq, dk, dv, dsink = oracle.backward(q, k, v, do, **options)

    def loss():
        return (oracle.forward(q, k, v, **options)[0] * do).sum()

    inputs = {"q": (q, dq), "k": (k, dk), "v": (v, dv)}
    if "sink" in options:
        inputs["sink"] = (options["sink"], dsink)
    else:
        assert dsink is None
    for label, (x, gradient) in inputs.items():
        assert gradient.shape == x.shape
        np.testing.assert_allclose(
            gradient, numeric_gradient(loss, x), rtol=0, atol=1e-8, err_msg=f"d{label}"
        )


def test_visibility_is_aligned_bottom_right_with_inclusive_ends():
    def drawn(*args, **options):
        return [
            "".join(".x"[bit] for bit in row) for row in oracle.visibility(*args, **options) * 1
        ]

    assert drawn(3, 5, causal=True) == ["xxx..", "xxxx.", "xxxxx"]
    assert drawn(4, 2, causal=True) == ["..", "..", "x.", "xx"]
    assert drawn(3, 5, window=(1, 0)) == [".xx..", "..xx.", "...xx"]
    assert drawn(3, 3, window=(0, 0)) == ["x..", ".x.", "..x"]
    assert drawn(3, 3, window=(-1, 1)) == ["xx.", "xxx", "xxx"]
    assert drawn(3, 3, window=(1, -1)) == ["xxx", "xxx", ".xx"]
    assert drawn(3, 3, window=(1, 2), causal=True) == ["x..", "xx.", ".xx"]
    assert drawn(3, 5, attention_chunk=2) == ["..xx.", "..xx.", "....x"]
    assert drawn(5, 3, attention_chunk=2) == ["...", "...", "xx.", "xx.", "..x"]


@pytest.mark.parametrize("sq, sk", [(6, 3), (4, 0), (0, 4), (0, 0)])
@pytest.mark.parametrize("with_sink", [False, True])
def test_row_without_keys_gives_zero_and_the_lse_of_its_sink(sq, sk, with_sink):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, s, 2, 3)) for s in (sq, sk, sk))
    sink = np.array([0.3, -2.0]) if with_sink else None
    options = {"causal": True, "sink": sink}
    o, lse = oracle.forward(q, k, v, **options)
    dq, dk, dv, dsink = oracle.backward(q, k, v, rng.standard_normal(o.shape), **options)
    empty = max(0, sq - sk)
    assert o.shape == (1, sq, 2, 3) and lse.shape == (1, 2, sq)
    assert (dq.shape, dk.shape, dv.shape) == (q.shape, k.shape, v.shape)
    assert not o[:, :empty].any() and not dq[:, :empty].any()
    expected = np.full((2, empty), -np.inf) if sink is None else np.repeat(sink[:, None], empty, 1)
    np.testing.assert_array_equal(lse[0, :, :empty], expected)
    assert np.isfinite(lse[..., empty:]).all() and np.isfinite(dk).all() and np.isfinite(dv).all()
    if with_sink and sk == 0:
        np.testing.assert_array_equal(dsink, [0.0, 0.0])


def test_large_scores_do_not_overflow():
    q = np.full((1, 2, 1, 4), 100.0)
    k = np.stack([np.full((1, 1, 4), 100.0), np.full((1, 1, 4), -100.0)], axis=1)
    v = np.arange(8.0).reshape(1, 2, 1, 4)
    o, lse = oracle.forward(q, k, v)
    np.testing.assert_array_equal(o[0, :, 0], [v[0, 0, 0]] * 2)
    np.testing.assert_array_equal(lse, np.full((1, 1, 2), 20000.0))


def test_nan_in_a_visible_input_propagates_and_stays_in_its_rows():
    q, k, v, _, _ = make_case("causal")
    q[0, 2] = np.nan
    o, lse = oracle.forward(q, k, v, causal=True)
    assert np.isnan(o[0, 2]).all() and np.isnan(lse[0, :, 2]).all()
    assert np.isfinite(np.delete(o, 2, axis=1)).all()


def test_nan_in_a_hidden_value_leaves_empty_rows_zero_and_other_gradients_finite():
    q, k, v, do, options = make_case("causal_empty_rows")
    v[0, 2] = np.nan  # only the last query row sees the last key
    o, _ = oracle.forward(q, k, v, **options)
    dq, *_ = oracle.backward(q, k, v, do, **options)
    assert not o[0, :3].any()
    assert np.isfinite(dq[0, :5]).all()
    assert np.isnan(dq[0, 5]).all()


@pytest.mark.parametrize("cuts", [[3], [1, 4], [0, 3, 3, 7]])
@pytest.mark.parametrize("sink", [None, np.array([0.4, -0.2])])
def test_merge_of_split_keys_equals_the_whole(cuts, sink):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, s, 2, 4)) for s in (3, 7, 7))
    parts = zip(np.split(k, cuts, axis=1), np.split(v, cuts, axis=1), strict=True)
    partials = [
        oracle.forward(q, *part, sink=sink if index == 0 else None)
        for index, part in enumerate(parts)
    ]
    o, lse = oracle.merge(partials)
    whole_o, whole_lse = oracle.forward(q, k, v, sink=sink)
    np.testing.assert_allclose(o, whole_o, rtol=0, atol=1e-14)
    np.testing.assert_allclose(lse, whole_lse, rtol=0, atol=1e-14)


def test_merge_of_empty_partials_is_empty():
    nothing = np.zeros((1, 3, 2, 4)), np.full((1, 2, 3), -np.inf)
    o, lse = oracle.merge([nothing, nothing])
    np.testing.assert_array_equal(o, nothing[0])
    np.testing.assert_array_equal(lse, nothing[1])


def test_merge_accepts_packed_partials():
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, s, 2, 4)) for s in (5, 6, 6))
    halves = [oracle.forward(q, k[:, part], v[:, part]) for part in (slice(2), slice(2, 6))]
    o, lse = oracle.merge([(o[0], lse[0]) for o, lse in halves])
    whole_o, whole_lse = oracle.forward(q, k, v)
    np.testing.assert_allclose(o, whole_o[0], rtol=0, atol=1e-14)
    np.testing.assert_allclose(lse, whole_lse[0], rtol=0, atol=1e-14)


VARLEN_OPTIONS = [{}, {"causal": True, "window": (2, -1), "softcap": 1.1, "sink": np.ones(4)}]


@pytest.mark.parametrize("options", VARLEN_OPTIONS)
@pytest.mark.parametrize("with_seqused", [False, True])
def test_packed_sequences_equal_separate_ones_and_unused_rows_change_nothing(options, with_seqused):
    rng = np.random.default_rng(3)
    cu_q, cu_k = np.array([0, 3, 3, 8], np.int32), np.array([0, 4, 6, 11], np.int32)
    used_q, used_k = np.diff(cu_q), np.diff(cu_k)
    if with_seqused:
        used_q, used_k = np.array([2, 0, 5], np.int32), np.array([4, 1, 0], np.int32)
    q, do = (rng.standard_normal((9, 4, 3)) for _ in range(2))  # one row past the last sequence
    k, v = (rng.standard_normal((11, 2, 3)) for _ in range(2))
    is_used_q, is_used_k = np.zeros(9, bool), np.zeros(11, bool)
    for n in range(3):
        is_used_q[cu_q[n] : cu_q[n] + used_q[n]] = True
        is_used_k[cu_k[n] : cu_k[n] + used_k[n]] = True
    for x, used in ((q, is_used_q), (do, is_used_q), (k, is_used_k), (v, is_used_k)):
        x[~used] = np.nan

    packing = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    if with_seqused:
        packing |= {"seqused_q": used_q, "seqused_k": used_k}
    o, lse = oracle.forward_varlen(q, k, v, **packing, **options)
    dq, dk, dv, dsink = oracle.backward_varlen(q, k, v, do, **packing, **options)

    assert not o[~is_used_q].any() and np.isneginf(lse[:, ~is_used_q]).all()
    assert not dq[~is_used_q].any()
    assert not dk[~is_used_k].any() and not dv[~is_used_k].any()
    dsinks = []
    for n in range(3):
        at_q = slice(cu_q[n], cu_q[n] + used_q[n])
        at_k = slice(cu_k[n], cu_k[n] + used_k[n])
        inputs = q[None, at_q], k[None, at_k], v[None, at_k]
        one_o, one_lse = oracle.forward(*inputs, **options)
        *gradients, one_dsink = oracle.backward(*inputs, do[None, at_q], **options)
        dsinks.append(one_dsink)
        np.testing.assert_array_equal(o[at_q], one_o[0])
        np.testing.assert_array_equal(lse[:, at_q], one_lse[0])
        for packed, one in zip((dq[at_q], dk[at_k], dv[at_k]), gradients, strict=True):
            np.testing.assert_array_equal(packed, one[0])
    if dsink is not None:
        np.testing.assert_allclose(dsink, sum(dsinks), rtol=0, atol=1e-15)


def test_bad_arguments_are_refused_by_name():
    q = np.zeros((1, 2, 3, 4))
    with pytest.raises(ValueError, match="heads: 3 query heads"):
        oracle.forward(q, q[:, :, :2], q[:, :, :2])
    with pytest.raises(ValueError, match="window"):
        oracle.forward(q, q, q, window=(-2, 0))

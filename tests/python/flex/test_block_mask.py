# SPDX-License-Identifier: Apache-2.0
"""Masks as data: the forms that fa3.masks takes, and attention beside a dense mask in float64."""

import numpy as np
import pytest

import fa3
from fa3 import masks

RANDOM = np.random.default_rng(5)


def dense_of(mask, seqlen_q, seqlen_k):
    """Boolean (b | 1, h | 1, sq, sk) of a BlockMask, pair by pair."""
    blocks = np.asarray(mask.blocks)
    bits = None if mask.bits is None else np.asarray(mask.bits)
    seen = np.zeros((*blocks.shape[:2], seqlen_q, seqlen_k), bool)
    for b, h, i, j in np.ndindex(blocks.shape):
        at = np.s_[b, h, i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]
        part, entry = seen[at], blocks[b, h, i, j]
        if entry > 0:
            pairs = np.unpackbits(bits[entry - 1].view(np.uint8), axis=-1, bitorder="little")
            part[:] = pairs[: part.shape[0], : part.shape[1]]
        else:
            part[:] = entry == -1
    return seen


def inputs(batch=2, seqlen_q=300, seqlen_k=270, heads_q=4, heads_k=2, dim=32):
    q = RANDOM.standard_normal((batch, seqlen_q, heads_q, dim))
    k, v = RANDOM.standard_normal((2, batch, seqlen_k, heads_k, dim))
    return q, k, v


def textbook(q, k, v, seen):
    """out in float64; rows that see no key are 0."""
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, 2) for x in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    weights = np.where(total > 0, weights / np.where(total > 0, total, 1), 0)
    return np.einsum("bhij,bjhd->bihd", weights, v)


def random_dense(batch, heads, seqlen_q, seqlen_k):
    """Hidden, full and random blocks."""
    kinds = RANDOM.integers(0, 3, (batch, heads, -(-seqlen_q // 128), -(-seqlen_k // 128)))
    kinds = kinds.repeat(128, 2).repeat(128, 3)[:, :, :seqlen_q, :seqlen_k]
    return (kinds == 1) | ((kinds == 2) & (RANDOM.random(kinds.shape) < 0.3))


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_a_dense_mask_hides_what_it_hides(shape, compact):
    q, k, v = inputs()
    seen = random_dense(*shape, 300, 270)
    mask = masks.from_dense(seen, compact=compact)
    assert (dense_of(mask, 300, 270) == seen).all()
    out = fa3.attention(*(x.astype(np.float32) for x in (q, k, v)), block_mask=mask)
    np.testing.assert_allclose(out, textbook(q, k, v, seen), atol=2e-6)


def test_a_pair_of_arrays_is_a_mask():
    q, k, v = (x.astype(np.float32) for x in inputs())
    blocks = np.array([[[[-1, 0, 0], [-1, -1, 0], [0, -1, -1]]]], np.int32)
    seen = dense_of(masks.BlockMask(blocks, None), 300, 270)
    out = fa3.attention(q, k, v, block_mask=(blocks, None))
    np.testing.assert_allclose(out, textbook(q, k, v, seen), atol=2e-6)


def test_causal_besides_a_mask_hides_more():
    q, k, v = inputs(seqlen_k=300)
    seen = random_dense(1, 1, 300, 300)
    mask = masks.from_dense(seen)
    single = [x.astype(np.float32) for x in (q, k, v)]
    out = fa3.attention(*single, block_mask=mask, causal=True)
    np.testing.assert_allclose(out, textbook(q, k, v, seen & np.tri(300, dtype=bool)), atol=2e-6)


def test_gradients_are_those_of_finite_differences():
    q, k, v = inputs(batch=1, seqlen_q=140, seqlen_k=150, dim=8)
    mask = masks.from_dense(random_dense(1, 4, 140, 150))
    seen = dense_of(mask, 140, 150)
    do = RANDOM.standard_normal(q.shape)
    single = [x.astype(np.float32) for x in (q, k, v)]
    out, lse = fa3.attention(*single, block_mask=mask, return_lse=True)
    found = fa3.attention_backward(do.astype(np.float32), *single, out, lse, block_mask=mask)
    for which, gradient in enumerate(found[:3]):
        for _ in range(4):
            at = tuple(RANDOM.integers(0, n) for n in gradient.shape)
            sums = []
            for step in (1e-4, -1e-4):
                moved = [x.copy() for x in (q, k, v)]
                moved[which][at] += step
                sums.append((textbook(*moved, seen) * do).sum())
            assert abs(gradient[at] - (sums[0] - sums[1]) / 2e-4) < 2e-5


def test_rules_give_what_they_say():
    rule = lambda b, h, q, k: (k <= q + 3 * h) & (q - k < 100 + 50 * b)  # noqa: E731
    mask = masks.from_rule(rule, 2, 3, 300, 410)
    b, h, q, k = np.ogrid[:2, :3, :300, :410]
    assert (dense_of(mask, 300, 410) == rule(b, h, q, k)).all()


def test_causal_rules_are_the_causal_mask():
    q, k, v = (x.astype(np.float32) for x in inputs(seqlen_q=400, seqlen_k=400))
    mask = masks.from_rule(lambda b, h, q, k: k <= q, 1, 1, 400, 400)
    out = fa3.attention(q, k, v, block_mask=mask)
    np.testing.assert_allclose(out, fa3.attention(q, k, v, causal=True), atol=1e-6)


@pytest.mark.parametrize("block", [64, 128])
def test_block_maps_show_whole_blocks(block):
    seqlen_q, seqlen_k = 5 * block - 7, 7 * block - 20
    blocks = RANDOM.random((2, 3, 5, 7)) < 0.4
    mask = masks.from_block_map(blocks, block=block)
    seen = blocks.repeat(block, 2).repeat(block, 3)[:, :, :seqlen_q, :seqlen_k]
    assert (dense_of(mask, seqlen_q, seqlen_k) == seen).all()


@pytest.mark.parametrize("drafted", [1, 5, 128, 150])
@pytest.mark.parametrize("trees", [1, 3])
def test_drafted_tokens_see_their_branch_and_what_stands_before_them(drafted, trees):
    tree = RANDOM.random((trees, drafted, drafted)) < 0.4
    used = np.array([drafted, drafted + 127, 400])
    mask = masks.from_tree(tree, used, 500)
    seen = np.zeros((3, 1, drafted, 500), bool)
    for b in range(3):
        seen[b, 0, :, : used[b] - drafted] = True
        seen[b, 0, :, used[b] - drafted : used[b]] = tree[b % trees]
    assert (dense_of(mask, drafted, 500) == seen).all()


def test_a_tree_of_drafted_tokens_is_seen_through_pages():
    used, page = np.array([130, 77], np.int32), 16
    q = RANDOM.standard_normal((2, 6, 4, 32)).astype(np.float32)
    pages = RANDOM.standard_normal((2, 20, page, 2, 32)).astype(np.float32)
    table = RANDOM.permutation(20).astype(np.int32).reshape(2, 10)
    tree = np.tri(6, dtype=bool)
    tree[4:, 2] = False  # another branch
    mask = masks.from_tree(tree[None], used, 10 * page)
    out = fa3.attention(q, *pages, seqused_k=used, page_table=table, block_mask=mask)
    keys, values = (x[table].reshape(2, 10 * page, 2, 32) for x in pages)
    for b in range(2):
        seen = np.concatenate([np.ones((6, used[b] - 6), bool), tree], 1)
        one = (x[b : b + 1, : used[b]].astype(float) for x in (keys, values))
        expected = textbook(q[b : b + 1].astype(float), *one, seen)
        np.testing.assert_allclose(out[b], expected[0], atol=2e-6)


def test_slices_are_the_union_of_their_pairs():
    q_ranges = np.array([[0, 100], [100, 300], [250, 300], [30, 60]])
    k_ranges = np.array([[0, 90], [50, 400], [0, 410], [200, 210]])
    for types in ("full", "causal", "inverse", "band", ["causal", "band", "full", "inverse"]):
        seen = np.zeros((300, 410), bool)
        each = [types] * 4 if isinstance(types, str) else types
        for (q0, q1), (k0, k1), kind in zip(q_ranges, k_ranges, each, strict=True):
            for q in range(q0, q1):
                begin = k0 + q - q0 if kind in ("inverse", "band") else k0
                end = k1 - (q1 - 1 - q) if kind in ("causal", "band") else k1
                seen[q, max(begin, 0) : max(end, 0)] = True
        mask = masks.from_slices(q_ranges, k_ranges, types, 300, 410)
        assert (dense_of(mask, 300, 410)[0, 0] == seen).all(), types


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ((np.zeros((1, 1, 2, 3), np.int32), None), "(2, 4, 3, 3), as of q and k, got (1, 1, 2, 3)"),
        ((np.zeros((3, 1, 3, 3), np.int32), None), "(2, 4, 3, 3), as of q and k, got (3, 1, 3, 3)"),
        ((np.full((1, 1, 3, 3), 2, np.int32), None), "got 2 at (0, 0, 0, 0)"),
        ((np.full((1, 1, 3, 3), -2, np.int32), None), "-1 (full)"),
        ((np.zeros((1, 1, 3, 3), np.int32), np.zeros((1, 128, 3), np.int32)), "words of a row = 4"),
        ((None, np.zeros((1, 128, 4), np.int32)), "only together with block_mask"),
        (np.zeros((1, 1, 3, 3), bool), "fa3.masks.from_dense makes one of booleans"),
    ],
)
def test_wrong_masks_are_refused_in_a_sentence(mask, words):
    q, k, v = (x.astype(np.float32) for x in inputs())
    with pytest.raises(fa3.InvalidArgument) as refusal:
        fa3.attention(q, k, v, block_mask=mask)
    assert words in str(refusal.value)


def test_a_mask_that_is_not_boolean_is_refused():
    with pytest.raises(fa3.InvalidArgument, match="expected a boolean"):
        masks.from_dense(np.zeros((1, 1, 3, 3)))
    with pytest.raises(fa3.InvalidArgument, match="64 or 128"):
        masks.from_block_map(np.zeros((1, 1, 3, 3), bool), block=32)


@pytest.mark.parametrize("arguments", [(3,), (None,), ((1, 2, 3),), ((None, None), "yes")], ids=str)
def test_lists_of_what_is_no_mask_are_refused(arguments):
    with pytest.raises(fa3.InvalidArgument, match="(mask|keep): expected"):
        fa3.masks.keep_lists(*arguments)

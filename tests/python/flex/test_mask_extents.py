# SPDX-License-Identifier: Apache-2.0
"""A mask made for other extents than a call's is refused, wherever it is given."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402

from fa3 import masks  # noqa: E402
from fa3.compat.flex_attention import flex_attention as torchs_flex_attention  # noqa: E402

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 2, 300, 270, 8


def inputs():
    return (torch.randn(BATCH, rows, HEADS, DIM) for rows in (QUERIES, KEYS, KEYS))


def in_numpy(block_mask):
    q, k, v = (x.numpy() for x in inputs())
    as_numpy = masks.as_block_mask(block_mask)
    if not isinstance(block_mask, tuple):
        return fa3.attention(q, k, v, block_mask=block_mask)
    return fa3.attention(q, k, v, block_mask=masks.BlockMask(*(x.numpy() for x in as_numpy)))


def gradients(block_mask):
    q, k, v = inputs()
    out, lse = fa3.attention(q, k, v, return_lse=True)
    return fa3.attention_backward(out, q, k, v, out, lse, block_mask=block_mask)


def transposed(block_mask):
    return torchs_flex_attention(*(x.transpose(1, 2) for x in inputs()), block_mask=block_mask)


CALLS = {
    "attention": lambda mask: fa3.attention(*inputs(), block_mask=mask),
    "torch.attention": lambda mask: fa3.torch.attention(*inputs(), block_mask=mask),
    "of NumPy": in_numpy,
    "gradients": gradients,
    "flex_attention": lambda mask: fa3.flex_attention(*inputs(), block_mask=mask),
    "with a function": lambda mask: fa3.flex_attention(
        *inputs(), block_mask=mask, score_mod=lambda s, b, h, i, j: s * 2
    ),
    "with a mask": lambda mask: fa3.flex_attention(
        *inputs(), block_mask=mask, mask_mod=lambda b, h, i, j: i >= j
    ),
    "torch's flex_attention": transposed,
}


def seen(b, h, i, j):
    return (i >= j) & (b >= 0) & (h >= 0)


def fa3s(*extents):
    return masks.from_rule(seen, *extents, device="cpu")


def torchs(*extents):
    return create_block_mask(seen, *extents, device="cpu")


@pytest.mark.parametrize("make", [fa3s, torchs])
@pytest.mark.parametrize("call", CALLS)
def test_a_mask_of_other_extents_is_refused(call, make):
    CALLS[call](make(1, 1, QUERIES, KEYS))
    CALLS[call](make(BATCH, HEADS, QUERIES, KEYS))
    others = [(1, 1, 128, KEYS), (1, 1, 600, KEYS), (1, 1, QUERIES, 100), (1, 1, QUERIES, 600)]
    others += [(3, 1, QUERIES, KEYS), (1, 4, QUERIES, KEYS)]
    if make is torchs:  # fa3's own says blocks alone
        others += [(1, 1, QUERIES - 1, KEYS), (1, 1, QUERIES, KEYS + 1)]
    for extents in others:
        with pytest.raises(fa3.InvalidArgument, match="block_mask: expected one for .* got "):
            CALLS[call](make(*extents))


@pytest.mark.parametrize("make", [fa3s, torchs])
def test_lengths_of_their_own_may_have_a_longer_mask_but_no_shorter_one(make):
    q, k, v = (torch.randn(300, HEADS, DIM) for _ in range(3))
    starts = torch.tensor([0, 140, 300], dtype=torch.int32)
    options = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    options |= {"max_seqlen_q": 160, "max_seqlen_k": 160}
    right = fa3.attention(q, k, v, causal=True, **options)
    for extent in (160, 400):
        mine = fa3.attention(q, k, v, block_mask=make(1, 1, extent, extent), **options)
        torch.testing.assert_close(mine, right)
    for call in (fa3.attention, fa3.flex_attention):
        with pytest.raises(fa3.InvalidArgument, match="block_mask: expected one for .* got "):
            call(q, k, v, block_mask=make(1, 1, 100, 100), **options)


def test_a_mask_is_an_argument_of_a_compiled_program():
    mask = fa3s(1, 1, QUERIES, KEYS)
    compiled = torch.compile(
        lambda q, k, v: fa3.attention(q, k, v, block_mask=mask), backend="eager", fullgraph=True
    )
    q, k, v = inputs()
    torch.testing.assert_close(compiled(q, k, v), fa3.attention(q, k, v, block_mask=mask))


MASKED = np.ma.masked_array(np.ones((1, 1, 2, 2), bool), [[[[True, False], [False, False]]]])
RANGES = np.ma.masked_array([[0, 9]], [[True, False]])
NEW_MASKS = {
    "from_dense": lambda: masks.from_dense(MASKED),
    "from_block_map": lambda: masks.from_block_map(MASKED),
    "from_slices": lambda: masks.from_slices(RANGES, RANGES, "full", 9, 9),
    "from_rule": lambda: masks.from_rule(lambda b, h, q, k: np.ma.array(q >= k), 1, 1, 9, 9),
    "from_tree": lambda: masks.from_tree(MASKED[0], np.array([9], np.int32), 128),
}


@pytest.mark.parametrize("make", NEW_MASKS)
def test_masks_are_made_of_arrays_that_have_none(make):
    with pytest.raises(fa3.InvalidArgument, match="without a mask, got a numpy.ma.MaskedArray"):
        NEW_MASKS[make]()

# SPDX-License-Identifier: Apache-2.0
"""A query that is NaN, or whose scores all are, has rows of NaN: whatever else hides keys.

Such a row and one that sees no key have no maximum, both: only their sums tell them apart.
"""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
front = pytest.importorskip("fa3.torch")
from fa3 import masks  # noqa: E402

QUERIES, KEYS, HEADS = 300, 130, 4
SPOILT = (1, 250, 2), (0, 299, 0)  # (sequence, query, head); a causal mask leaves both some keys


def inputs(device, dim):
    generator = torch.Generator().manual_seed(3)
    shapes = (2, QUERIES, HEADS, dim), (2, KEYS, HEADS, dim), (2, KEYS, HEADS, dim)
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    for place in SPOILT:
        q[place][3] = math.nan
    return (x.to(device, torch.bfloat16) for x in (q, k, v))


def seen(device):
    """Two keys that every query sees, and some of the others."""
    shown = torch.rand(2, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(4)) > 0.3
    shown[..., :2] = True
    return shown.to(device)


def by_sdpa(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with front.sdpa():
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, attn_mask=seen(q.device)).transpose(1, 2)


def ramp(score, b, h, q_idx, kv_idx):
    return score + 0.1 * q_idx


def hide_one(score, b, h, q_idx, kv_idx):
    return torch.where(kv_idx == 3, -float("inf"), score)


WAYS = {
    "dense": fa3.attention,
    "causal, more queries than keys": lambda q, k, v: fa3.attention(q, k, v, causal=True),
    "window": lambda q, k, v: fa3.attention(q, k, v, window=(20, 5)),
    "block mask": lambda q, k, v: fa3.attention(
        q, k, v, block_mask=masks.from_dense(seen(q.device))
    ),
    "booleans": lambda q, k, v: fa3.attention(q, k, v, bias=seen(q.device)),
    "scaled_dot_product_attention": by_sdpa,
    "score function": lambda q, k, v: fa3.flex_attention(q, k, v, score_mod=ramp),
    "score function that hides": lambda q, k, v: fa3.flex_attention(q, k, v, score_mod=hide_one),
}


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("way", WAYS)
def test_a_query_of_nan_has_rows_of_nan(device, way, dim):
    out = WAYS[way](*inputs(device, dim))
    wanted = torch.zeros(out.shape[:-1], dtype=torch.bool, device=device)
    for place in SPOILT:
        wanted[place] = True
    assert (out.isnan().all(-1) == wanted).all()
    assert (out.isnan().any(-1) == wanted).all()


@pytest.mark.parametrize("keys", [KEYS, 128])  # tiles of a bias come by TMA where it has them
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_nan_in_a_bias_reaches_its_query(device, dtype, keys):
    q, k, v = inputs(device, 64)
    q = q.nan_to_num()
    bias = torch.zeros(HEADS, QUERIES, keys, device=device, dtype=dtype)
    bias[2, 7] = math.nan
    bias[1, 9] = -math.inf
    out = fa3.attention(q, k[:, :keys], v[:, :keys], bias=bias)
    assert out[:, 7, 2].isnan().all()
    assert (out[:, 9, 1] == 0).all()
    out[:, 7, 2] = 0
    assert not out.isnan().any()

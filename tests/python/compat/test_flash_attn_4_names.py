# SPDX-License-Identifier: Apache-2.0
"""tools/flash_attn_4_names.py: functions in CuTe's language are what they say, and so are lists of
tiles. FlashAttention-4's own tests run on a GPU alone."""

import sys

import pytest
from builds import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
sys.path.append(str(ROOT / "tools"))

import flash_attn_4_names as names  # noqa: E402

cutlass = names.cutlass()["cutlass"]
ROWS, KEYS, HEADS = 256, 300, 2


def band_of_head(batch, head, query, key, seqlen_info, aux_tensors):
    distance = query - key
    reach = aux_tensors[0][head]
    return (distance >= 0) & (distance <= reach)


def seen_by(reach):
    distance = torch.arange(ROWS)[:, None] - torch.arange(KEYS)
    return torch.stack([(distance >= 0) & (distance <= r) for r in reach.tolist()])[None]


@pytest.mark.parametrize("tile", [(128, 128), (64, 32)])
def test_lists_of_tiles_are_those_of_the_mask(tile):
    reach = torch.tensor([40, 1000], dtype=torch.int32)
    lists = names.compute_block_sparsity(
        *tile, 1, HEADS, ROWS, KEYS, band_of_head, [reach], device="cpu"
    )
    spare = (0, -KEYS % tile[1], 0, -ROWS % tile[0])
    seen = torch.nn.functional.pad(seen_by(reach), spare)
    tiles = seen.unflatten(-1, (-1, tile[1])).unflatten(2, (-1, tile[0])).transpose(3, 4)
    whole, some = tiles.flatten(-2).all(-1), tiles.flatten(-2).any(-1)
    for counts, indices, right in (
        (lists.mask_block_cnt, lists.mask_block_idx, some & ~whole),
        (lists.full_block_cnt, lists.full_block_idx, whole),
    ):
        found = torch.zeros_like(right)
        for place in torch.cartesian_prod(*(torch.arange(x) for x in right.shape[:3])).tolist():
            row = tuple(place)
            found[row][indices[row][: counts[row]].long()] = True
        assert torch.equal(found, right)
    assert whole.any() and (some & ~whole).any()


def test_a_score_function_is_computed_as_it_is_written():
    def bias(score, batch, head, query, key, seqlen_info, aux_tensors):
        near = names.least(query - key, cutlass.Int32(5))
        return score + aux_tensors[0][head] * near.to(cutlass.Float32)

    slopes = torch.tensor([0.5, -0.25])
    draw = torch.Generator().manual_seed(1)
    q = torch.randn(1, ROWS, HEADS, 32, generator=draw)
    k, v = (torch.randn(1, KEYS, HEADS, 32, generator=draw) for _ in range(2))
    options = names.options_of({"score_mod": bias, "aux_tensors": [slopes], "pack_gqa": True})
    out, _ = names.attend(q, k, v, **options)
    distance = torch.arange(ROWS)[:, None] - torch.arange(KEYS)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 32**-0.5
    scores = scores + slopes[:, None, None] * distance.clamp(max=5)
    right = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    torch.testing.assert_close(out, right)

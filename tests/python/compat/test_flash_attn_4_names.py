# SPDX-License-Identifier: Apache-2.0
"""tools/flash_attn_names: functions in CuTe's language are what they say, what they are told of
packed sequences is right, and so are lists of tiles. FlashAttention-4's own tests are not here."""

import subprocess
import sys

import pytest
from builds import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
sys.path.append(str(ROOT / "tools"))

from flash_attn_names import calls, cute, lists  # noqa: E402

cutlass = cute.cutlass()["cutlass"]
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
    made = lists.compute_block_sparsity(
        *tile, 1, HEADS, ROWS, KEYS, band_of_head, [reach], device="cpu"
    )
    spare = (0, -KEYS % tile[1], 0, -ROWS % tile[0])
    seen = torch.nn.functional.pad(seen_by(reach), spare)
    tiles = seen.unflatten(-1, (-1, tile[1])).unflatten(2, (-1, tile[0])).transpose(3, 4)
    whole, some = tiles.flatten(-2).all(-1), tiles.flatten(-2).any(-1)
    for counts, indices, right in (
        (made.mask_block_cnt, made.mask_block_idx, some & ~whole),
        (made.full_block_cnt, made.full_block_idx, whole),
    ):
        found = torch.zeros_like(right)
        for place in torch.cartesian_prod(*(torch.arange(x) for x in right.shape[:3])).tolist():
            row = tuple(place)
            found[row][indices[row][: counts[row]].long()] = True
        assert torch.equal(found, right)
    assert whole.any() and (some & ~whole).any()


def test_a_score_function_is_computed_as_it_is_written():
    def bias(score, batch, head, query, key, seqlen_info, aux_tensors):
        near = cute.least(query - key, cutlass.Int32(5))
        return score + aux_tensors[0][head] * near.to(cutlass.Float32)

    slopes = torch.tensor([0.5, -0.25])
    draw = torch.Generator().manual_seed(1)
    q = torch.randn(1, ROWS, HEADS, 32, generator=draw)
    k, v = (torch.randn(1, KEYS, HEADS, 32, generator=draw) for _ in range(2))
    options = calls.options_of({"score_mod": bias, "aux_tensors": [slopes], "pack_gqa": True})
    out, _ = calls.attend(q, k, v, **options)
    distance = torch.arange(ROWS)[:, None] - torch.arange(KEYS)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 32**-0.5
    scores = scores + slopes[:, None, None] * distance.clamp(max=5)
    right = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    torch.testing.assert_close(out, right)


QUERIES, OF_KEYS = [200, 70, 129], [130, 300, 64]  # of packed sequences
STARTS_Q, STARTS_K = (
    torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    for lengths in (QUERIES, OF_KEYS)
)
BOTH = {"cu_seqlens_q": STARTS_Q, "cu_seqlens_k": STARTS_K}


def places():
    """(number, queries, keys, slices of packed rows and keys) of each sequence."""
    ends = (zip(starts.tolist(), starts.tolist()[1:], strict=False) for starts in BOTH.values())
    for n, (rows, keys) in enumerate(zip(*ends, strict=True)):
        yield n, QUERIES[n], OF_KEYS[n], slice(*rows), slice(*keys)


def packed(*heads):
    draw = torch.Generator().manual_seed(2)
    totals = sum(QUERIES), sum(OF_KEYS), sum(OF_KEYS)
    return [torch.randn(n, h, 32, generator=draw) for n, h in zip(totals, heads, strict=True)]


def causal_and_marked(batch, head, query, key, told, marks):
    """The last query sees the last key; rows of packed tensors have marks."""
    same = marks[0][query + told.offset_q] == marks[1][key + told.offset_k]
    return (key <= query + told.seqlen_k - told.seqlen_q) & same


def seen_pairs(marks, n, queries, keys, rows, columns):
    seen = torch.arange(keys) <= torch.arange(queries)[:, None] + keys - queries
    return seen & (marks[0][rows, None] == marks[1][None, columns])


def marks_of_rows():
    draw = torch.Generator().manual_seed(3)
    totals = sum(QUERIES), sum(OF_KEYS)
    return [torch.randint(0, 2, (n,), generator=draw, dtype=torch.int32) for n in totals]


def right_of(q, k, v, seen, added=0.0):
    scores = torch.einsum("qhd,khd->hqk", q, k) * 32**-0.5 + added
    scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(0.0), v)


@pytest.mark.parametrize("with_lists", [False, True])
def test_functions_are_told_where_packed_sequences_lie(with_lists):
    marks = marks_of_rows()
    q, k, v = packed(HEADS, HEADS, HEADS)
    options = {"mask_mod": causal_and_marked, "aux_tensors": marks, **BOTH}
    if with_lists:
        options["block_sparse_tensors"] = lists_in_a_row(marks, (128, 64))
    out, _ = calls.flash_attn_func(q, k, v, **options)
    for n, queries, keys, rows, columns in places():
        seen = seen_pairs(marks, n, queries, keys, rows, columns)
        torch.testing.assert_close(out[rows], right_of(q[rows], k[columns], v[columns], seen))


def every_pair(batch, head, query, key, told, marks):
    return key >= 0


def lists_in_a_row(marks, tile, mask_mod=causal_and_marked):
    counts = [[-(-n // t) for n in of] for of, t in zip((QUERIES, OF_KEYS), tile, strict=True)]
    of_rows = [0, *counts[0]]
    of_indices = [0, *(m * n for m, n in zip(*counts, strict=True))]
    starts = (torch.tensor(x).cumsum(0, dtype=torch.int32) for x in (of_rows, of_indices))
    extents = 3, 1, max(QUERIES), max(OF_KEYS)
    return lists.compute_block_sparsity(
        *tile, *extents, mask_mod, marks, "cpu", None, *starts, **BOTH
    )


@pytest.mark.parametrize("mask_mod", [causal_and_marked, every_pair])
def test_lists_of_packed_sequences_are_those_alone(mask_mod):
    tile, marks = (128, 64), marks_of_rows()
    made = lists_in_a_row(marks, tile, mask_mod)
    starts, of_indices = made.cu_total_m_blocks.tolist(), made.cu_block_idx_offsets.tolist()
    assert made.mask_block_cnt.shape == (1, starts[-1])
    assert made.full_block_idx.shape == (1, of_indices[-1])
    listed = 0
    for n, queries, keys, rows, columns in places():
        seen = seen_pairs(marks, n, queries, keys, rows, columns)
        seen = seen if mask_mod is causal_and_marked else torch.ones_like(seen)
        for m in range(starts[n + 1] - starts[n]):
            begin = of_indices[n] + m * -(-keys // tile[1])
            found = []
            for counts, indices in (made[:2], made[2:4]):
                count = int(counts[0, starts[n] + m])
                found.append(set(indices[0, begin : begin + count].tolist()))
            tiles = seen[m * tile[0] : (m + 1) * tile[0]].split(tile[1], -1)
            assert set.union(*found) == {i for i, t in enumerate(tiles) if t.any()}
            whole = {i for i, t in enumerate(tiles) if t.all() and t.shape == tile}
            assert found[1] == whole
            listed += len(found[0])
    assert listed > 5 or made.full_block_cnt.sum() > 5


@pytest.mark.parametrize("padded", ["q", "k"])
def test_one_side_may_be_packed_and_gradients_flow(padded):
    def bias(score, batch, head, query, key, told, aux_tensors):
        return score + aux_tensors[0][key + told.offset_k] + (query + told.offset_q) * 0.01 * score

    draw = torch.Generator().manual_seed(4)
    aux = torch.randn(sum(OF_KEYS), generator=draw)
    q, k, v = packed(4, HEADS, HEADS)
    lengths = {"cu_seqlens_k": STARTS_K} if padded == "q" else {"cu_seqlens_q": STARTS_Q}
    if padded == "q":
        q = torch.randn(3, 40, 4, 32, generator=draw)
    else:
        k, v = (torch.randn(3, 64, HEADS, 32, generator=draw) for _ in range(2))
    options = {"score_mod": bias, "aux_tensors": [aux], "pack_gqa": True, **lengths}
    out, lse = calls._flash_attn_fwd(q, k, v, **options)
    do = torch.randn(out.shape, generator=draw)
    found = calls._flash_attn_bwd(q, k, v, out, do, lse, **options)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    parts = []
    for n, _, _, rows, columns in places():
        of_q = leaves[0][n] if padded == "q" else leaves[0][rows]
        of_k, of_v = (x[columns] if padded == "q" else x[n] for x in leaves[1:])
        of_k, of_v = (x.repeat_interleave(2, 1) for x in (of_k, of_v))
        first_q = 0 if padded == "q" else rows.start
        own = aux[columns] if padded == "q" else aux[: of_k.shape[0]]
        scores = torch.einsum("qhd,khd->hqk", of_q, of_k) * 32**-0.5
        scores = scores * (1 + 0.01 * (torch.arange(of_q.shape[0]) + first_q)[:, None]) + own
        parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), of_v))
    right = torch.stack(parts) if padded == "q" else torch.cat(parts)
    torch.testing.assert_close(out, right.detach())
    expected = torch.autograd.grad(right, leaves, do)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_pages_have_the_keys_that_are_used():
    def near(score, batch, head, query, key, told, aux_tensors):
        return score - (told.seqlen_k - key).to(cutlass.Float32) * 0.1

    draw = torch.Generator().manual_seed(5)
    q = torch.randn(sum(QUERIES), HEADS, 32, generator=draw)
    k, v = (torch.randn(16, 16, HEADS, 32, generator=draw) for _ in range(2))
    table = torch.randperm(15, generator=draw).to(torch.int32).reshape(3, 5)
    used = torch.tensor([80, 33, 16], dtype=torch.int32)
    out, _ = calls._flash_attn_fwd(
        q, k, v, score_mod=near, cu_seqlens_q=STARTS_Q, seqused_k=used, page_table=table
    )
    for n, _, _, rows, _ in places():
        of_k, of_v = (x[table[n].long()].flatten(0, 1)[: used[n]] for x in (k, v))
        added = (torch.arange(int(used[n])) - used[n]) * 0.1
        right = right_of(q[rows], of_k, of_v, torch.ones(1, 1, dtype=torch.bool), added)
        torch.testing.assert_close(out[rows], right)


TESTS = """
import pytest
import torch
from flash_attn.cute.interface import flash_attn_varlen_func

def doubled(score, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
    return score * 2

@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("varlen_q", [False, True])
@pytest.mark.parametrize("varlen_k", [False, True])
@pytest.mark.parametrize("seqlens_q,seqlens_k", [([3, 5], [8, 6]), ([2], [500])])
@pytest.mark.parametrize("score_mod_tuple", [(doubled, None)])
def test_pages(seqlens_q, seqlens_k, varlen_q, varlen_k, page_size, score_mod_tuple):
    if page_size is not None:
        pytest.xfail("paged KV not supported on SM90")
    assert varlen_q or varlen_k
    assert page_size is None or not varlen_k
    assert sum(seqlens_k) == 14

@pytest.mark.skipif(True, reason="SM100 alone")
def test_of_another_gpu():
    raise AssertionError
"""


def test_lengths_are_lists_and_what_only_flash_attention_lacks_is_asked(tmp_path):
    """--longest looks into lists; an xfail of its kernels ends no case; a line says which case it
    is in every process."""
    file = tmp_path / "cute" / "test_score_mod_varlen.py"
    file.parent.mkdir()
    file.write_text(TESTS)
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, ROOT / "tools" / "flash_attn_tests.py", file, "--device", "cpu"]
    command += ["--longest", "100", "--lines", lines, "--workers", "2"]
    for _ in range(2):  # the second time no case runs again
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        output = done.stdout.splitlines()
        assert done.returncode == 0, done.stdout + done.stderr
        assert output[0].startswith("test_pages: 4 of a sample of 4 of 4 cases, seed 1: 4 passed")
        assert output[1] == "test_of_another_gpu: left out: SM100 alone"
        assert len(lines.read_text().splitlines()) == 4

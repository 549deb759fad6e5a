# SPDX-License-Identifier: Apache-2.0
"""Attention to a latent cache, as MLA decodes: V is a view of K's first channels."""

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

USED = [0, 1, 70, 131]


def latent_pages(page_size, dim):
    """Pages (and their table) of sequences of USED rows; rows that no sequence uses are NaN."""
    generator = torch.Generator().manual_seed(page_size)
    each = [-(-n // page_size) for n in USED]
    order = torch.randperm(sum(each) + 1, generator=generator).tolist()
    pages = torch.full((len(order), page_size, 1, dim), torch.nan, dtype=torch.bfloat16)
    table = torch.full((len(USED), max(each) + 1), 2147480000, dtype=torch.int32)
    sequences = []
    for b, used in enumerate(USED):
        rows = torch.randn(used, 1, dim, generator=generator).bfloat16()
        table[b, : each[b]] = torch.tensor([order.pop() for _ in range(each[b])])
        for i in range(used):
            pages[table[b, i // page_size], i % page_size] = rows[i]
        sequences.append(rows.double().numpy())
    return pages, table, sequences


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("num_splits", [0, 1, 7])
@pytest.mark.parametrize("page_size, dim, heads", [(1, 576, 3), (3, 576, 128), (64, 512, 16)])
@pytest.mark.parametrize("packed", [False, True])
def test_values_may_be_a_view_of_the_keys(packed, page_size, dim, heads, num_splits, engine):
    pages, table, sequences = latent_pages(page_size, dim)
    new = [3, 2, 1, 4] if packed else [4] * len(USED)
    q = torch.randn(sum(new), heads, dim, generator=torch.Generator().manual_seed(1)).bfloat16()
    cu = torch.tensor([0, *np.cumsum(new)], dtype=torch.int32)
    call = {"cu_seqlens_q": cu, "max_seqlen_q": max(new)} if packed else {}
    out, lse = fa3.attention(
        q if packed else q.view(len(USED), 4, heads, dim),
        pages,
        pages[..., :512],
        page_table=table,
        seqused_k=torch.tensor(USED, dtype=torch.int32),
        causal=True,
        num_splits=num_splits,
        engine=engine,
        return_lse=True,
        **call,
    )
    for b, rows in enumerate(sequences):
        own = q[cu[b] : cu[b + 1]].double().numpy()[None]
        expected, expected_lse = oracle.forward(own, rows[None], rows[None, ..., :512], causal=True)
        got = out[cu[b] : cu[b + 1]] if packed else out[b]
        got_lse = lse[:, cu[b] : cu[b + 1]] if packed else lse[b]
        np.testing.assert_allclose(got.double(), expected[0], rtol=1 / 64, atol=0.01)
        np.testing.assert_allclose(got_lse, expected_lse[0], rtol=1e-5, atol=1e-5)


def test_compilers_keep_the_view(monkeypatch):
    """What a compiler hands to the library begins at the same address, with the same strides."""
    operators = pytest.importorskip("fa3.torch.operators")
    pages, table, _ = latent_pages(3, 576)
    used, seen = torch.tensor(USED, dtype=torch.int32), []
    run = operators.run_forward

    def watched(*tensors, **options):
        seen.extend((x.data_ptr(), x.stride()) for x in tensors[1:3])
        return run(*tensors, **options)

    monkeypatch.setattr(operators, "run_forward", watched)

    def attend(q, pages):
        return fa3.attention(q * 2, pages, pages[..., :512], page_table=table, seqused_k=used) * 2

    q = torch.ones(len(USED), 1, 4, 576, dtype=torch.bfloat16)
    torch.compile(attend, backend="aot_eager", fullgraph=True)(q, pages)
    assert seen == [(pages.data_ptr(), pages.stride())] * 2


def test_a_sink_joins_rows_without_keys_too():
    pages, table, sequences = latent_pages(3, 576)
    q = torch.randn(len(USED), 1, 4, 576, generator=torch.Generator().manual_seed(1)).bfloat16()
    sink = torch.tensor([-torch.inf, 0.0, 3.0, torch.inf])
    out, lse = fa3.attention(
        q,
        pages,
        pages[..., :512],
        page_table=table,
        seqused_k=torch.tensor(USED, dtype=torch.int32),
        sink=sink,
        return_lse=True,
    )
    assert not out[0].any() and torch.equal(lse[0, :, 0], sink)
    assert not out[:, :, 3].any() and torch.all(lse[:, 3] == torch.inf)
    for b, rows in enumerate(sequences):
        own = q[b : b + 1, :, :3].double().numpy()
        expected, expected_lse = oracle.forward(
            own, rows[None], rows[None, ..., :512], sink=sink[:3].double().numpy()
        )
        np.testing.assert_allclose(out[b, :, :3].double(), expected[0], rtol=1 / 64, atol=0.01)
        np.testing.assert_allclose(lse[b, :3], expected_lse[0], rtol=1e-5, atol=1e-5)

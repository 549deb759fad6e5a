# SPDX-License-Identifier: Apache-2.0
"""Other names of latent attention on a GPU give the bits of fa3.mla.attention."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import mla  # noqa: E402
from fa3.compat import flashinfer, sglang, vllm  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device on this machine", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("fa3.mla has GPU kernels for H100 and H200 alone", allow_module_level=True)

SCALE = 192**-0.5
NEW = 2  # queries of a sequence


@pytest.fixture
def call():
    """q (4, 2, 16, 576), pages, and the options of a step."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        q = torch.randn(4, NEW, 16, 576).bfloat16()
        pages = torch.randn(40, 16, 576).bfloat16()
        table = torch.randperm(40).view(4, 10).int()
        used = torch.tensor([160, 3, 0, 77], dtype=torch.int32)
    return q, pages, {"page_table": table, "seqused_k": used, "causal": True, "scale": SCALE}


@pytest.mark.parametrize("num_splits", [0, 3])
def test_values_as_a_view_of_keys(call, num_splits):
    q, pages, step = call
    step |= {"num_splits": num_splits, "sink": torch.linspace(-2, 2, 16, device="cuda")}
    wanted = mla.attention(q, pages, return_lse=True, **step)
    keys = pages[:, :, None]
    found = fa3.attention(q, keys, keys[..., :512], return_lse=True, **step)
    assert all(map(torch.equal, found, wanted))
    plan = fa3.plan(q, keys, keys[..., :512], **step)
    assert "latent" in plan
    packed = {"cu_seqlens_q": torch.arange(0, 9, NEW, dtype=torch.int32, device="cuda")}
    out = fa3.attention(q.flatten(0, 1), keys, keys[..., :512], **step, **packed, max_seqlen_q=NEW)
    torch.testing.assert_close(out.unflatten(0, (4, NEW)), wanted[0])


def test_values_that_are_no_view_are_refused(call):
    q, pages, step = call
    keys = pages[:, :, None]
    with pytest.raises(fa3.Unsupported, match=r"v: no kernel .* unless v is k\[\.\.\., :512\]"):
        fa3.attention(q, keys, keys[..., :512].clone(), **step)
    with pytest.raises(fa3.Unsupported, match="window: expected none with latent keys"):
        fa3.attention(q, keys, keys[..., :512], window=(5, 0), **step)


def test_qv_of_vllm_and_of_sglang(call):
    q, pages, step = call
    wanted = mla.attention(q, pages, **step)
    keys = pages[:, :, None]
    cu = torch.arange(0, 9, NEW, dtype=torch.int32, device="cuda")
    both = {"softmax_scale": SCALE, "causal": True}
    out = vllm.flash_attn_varlen_func(
        *(q[..., 512:].flatten(0, 1), keys[..., 512:], keys[..., :512], NEW, cu, 160),
        q_v=q[..., :512].flatten(0, 1),
        seqused_k=step["seqused_k"],
        block_table=step["page_table"],
        **both,
    )
    assert torch.equal(out.unflatten(0, (4, NEW)), wanted)
    out = sglang.flash_attn_with_kvcache(
        *(q[..., 512:], keys[..., 512:], keys[..., :512]),
        qv=q[..., :512],
        cache_seqlens=step["seqused_k"],
        page_table=step["page_table"],
        **both,
    )
    assert torch.equal(out, wanted)


def test_flashinfer(call):
    q, pages, step = call
    wanted = mla.attention(q, pages, **step)
    counts = torch.tensor([0, 10, 11, 11, 16], dtype=torch.int32)
    rows = zip(step["page_table"], counts.diff().tolist(), strict=True)
    indices = torch.cat([row[:n] for row, n in rows])
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(torch.empty(0, device="cuda"))
    wrapper.plan(
        *(torch.arange(0, 9, NEW, dtype=torch.int32), counts, indices, step["seqused_k"]),
        *(16, 512, 64, 16, True, SCALE, q.dtype, q.dtype),
    )
    parts = (x.flatten(0, 1) for x in q.split([512, 64], -1))
    out = wrapper.run(*parts, *pages.split([512, 64], -1))
    assert torch.equal(out.unflatten(0, (4, NEW)), wanted)

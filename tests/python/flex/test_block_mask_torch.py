# SPDX-License-Identifier: Apache-2.0
"""torch's BlockMask on fa3, beside torch's own eager flex_attention and masked SDPA in float64."""

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import numpy as np  # noqa: E402
from test_block_mask import dense_of  # noqa: E402

import fa3  # noqa: E402
from fa3 import masks  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

SEQLEN_Q, SEQLEN_K = 300, 410
DOCUMENTS = torch.tensor([0] * 90 + [1] * 130 + [2] * 190)


def causal(b, h, q, k):
    return q + SEQLEN_K - SEQLEN_Q >= k


def document(b, h, q, k):
    return DOCUMENTS[q] == DOCUMENTS[k]


def by_head(b, h, q, k):
    return (q + k + 7 * h) % (h + 2) == 0


def sometimes_nothing(b, h, q, k):
    return (q > 140) & (k < 200 * b)


RULES = [causal, document, by_head, sometimes_nothing]


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 4, SEQLEN_Q, 32), (2, 2, SEQLEN_K, 32), (2, 2, SEQLEN_K, 32)]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def torch_mask(rule, block=128):
    return flex.create_block_mask(
        rule, 2, 4, SEQLEN_Q, SEQLEN_K, device="cpu", BLOCK_SIZE=block, _compile=False
    )


def dense(rule):
    b, h, q, k = np.ogrid[:2, :4, :SEQLEN_Q, :SEQLEN_K]
    b, h, q, k = (torch.from_numpy(x) for x in (b, h, q, k))
    return rule(b, h, q, k).expand(2, 4, SEQLEN_Q, SEQLEN_K)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("block", [128, 64, (64, 256)])
@pytest.mark.parametrize("compact", [False, True])
def test_torchs_lists_and_mask_mod_become_a_map_and_bits(rule, block, compact):
    mask = masks.from_torch(torch_mask(rule, block), compact=compact)
    assert (dense_of(mask, SEQLEN_Q, SEQLEN_K) == dense(rule).numpy()).all()


@pytest.mark.parametrize("rule", RULES)
def test_results_are_those_of_flex_attention(rule):
    block_mask = torch_mask(rule)
    q, k, v = (x.detach() for x in tensors())
    out = fa3.attention(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=block_mask)
    wide = (x.double() for x in (q, k, v))
    right = flex.flex_attention(*wide, block_mask=block_mask, enable_gqa=True)
    torch.testing.assert_close(out.transpose(1, 2).double(), right, atol=3e-6, rtol=0)


# flex_attention has no gradients on a CPU.
@pytest.mark.parametrize("rule", RULES)
def test_gradients_are_those_of_masked_sdpa(rule):
    q, k, v = tensors()
    out = fa3.attention(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=torch_mask(rule))
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(4)).transpose(1, 2)
    (out.transpose(1, 2) * weight).sum().backward()
    wide = tensors(torch.float64)
    seen = dense(rule)
    right = torch.nn.functional.scaled_dot_product_attention(
        *wide, attn_mask=torch.where(seen, 0.0, -1e30).double(), enable_gqa=True
    )
    (right * weight * seen.any(-1, keepdim=True)).sum().backward()
    for ours, theirs in zip((q, k, v), wide, strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, atol=2e-5, rtol=0)


@pytest.mark.parametrize("rule", RULES)
def test_float64_is_the_textbooks(rule):
    q, k, v = (x.detach() for x in tensors(torch.float64))
    mask = masks.from_dense(dense(rule))
    out = fa3.attention(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=mask).transpose(1, 2)
    right = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=dense(rule), enable_gqa=True
    )
    torch.testing.assert_close(out, right.nan_to_num(0.0), atol=1e-12, rtol=0)


def test_a_mask_of_torch_is_understood_once(monkeypatch):
    made, from_torch = [], masks.from_torch
    monkeypatch.setattr(masks, "from_torch", lambda *a, **k: made.append(1) or from_torch(*a, **k))
    block_mask = torch_mask(causal)
    q, k, v = (x.transpose(1, 2) for x in tensors())
    for _ in range(3):
        fa3.attention(q, k, v, block_mask=block_mask)
    assert len(made) == 1


def test_gradcheck_passes():
    q, k, v = (torch.randn(1, 5, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = masks.from_rule(lambda b, h, q, k: (k <= q) & (k + h != 1), 1, 2, 5, 5, device="cpu")
    torch.autograd.gradcheck(lambda *x: fa3.attention(*x, block_mask=mask), (q, k, v))


def test_compiled_programs_have_the_same_result():
    q, k, v = (x.transpose(1, 2) for x in tensors())
    mask = masks.from_torch(torch_mask(causal))

    def program(q, k, v):
        return fa3.attention(q, k, v, block_mask=mask)

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), program(q, k, v), atol=0, rtol=0)


ROWS = 150
RANGES, LOWER = torch.tensor([[0, 100], [100, ROWS]]), torch.ones(1, 1, ROWS, ROWS).tril() > 0
MAP, LENGTHS = torch.tensor([[[[True, False, True]]]]), torch.tensor([ROWS], dtype=torch.int32)
NEW_MASKS = {
    "a map of 64": lambda: masks.from_block_map(MAP, block=64),
    "a map of 128": lambda: masks.from_block_map(MAP),
    "slices of one type": lambda: masks.from_slices(RANGES, RANGES, "band", ROWS, ROWS),
    "slices": lambda: masks.from_slices(RANGES, RANGES, ["causal", "full"], ROWS, ROWS),
    "a rule": lambda: masks.from_rule(lambda b, h, q, k: q >= k, 1, 1, ROWS, ROWS, device="cpu"),
    "a dense mask": lambda: masks.from_dense(LOWER),
    "a tree": lambda: masks.from_tree(LOWER[0, :, :3, :3], LENGTHS, 200),
}


@pytest.mark.parametrize("make", NEW_MASKS)
def test_a_mask_is_where_its_arrays_are_whatever_device_is_the_default(make):
    right = NEW_MASKS[make]()
    with torch.device("meta"):
        mine = NEW_MASKS[make]()
    for part, expected in zip(mine, right, strict=True):
        assert part is expected is None or torch.equal(part, expected)


@pytest.mark.parametrize("make", NEW_MASKS)
def test_a_mask_copies_nothing_from_the_host(make, monkeypatch):
    """A copy would wait for a GPU."""
    for function in ("tensor", "as_tensor", "asarray", "from_numpy"):
        monkeypatch.setattr(torch, function, None)
    NEW_MASKS[make]()

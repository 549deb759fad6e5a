# SPDX-License-Identifier: Apache-2.0
"""torch's BlockMask says what it says when it is read: changes of its lists, of its mask_mod and of
what that reads are seen by the next call."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import numpy as np  # noqa: E402
from torch.nn.attention.flex_attention import BlockMask, create_block_mask  # noqa: E402
from warm_calls import DIM, DRAW, HEADS, new_table  # noqa: E402, F401

from fa3 import masks  # noqa: E402

ROWS = 200
Q, K, V = (torch.randn(1, ROWS, HEADS, DIM, generator=DRAW) for _ in range(3))
CALLS = {"attention": fa3.attention, "flex_attention": fa3.flex_attention}


def mask_of(mask_mod):
    return create_block_mask(mask_mod, None, None, ROWS, ROWS, device="cpu")


def same_as(owner):
    return lambda b, h, i, j: owner[i] == owner[j]


def check(call, mask):
    """Compares a call with one of a mask that is new."""
    new = masks.from_torch(mask)
    torch.testing.assert_close(CALLS[call](Q, K, V, block_mask=mask), new_call(new))
    return new_call(new)


def new_call(mask):
    return fa3.attention(Q, K, V, block_mask=mask)


def check_changes(call, mask, *changes):
    before = check(call, mask)
    for change in changes:
        check(call, mask)
        change()
        after = check(call, mask)
        assert not torch.equal(after, before)
        before = after


@pytest.mark.parametrize("call", CALLS)
def test_what_its_mask_mod_reads_may_change(call):
    owner, widths = torch.arange(ROWS) // 50, [3]
    mask = mask_of(same_as(owner))
    check_changes(
        call,
        mask,
        lambda: owner.copy_(torch.arange(ROWS) // 30),
        lambda: owner.numpy().__setitem__(slice(None), np.arange(ROWS) // 9),
        lambda: owner.numpy().__setitem__(slice(None), np.arange(ROWS) // 7),
        lambda: setattr(mask, "mask_mod", lambda b, h, i, j: (i - j).abs() <= widths[0]),
        lambda: widths.__setitem__(0, 9),  # in a list, which cannot be told
        lambda: setattr(mask, "mask_mod", same_as(torch.arange(ROWS) // 20)),
    )


@pytest.mark.parametrize("call", CALLS)
def test_its_lists_may_change(call):
    counts, blocks = torch.tensor([[[1, 2]]]), torch.tensor([[[[0, 1], [0, 1]]]])
    counts, blocks = counts.int(), blocks.int()
    of_numpy = torch.from_numpy(blocks.numpy().copy())
    for indices in (blocks, of_numpy):
        mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=128, seq_lengths=(ROWS, ROWS))
        check_changes(
            call,
            mask,
            lambda indices=indices: indices[0, 0, 0].copy_(torch.tensor([1, 0])),
            lambda mask=mask: setattr(mask, "kv_num_blocks", counts.clone().fill_(1)),
            lambda mask=mask: mask.kv_indices.numpy().__setitem__((0, 0, 1, 0), 1),
            lambda mask=mask: setattr(mask, "kv_indices", blocks * 0),
        )
        blocks[0, 0, 0] = blocks[0, 0, 1] = torch.tensor([0, 1])


@pytest.mark.parametrize("of_inference_mode", [False, True])
def test_it_is_read_once_where_nothing_changes(of_inference_mode):
    step = torch.arange(ROWS)
    with torch.inference_mode(of_inference_mode):
        mask = mask_of(lambda b, h, i, j: step[i] >= step[j])
        assert mask.kv_indices.is_inference() == of_inference_mode
        one = masks.as_block_mask(mask)
        assert all(masks.as_block_mask(mask) is one for _ in range(2))
    assert masks.as_block_mask(mask) is one
    q = Q.clone().requires_grad_()
    out = fa3.attention(q, K, V, block_mask=mask)
    assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()


def test_it_is_read_in_each_call_where_writes_are_not_counted():
    with torch.inference_mode():
        owner = torch.arange(ROWS) // 50
        mask = mask_of(same_as(owner))
        check_changes("attention", mask, lambda: owner.copy_(torch.arange(ROWS) // 30))


def test_compiled_programs_see_changes():
    owner = torch.arange(ROWS) // 50
    mask = mask_of(same_as(owner))
    program = torch.compile(
        lambda q: fa3.attention(q, K, V, block_mask=mask) * 2, backend="aot_eager"
    )
    for length in (50, 30, 20):
        owner.copy_(torch.arange(ROWS) // length)
        torch.testing.assert_close(program(Q), 2 * new_call(masks.from_torch(mask)))
    of_fa3 = masks.from_torch(mask)
    whole = torch.compile(
        lambda q: fa3.attention(q, K, V, block_mask=of_fa3) * 2, backend="aot_eager", fullgraph=True
    )
    torch.testing.assert_close(whole(Q), program(Q))

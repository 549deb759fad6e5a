# SPDX-License-Identifier: Apache-2.0
"""What is decided of a call with masks serves calls that are alike, and no others: block masks,
booleans, and the lists that are made of them."""

import itertools

import flex_functions
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from warm_calls import (  # noqa: E402
    BIAS,
    BLOCKS,
    CALLS,
    DRAW,
    HEADS,
    ROWS,
    TORCHS,
    K,
    Q,
    V,
    attend,
    decided,  # noqa: F401
    documents,
    flex,
    forget,
    is_seen,
    new_table,  # noqa: F401
    softcap,
)

from fa3 import masks  # noqa: E402
from fa3.flex import attention  # noqa: E402


def blocks_of(first):
    """A BlockMask of the form of others, with bits: keys from `first` on."""
    seen = (torch.arange(ROWS) >= first).expand(1, 1, ROWS, ROWS)
    return masks.from_dense(seen)


@pytest.mark.parametrize("score_mod", [None, softcap], ids=["alone", "with a function"])
def test_a_block_mask_that_is_alike_is_another_one(score_mod, decided):  # noqa: F811
    call = lambda: flex(score_mod, block_mask=made[0])  # noqa: E731
    made = [blocks_of(5)]
    other, blocks, bits = blocks_of(9), made[0].blocks, made[0].bits
    assert is_seen(
        call,
        lambda: bits.copy_(blocks_of(7).bits),
        lambda: blocks.fill_(masks.FULL),
        lambda: made.__setitem__(0, other),
        lambda: made.__setitem__(0, masks.BlockMask(other.blocks, bits)),
        lambda: made.__setitem__(0, masks.BlockMask(blocks * 0, None)),
    )
    # Masks of a call without a function are data.
    decided.clear()
    made[0] = blocks_of(3)
    call()
    assert len(decided) == 1
    made[0] = blocks_of(2)
    call()
    assert len(decided) == (1 if score_mod is None else 2)


def test_a_block_mask_beside_masks_is_looked_at():
    other = create_block_mask(lambda b, h, i, j: i <= j, 1, 1, ROWS, ROWS, device="cpu")
    turned = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, ROWS, ROWS, device="cpu")
    some, torchs = [blocks_of(5), blocks_of(2)], [TORCHS]
    made = some[:1]
    for options in ({"causal": True}, {"mask_mod": documents}):
        assert is_seen(
            lambda o=options: flex(block_mask=made[0], **o),
            lambda: made.__setitem__(0, some[1]),
            lambda: some[1].bits.logical_not_(),
            lambda: made.__setitem__(0, some[0]),
        )
    assert is_seen(
        lambda: flex(softcap, block_mask=torchs[0]),
        lambda: torchs.__setitem__(0, other),
        lambda: torchs.__setitem__(0, turned),
        lambda: setattr(turned, "mask_mod", lambda b, h, i, j: i < j + 3),
    )


@pytest.mark.parametrize("score_mod", [None, softcap], ids=["alone", "with a function"])
def test_a_block_mask_that_is_gone_is_not_another_one(score_mod):
    def use(blocks):
        call = lambda: flex(score_mod, block_mask=masks.BlockMask(blocks, None))  # noqa: E731
        out = call()
        forget()
        assert torch.equal(out, call())
        call()

    made = [lambda x=x: torch.tensor([[[[x]]]], dtype=torch.int32) for x in (-1, 0, -1)]
    flex_functions.use_at_one_address(made, use)


def test_a_backward_pass_has_the_lists_of_its_forward_pass(monkeypatch):
    given, asked, device = [], [], attention.device

    def forward(call, q, k, v, tensors, blocks, *_):
        given.append(blocks)
        return device.forward_by_torch(call, q, k, v, tensors, None)

    monkeypatch.setattr(device, "forward", forward)
    monkeypatch.setattr(device, "backward_plan", lambda c, w, s, t, blocks: asked.append(blocks))
    monkeypatch.setattr(attention, "takes_lists", lambda *_: True)  # as on a GPU
    q = Q.clone().requires_grad_()
    first, second = torch.arange(ROWS) // 7, torch.arange(ROWS) // 5

    def call(owner):
        mask_mod = lambda b, h, i, j: owner[i] == owner[j]  # noqa: E731
        return flex(softcap, (q, K, V), mask_mod=mask_mod)

    for out in [call(owner) for owner in (first, second, first, second)]:
        out.sum().backward()
    assert [blocks is given[0] for blocks in given] == [True, False] * 2
    assert [mine is blocks for mine, blocks in zip(asked, given, strict=True)] == [True] * 4
    assert given[0].blocks.shape == (1, 1, 1, 1)


def test_booleans_are_known_by_their_memory():
    memory = torch.rand(2, 4, ROWS, ROWS, generator=DRAW) < 0.5
    one = memory[:1, :1]
    views = [
        memory[:, :1],
        memory[:, 1:2],
        memory[:, :HEADS],
        memory[:1, :HEADS],
        memory[:1, :HEADS].transpose(2, 3),
        memory[0, :HEADS],
        memory[0, 0],
        memory[0, 0, :1],
        memory[:, :1, :1],
        one,
        one.expand(2, HEADS, -1, -1),
        memory[:1, :1, :, :1].expand(-1, -1, -1, ROWS),
        memory.as_strided((ROWS, ROWS), (2 * ROWS, 1)),
    ]
    windows = {}, {"window": (5, 3)}, {"causal": True}

    def call(seen, options):
        return attend(bias=seen, **options)

    right = []
    for seen, options in itertools.product(views, windows):
        added = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        right.append(call(added, options))
    for _ in range(2):
        mine = [call(seen, options) for seen, options in itertools.product(views, windows)]
        for a, b in zip(mine, right, strict=True):
            torch.testing.assert_close(a, b)
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(right[:15], 2))
    assert is_seen(lambda: attend(bias=memory[:, :1]), lambda: memory[:1].logical_not_())
    of_keys = memory[:1, :1, :1]
    for rows, options in itertools.product((9, ROWS), windows):
        tensors = Q[:, :rows].contiguous(), K, V
        added = torch.zeros(of_keys.shape).masked_fill(~of_keys, -torch.inf)
        for _ in range(2):
            mine = attend(tensors, bias=of_keys, **options)
            torch.testing.assert_close(mine, attend(tensors, bias=added, **options))
    one_key = memory[:1, :1, :, :1]
    for keys in (9, ROWS):
        tensors = Q, K[:, :keys].contiguous(), V[:, :keys].contiguous()
        added = torch.zeros(one_key.shape).masked_fill(~one_key, -torch.inf)
        torch.testing.assert_close(attend(tensors, bias=one_key), attend(tensors, bias=added))
    attend(bias=one)
    uncounted = one.data  # writes to it are not counted for `one`
    uncounted.logical_not_()
    added = torch.zeros(one.shape).masked_fill(~one, -torch.inf)
    torch.testing.assert_close(attend(bias=uncounted), attend(bias=added))


def test_what_numpy_may_write_to_is_read_in_each_call():
    drawn = torch.rand(2, ROWS, ROWS, generator=DRAW) < 0.5
    seen, owner = drawn[0].clone(), torch.arange(ROWS) // 7
    of_numpy = torch.from_numpy(np.arange(ROWS) // 7)
    masks_of = [lambda b, h, i, j, t=t: t[i] == t[j] for t in (owner, of_numpy)]

    def write(tensor, values):
        return lambda: tensor.numpy().__setitem__(slice(None), values.numpy())

    # Also where the array is made when lists are already kept.
    changes = write(seen, drawn[1]), write(seen, drawn[0])
    assert is_seen(lambda: attend(bias=seen), *changes)
    assert is_seen(lambda: attend(bias=seen[None]), *changes[:1])
    for tensor, mask in zip((owner, of_numpy), masks_of, strict=True):
        changes = [write(tensor, torch.arange(ROWS) // length) for length in (5, 3)]
        assert is_seen(lambda m=mask: flex(mask_mod=m), *changes)


def test_booleans_that_are_gone_are_not_others():
    def use(seen):
        added = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        for _ in range(2):
            torch.testing.assert_close(attend(bias=seen), attend(bias=added))

    values = [torch.rand(ROWS, ROWS, generator=DRAW) < 0.5 for _ in range(3)]
    memory = values[0].clone()
    makes = [lambda x=x: memory.copy_(x).data for x in values]  # each counts its own writes
    flex_functions.use_at_one_address(makes, use)


class Watcher(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.seen.append(function)
        return function(*arguments, **(keywords or {}))


OF_MASKS_ALONE = {name: CALLS[name] for name in ("documents", "a block mask")}
BOOLEANS = BIAS > 0
OF_MASKS_ALONE["a bias of booleans"] = lambda: attend(bias=BOOLEANS)


@pytest.mark.parametrize("name", OF_MASKS_ALONE)
def test_a_warm_call_of_masks_alone_is_seen_by_what_watches_torch(name):
    call = OF_MASKS_ALONE[name]
    outside = [call(), call()]
    with Watcher() as watcher:
        inside = call()
    assert torch.equal(inside, outside[1]) and torch.equal(inside, outside[0])
    assert torch.ops.fa3.forward.default in watcher.seen
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    assert any(event.name == "fa3::forward" for event in profile.events())


class Wrapped(torch.Tensor):
    """Has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        inner = [x.inner if isinstance(x, cls) else x for x in arguments]
        return function(*inner, **(keywords or {}))


def test_a_block_mask_that_stands_for_another_is_asked_by_torch():
    wrapped = masks.BlockMask(Wrapped(BLOCKS.blocks), BLOCKS.bits)
    for _ in range(2):
        assert torch.equal(flex(block_mask=wrapped), flex(block_mask=BLOCKS))


def test_queries_that_are_negated_lazily_are_looked_at():
    for name, mask in (("mask_mod", documents), ("block_mask", BLOCKS)):
        right = flex(tensors=(-Q, K, V), **{name: mask})
        assert not torch.equal(flex(**{name: mask}), right)
        for _ in range(2):
            assert torch.equal(flex(tensors=(torch._neg_view(Q), K, V), **{name: mask}), right)

# SPDX-License-Identifier: Apache-2.0
"""fa3.compat.xformers with objects of xformers' attn_bias; what they hide they say themselves."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.compat.xformers import DENSE, PACKED, memory_efficient_attention  # noqa: E402


def random(*shapes):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=draw, dtype=torch.float32) for shape in shapes]


def textbook(q, k, v, added=0.0, scale=None):
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5) + added
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1).nan_to_num(), v)


def named(name, **fields):
    """An object that fa3 takes for one of xformers."""
    return type(name, (), fields)()


def starts(*lengths):
    first = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    return SimpleNamespace(
        seqstart=torch.tensor(first, dtype=torch.int32), seqstart_py=first, max_seqlen=max(lengths)
    )


def test_plain_calls_and_every_rank():
    q, k, v = random((2, 9, 4, 16), (2, 12, 4, 16), (2, 12, 4, 24))
    torch.testing.assert_close(
        memory_efficient_attention(q, k, v, scale=0.3), textbook(q, k, v, 0, 0.3)
    )
    one = [x[:, :, 0] for x in (q, k, v)]
    expected = textbook(*(x[:, :, None] for x in one))[:, :, 0]
    torch.testing.assert_close(memory_efficient_attention(*one), expected)
    q5 = q.unflatten(2, (2, 2))
    k5, v5 = (x[:, :, :2, None].expand(-1, -1, -1, 2, -1) for x in (k, v))
    grouped = memory_efficient_attention(q5, k5, v5)
    assert grouped.shape == (2, 9, 2, 2, 24)
    torch.testing.assert_close(grouped.flatten(2, 3), textbook(q, k[:, :, :2], v[:, :, :2]))


def test_tensors_are_added():
    q, k, v, bias = random((2, 9, 4, 16), (2, 12, 4, 16), (2, 12, 4, 16), (2, 4, 9, 12))
    torch.testing.assert_close(memory_efficient_attention(q, k, v, bias), textbook(q, k, v, bias))


def test_dropout_is_fa3s():
    q, k, v = random(*[(1, 20, 2, 16)] * 3)
    torch.manual_seed(3)
    found = memory_efficient_attention(q, k, v, named("LowerTriangularMask"), p=0.5)
    torch.manual_seed(3)
    assert torch.equal(found, fa3.attention(q, k, v, causal=True, dropout_p=0.5))


def test_causal_of_more_keys_than_queries_is_level_at_the_first():
    q, k, v = random((1, 5, 2, 16), (1, 8, 2, 16), (1, 8, 2, 16))
    hidden = torch.full((5, 8), -torch.inf)
    for name, shift in (("LowerTriangularMask", 1), ("LowerTriangularFromBottomRightMask", 4)):
        found = memory_efficient_attention(q, k, v, named(name))
        torch.testing.assert_close(found, textbook(q, k, v, hidden.triu(shift)))


@pytest.mark.parametrize(
    "bias, left, right",
    [
        (named("LocalAttentionFromBottomRightMask", window_left=2, window_right=1), 2, 1),
        (named("LowerTriangularFromBottomRightLocalAttentionMask", _window_size=3), 2, 0),
    ],
)
def test_windows(bias, left, right):
    q, k, v = random((1, 5, 2, 16), (1, 8, 2, 16), (1, 8, 2, 16))
    distance = torch.arange(8) - torch.arange(5)[:, None] - 3
    hidden = torch.where((distance >= -left) & (distance <= right), 0.0, -torch.inf)
    torch.testing.assert_close(memory_efficient_attention(q, k, v, bias), textbook(q, k, v, hidden))


def test_padded_keys():
    q, k, v = random((1, 12, 2, 16), (1, 28, 2, 16), (1, 28, 2, 16))
    padded = starts(14, 14)
    padded.seqlen, padded.padding = torch.tensor([6, 11], dtype=torch.int32), 14
    kind = "BlockDiagonalCausalWithOffsetPaddedKeysMask"
    found = memory_efficient_attention(
        q, k, v, named(kind, q_seqinfo=starts(5, 7), k_seqinfo=padded)
    )
    hidden = torch.full((7, 11), -torch.inf).triu(5)
    first = textbook(q[:, :5], k[:, :6], v[:, :6], torch.full((5, 6), -torch.inf).triu(2))
    last = textbook(q[:, 5:], k[:, 14:25], v[:, 14:25], hidden)
    torch.testing.assert_close(found, torch.cat([first, last], 1))


def gappy(first, lengths, paged=False):
    ends = [a + n for a, n in zip(first, lengths, strict=True)] if paged else lengths
    given = {"seqstart": [*first, -1], "seqlen": ends}
    tensors = {name: torch.tensor(x, dtype=torch.int32) for name, x in given.items()}
    return SimpleNamespace(**tensors, seqlen_py=ends, max_seqlen=max(lengths))


def causal_of(rows, keys, is_causal):
    hidden = torch.full((rows, keys), -torch.inf).triu(keys - rows + 1)
    return hidden if is_causal else torch.zeros(rows, keys)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("first", [(2, 9), (11, 3), (4, 2)], ids=["gaps", "turned", "shared"])
def test_keys_may_lie_anywhere(first, is_causal):
    q, k, v = random((1, 12, 4, 16), (1, 22, 2, 16), (1, 22, 2, 16))
    kind = f"BlockDiagonal{'CausalWithOffset' * is_causal}GappyKeysMask"
    lengths = 6, 11
    bias = named(kind, q_seqinfo=starts(5, 7), k_seqinfo=gappy(first, lengths))
    expected = []
    for rows, begin, n in zip(q.split([5, 7], 1), first, lengths, strict=True):
        own = (x[:, begin : begin + n] for x in (k, v))
        expected.append(textbook(rows, *own, causal_of(rows.shape[1], n, is_causal)))
    found = memory_efficient_attention(q, k, v, bias)
    torch.testing.assert_close(found, torch.cat(expected, 1))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("first", [None, (3, 7)], ids=["from the first", "gaps"])
def test_keys_may_lie_in_pages(first, is_causal):
    size, table = 4, torch.tensor([[5, 0, 3, 7, 9], [1, 8, 2, 6, 4]])
    q, k, v = random((1, 12, 4, 16), (1, 10 * size, 2, 16), (1, 10 * size, 2, 16))
    lengths, kind = (6, 11), f"PagedBlockDiagonal{'CausalWithOffset' * is_causal}"
    if first is None:
        info = starts(20, 20)
        info.seqlen, info.seqlen_py = torch.tensor(lengths, dtype=torch.int32), list(lengths)
        kind += "PaddedKeysMask"
    else:
        info = gappy(first, lengths, paged=True)
        kind += "GappyKeysMask"
    of = {"q_seqinfo": starts(5, 7), "k_seqinfo": info, "block_tables": table, "page_size": size}
    expected = []
    for n, rows in enumerate(q.split([5, 7], 1)):
        begin = 0 if first is None else first[n]
        own = (x[0].unflatten(0, (-1, size))[table[n]].flatten(0, 1)[None] for x in (k, v))
        own = (x[:, begin : begin + lengths[n]] for x in own)
        expected.append(textbook(rows, *own, causal_of(rows.shape[1], lengths[n], is_causal)))
    found = memory_efficient_attention(q, k, v, named(kind, **of))
    torch.testing.assert_close(found, torch.cat(expected, 1))


def test_packed_sequences_and_their_gradients():
    q, k, v = (x.requires_grad_() for x in random(*[(1, 12, 2, 16)] * 3))
    bias = named("BlockDiagonalCausalMask", q_seqinfo=starts(5, 7), k_seqinfo=starts(5, 7))
    parts = [[x[:, :5], x[:, 5:]] for x in (q, k, v)]
    hidden = torch.full((7, 7), -torch.inf)
    expected = torch.cat(
        [
            textbook(*part, hidden[: part[0].shape[1], : part[0].shape[1]].triu(1))
            for part in zip(*parts, strict=True)
        ],
        dim=1,
    )
    found = memory_efficient_attention(q, k, v, bias)
    torch.testing.assert_close(found, expected)
    for ours, right in zip(
        torch.autograd.grad((found**2).sum(), (q, k, v)),
        torch.autograd.grad((expected**2).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(ours, right)


@pytest.mark.parametrize("name", ["LowerTriangularMask", "LowerTriangularMaskWithTensorBias"])
def test_objects_that_are_tensors_without_memory(name):
    class Wrapper(torch.Tensor):
        def __new__(cls, added):
            self = torch.Tensor._make_wrapper_subclass(cls, [])
            self._subtensor = added
            return self

        @classmethod
        def __torch_dispatch__(cls, *_):
            raise AssertionError("it has no memory")

    q, k, v = random(*[(1, 12, 2, 16)] * 3)
    has_bias = name.endswith("Bias")
    (bias,) = random((1, 2, 12, 12)) if has_bias else (torch.empty(0),)
    kind = type(name, (Wrapper,), {})
    expected = fa3.attention(q, k, v, causal=True, bias=bias if has_bias else None)
    assert torch.equal(memory_efficient_attention(q, k, v, kind(bias)), expected)


def test_what_it_lacks_is_a_sentence():
    q, k, v = random(*[(1, 12, 2, 16)] * 3)
    with pytest.raises(
        fa3.Unsupported, match="^attn_bias: expected a tensor or one of Lower.* got S"
    ):
        memory_efficient_attention(q, k, v, named("SomeOtherMask"))
    uneven = named("BlockDiagonalCausalMask", q_seqinfo=starts(5, 7), k_seqinfo=starts(7, 5))
    with pytest.raises(fa3.Unsupported, match="equal lengths in BlockDiagonalCausalMask"):
        memory_efficient_attention(q, k, v, uneven)
    with pytest.raises(fa3.InvalidArgument, match="^attn_bias: expected rank 4, .* got .2, 12, 12"):
        memory_efficient_attention(q, k, v, torch.zeros(2, 12, 12))
    with pytest.raises(fa3.Unsupported, match="^output_dtype"):
        memory_efficient_attention(q, k, v, output_dtype=torch.float16)


def objects(of):
    """Objects of each class that fa3 takes, for 12 queries and as many or more keys."""
    lengths, more = [5, 7], [6, 11]
    yield of.LowerTriangularMask()
    yield of.LowerTriangularMaskWithTensorBias(random((1, 2, 12, 12))[0])
    yield of.LowerTriangularFromBottomRightMask()
    yield of.LowerTriangularFromBottomRightLocalAttentionMask(4)
    yield of.LocalAttentionFromBottomRightMask(window_left=2, window_right=3)
    whole, wide = of.BlockDiagonalMask.from_seqlens(lengths), of.BlockDiagonalMask
    yield whole
    yield wide.from_seqlens(lengths, more)
    yield whole.make_causal()
    yield wide.from_seqlens(lengths, more).make_causal_from_bottomright()
    yield whole.make_local_attention(3)
    yield wide.from_seqlens(lengths, more).make_local_attention_from_bottomright(3)
    padded = {"q_seqlen": lengths, "kv_padding": 14, "kv_seqlen": more}
    yield of.BlockDiagonalPaddedKeysMask.from_seqlens(**padded)
    yield of.BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(**padded)
    yield of.BlockDiagonalLocalAttentionPaddedKeysMask.from_seqlens_local(
        **padded, window_left=3, window_right=1
    )
    yield of.BlockDiagonalCausalLocalAttentionPaddedKeysMask.from_seqlens_local(
        **padded, window_size=4
    )
    gaps = {"q_seqlen": lengths, "kv_seqstarts": [2, 16, 28], "kv_seqlen": more}
    for kind in (of.BlockDiagonalGappyKeysMask, of.BlockDiagonalCausalWithOffsetGappyKeysMask):
        yield kind.from_seqlens(**gaps)
    table = torch.tensor([[3, 0, 5, 2], [1, 6, 4, 7]], dtype=torch.int32)
    for causal in ("", "CausalWithOffset"):
        paged = getattr(of, f"PagedBlockDiagonal{causal}PaddedKeysMask")
        yield paged.from_seqlens(lengths, more, table, 4)
        unpaged = getattr(of, f"BlockDiagonal{causal}GappyKeysMask").from_seqlens(
            lengths, [2, 19, 32], more
        )
        kind = getattr(of, f"PagedBlockDiagonal{causal}GappyKeysMask")
        yield unpaged.make_paged(table, 4, 16, kind)


def test_xformers_own_objects_hide_what_they_say():
    of = pytest.importorskip("xformers.ops.fmha.attn_bias", reason="xformers is not installed")
    tried = set()
    for bias in objects(of):
        tried.add(type(bias).__name__)
        info = getattr(bias, "k_seqinfo", None)
        keys = 12 if info is None else info.seqstart_py[-1]
        keys = bias.block_tables.numel() * 4 if hasattr(bias, "block_tables") else keys
        q, k, v = random((1, 12, 2, 16), (1, keys, 2, 16), (1, keys, 2, 16))
        hidden = bias.materialize((1, 2, 12, keys))
        torch.testing.assert_close(
            memory_efficient_attention(q, k, v, bias), textbook(q, k, v, hidden), msg=str(bias)
        )
    assert tried == {*DENSE, *PACKED}

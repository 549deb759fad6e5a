# SPDX-License-Identifier: Apache-2.0
"""fa3.flex_attention beside torch's own in float64, and beside finite differences."""

import flex_functions as functions
import pytest
from flex_functions import DIM, HEADS, KV_HEADS, ROWS, inputs, randn

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
from torch.nn.attention.flex_attention import (  # noqa: E402
    BlockMask,
    create_block_mask,
    noop_mask,
)
from torch.nn.attention.flex_attention import flex_attention as torchs  # noqa: E402

TORCHS = {"rtol": 1e-6, "atol": 1e-6}  # torch scales by a float32


@torch.no_grad()
def of_torch(q, k, v, score_mod, block_mask=None):
    q, k, v = (x.detach().transpose(1, 2) for x in (q, k, v))
    out, lse = torchs(
        q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=True, return_lse=True
    )
    return out.transpose(1, 2), lse


def small_tiles(monkeypatch):
    from fa3.flex import tiles

    monkeypatch.setattr(tiles, "QUERIES", 16)
    monkeypatch.setattr(tiles, "KEYS", 24)


@pytest.mark.parametrize("make", functions.ALL, ids=lambda make: make.__name__)
def test_results_are_torchs(make, monkeypatch):
    small_tiles(monkeypatch)
    score_mod, _ = make(HEADS, ROWS, torch.float64)
    q, k, v = inputs()
    mine = fa3.flex_attention(q, k, v, score_mod=score_mod, return_lse=True)
    torch.testing.assert_close(mine, of_torch(q, k, v, score_mod), **TORCHS)


@pytest.mark.parametrize("make", functions.ALL, ids=lambda make: make.__name__)
def test_gradients_are_finite_differences(make, monkeypatch):
    from fa3.flex import tiles

    monkeypatch.setattr(tiles, "KEYS", 3)
    q, k, v = (randn(1, 5, h, 3, seed=s).requires_grad_() for h, s in ((4, 1), (2, 2), (2, 3)))
    score_mod, captured = make(4, 5, torch.float64)
    for tensor in captured:
        tensor.requires_grad_()

    def call(q, k, v, *_):
        return fa3.flex_attention(q, k, v, score_mod=score_mod, causal=True, return_lse=True)

    assert torch.autograd.gradcheck(call, (q, k, v, *captured), atol=1e-6)


def causal(b, h, q, k):
    return q >= k


def test_a_block_mask_is_a_mask(monkeypatch):
    small_tiles(monkeypatch)
    mask = create_block_mask(causal, 2, 1, ROWS, ROWS, device="cpu", BLOCK_SIZE=16)
    score_mod, _ = functions.relative_bias(HEADS, ROWS, torch.float64)
    q, k, v = inputs()
    options = {"score_mod": score_mod, "return_lse": True}
    by_option = fa3.flex_attention(q, k, v, causal=True, **options)
    by_function = fa3.flex_attention(q, k, v, mask_mod=causal, **options)
    by_blocks = fa3.flex_attention(q, k, v, block_mask=mask, **options)
    torch.testing.assert_close(by_option, of_torch(q, k, v, score_mod, mask), **TORCHS)
    torch.testing.assert_close(by_function, by_option, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_blocks, by_option, rtol=1e-12, atol=1e-12)


def test_torchs_arguments_give_torchs_results():
    from torch.nn.attention.flex_attention import AuxRequest

    from fa3.compat.flex_attention import flex_attention

    mask = create_block_mask(causal, 2, 1, ROWS, ROWS, device="cpu", BLOCK_SIZE=16)
    score_mod, _ = functions.relative_bias(HEADS, ROWS, torch.float64)
    q, k, v = (x.detach().transpose(1, 2) for x in inputs())
    options = {"score_mod": score_mod, "block_mask": mask, "enable_gqa": True}
    out, lse = flex_attention(q, k, v, return_lse=True, **options)
    torch.testing.assert_close((out, lse), torchs(q, k, v, return_lse=True, **options), **TORCHS)
    auxiliary = flex_attention(q, k, v, return_aux=AuxRequest(lse=True), **options)[1]
    assert torch.equal(auxiliary.lse, lse) and auxiliary.max_scores is None
    with pytest.raises(fa3.InvalidArgument, match="enable_gqa=True"):
        flex_attention(q, k, v)


@pytest.mark.parametrize("window", [(None, None), (7, 3), (0, None)])
@pytest.mark.parametrize("rows", [3, 40, 70])
def test_the_score_itself_is_attention(rows, window, monkeypatch):
    small_tiles(monkeypatch)
    q, k, v = inputs(rows=rows, dtype=torch.float32)
    out, lse = fa3.flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: s, window=window, return_lse=True
    )
    expected = fa3.attention(q, k, v, window=window, return_lse=True)
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(lse, expected[1])


def test_packed_sequences_are_those_alone():
    lengths, used = [5, 0, 17, 9], [4, 0, 17, 2]
    ends = torch.tensor([0, 5, 5, 22, 31], dtype=torch.int32)
    table = randn(4, HEADS, 64, seed=5)

    def score_mod(s, b, h, q, k):
        return s + table[b, h, k - q + 32]

    q, k, v = (randn(31, h, DIM, seed=h + i) for i, h in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    options = {"score_mod": score_mod, "return_lse": True}
    seqused = torch.tensor(used, dtype=torch.int32)
    out, lse = fa3.flex_attention(
        q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, seqused_k=seqused, **options
    )
    for n, (begin, length) in enumerate(zip(ends.tolist(), lengths, strict=False)):
        rows = slice(begin, begin + length)
        keys = slice(begin, begin + used[n])

        def alone(s, b, h, i, j, n=n):
            return s + table[n, h, j - i + 32]

        own = fa3.flex_attention(
            q[None, rows], k[None, keys], v[None, keys], score_mod=alone, return_lse=True
        )
        torch.testing.assert_close(out[rows], own[0][0])
        torch.testing.assert_close(lse[:, rows], own[1][0])


def test_a_row_that_sees_no_key_is_zero():
    q, k, v = inputs()
    out, lse = fa3.flex_attention(
        q, k, v, mask_mod=lambda b, h, i, j: (i != 3) & (j < 7), return_lse=True
    )
    (out.sum() + lse[:, :, 4].sum()).backward()
    assert (out[:, 3] == 0).all() and (lse[:, :, 3] == -float("inf")).all()
    assert out[:, 4].abs().min() > 0
    assert (q.grad[:, 3] == 0).all() and k.grad.isfinite().all() and (k.grad[:, 7:] == 0).all()


def test_an_index_out_of_range_is_refused_on_a_cpu_and_clamped_on_a_gpu(device):
    table = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, device=device)
    q, k, v = (x.detach().to(device) for x in inputs(rows=1, keys=9, batch=1))

    def lse(score_mod, **options):
        given = {"score_mod": score_mod, "return_lse": True, **options}
        return fa3.flex_attention(0 * q, k, v, **given)[1][0, 0, 0]

    beyond = lambda s, b, h, i, j: table[j]  # noqa: E731
    behind = lambda s, b, h, i, j: table[j - 8]  # noqa: E731  -8 .. -4; -3 .. -1: from the end
    if device == "cpu":
        for score_mod, got in ((beyond, "got 3"), (behind, "got -8")):
            with pytest.raises(IndexError, match=rf"from -3 to 2 in dimension 0 .*\(3,\), {got}"):
                lse(score_mod)
        with pytest.raises(IndexError, match="got 3"):
            lse(None, mask_mod=lambda b, h, i, j: table[j] > 1)
        torch.testing.assert_close(lse(behind, window=(2, 0)), table.logsumexp(0))  # hides others
        return
    clamped = torch.cat([table, table[2:].expand(6)]).logsumexp(0)
    torch.testing.assert_close(lse(beyond), clamped)
    torch.testing.assert_close(lse(behind), table[[0, 0, 0, 0, 0, 0, 1, 2, 0]].logsumexp(0))


def test_layout_bhsd_is_the_order_of_torchs_flex_attention():
    q, k, v = inputs(rows=7, keys=9)
    options = {"score_mod": lambda s, b, h, i, j: s * (h + 1) - i + 0.1 * j, "causal": True}
    expected = fa3.flex_attention(q, k, v, return_lse=True, **options)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    actual = fa3.flex_attention(*turned, layout="bhsd", return_lse=True, **options)
    assert actual[0].shape == (2, HEADS, 7, DIM)
    torch.testing.assert_close(actual[0].transpose(1, 2), expected[0], rtol=0, atol=0)
    torch.testing.assert_close(actual[1], expected[1], rtol=0, atol=0)
    gradients = [torch.autograd.grad(x[0].square().sum(), (q, k, v)) for x in (expected, actual)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    with pytest.raises(fa3.InvalidArgument, match="^layout: expected 'bshd' or 'bhsd', got 'hbsd'"):
        fa3.flex_attention(q, k, v, layout="hbsd")
    ends = torch.tensor([0, 7], dtype=torch.int32)
    with pytest.raises(fa3.InvalidArgument, match="^q: expected rank 4 .*layout is 'bhsd'"):
        fa3.flex_attention(q[0], k, v, cu_seqlens_q=ends, layout="bhsd")


def test_more_heads_than_rows_are_a_warning_unless_a_layout_is_given(recwarn):
    from fa3._flex import LooksTurned

    q, k, v = (x.detach() for x in inputs(rows=64, keys=64))
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    with pytest.warns(LooksTurned, match=r"q has 64 heads and 4 rows, k 64 and 2; .*'bhsd'"):
        fa3.flex_attention(*turned)
    recwarn.clear()
    fa3.flex_attention(*turned, layout="bshd")
    fa3.flex_attention(*turned, layout="bhsd")
    fa3.flex_attention(q[:, :1], k, v)  # a decode step
    used = torch.tensor([1, 1], dtype=torch.int32)
    fa3.flex_attention(q[:, :1], k[:, :1], v[:, :1], seqused_k=used)
    assert not recwarn.list


def everything_seen(b, h, q_idx, kv_idx):
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # as lists, as a function
@pytest.mark.parametrize("mask_mod", [noop_mask, everything_seen])
def test_a_mask_of_a_constant_is_torchs_noop_mask(mask_mod, dtype):
    q, k, v = inputs(dtype=dtype)
    whole = fa3.flex_attention(q, k, v)
    torch.testing.assert_close(fa3.flex_attention(q, k, v, mask_mod=mask_mod), whole)
    causal = fa3.flex_attention(q, k, v, causal=True)
    both = fa3.flex_attention(q, k, v, mask_mod=mask_mod, causal=True)
    torch.testing.assert_close(both, causal)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_mask_made_of_lists_alone(dtype):
    """Its mask_mod is torch's noop_mask."""
    q, k, v = (x.detach() for x in inputs(256, 256, dtype=dtype))
    counts = torch.ones(1, 1, 2, dtype=torch.int32)
    blocks = torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(counts, blocks, BLOCK_SIZE=128)
    out = fa3.flex_attention(q, k, v, block_mask=mask)
    for rows, keys in ((slice(128), slice(128, 256)), (slice(128, 256), slice(128))):
        part = fa3.attention(q[:, rows], k[:, keys], v[:, keys])
        torch.testing.assert_close(out[:, rows], part)


def test_new_scalars_are_constants():
    q, k, v = inputs()

    def add(score, b, h, i, j):
        return score + score.new_full((), 2) * i + torch.ones_like(j) - j.new_zeros(())

    wanted = fa3.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 2 * i + 1)
    torch.testing.assert_close(fa3.flex_attention(q, k, v, score_mod=add), wanted)


def test_division_by_zero_is_a_number():
    q, k, v = inputs(dtype=torch.float32)
    out = fa3.flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: s + i // (j - j) + i % (j - j)
    )
    torch.testing.assert_close(out, fa3.attention(q, k, v))


def test_nan_reaches_the_rows_that_see_it():
    q, k, v = inputs(dtype=torch.float32)
    out = fa3.flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i == 2, float("nan"), s)
    )
    assert out[:, 2].isnan().all() and not out[:, 3:].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_tensors_are_computed_in_float32(dtype):
    score_mod, _ = functions.alibi(HEADS, ROWS, torch.float32)
    wide = inputs(dtype=torch.float32)
    narrow = [x.detach().to(dtype).requires_grad_() for x in wide]
    out = fa3.flex_attention(*narrow, score_mod=score_mod)
    exact = [x.detach().double().requires_grad_() for x in narrow]
    expected = fa3.flex_attention(*exact, score_mod=score_mod)
    out.sum().backward()
    expected.sum().backward()
    assert out.dtype == dtype
    error = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    for mine, right in zip((out, *(x.grad for x in narrow)), (expected, *(x.grad for x in exact)),
                           strict=True):  # fmt: skip
        torch.testing.assert_close(mine.double(), right, **error)


def test_options_are_in_the_order_of_the_table():
    from fa3._options import Options
    from fa3._options import in_order as of_table
    from fa3.flex.call import EVERY_KEY, NO_LENGTHS, Window
    from fa3.flex.decisions import Decision, Listed
    from fa3.masks import BlockMask

    names = "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"
    lengths = {n: torch.full((), i) for i, n in enumerate(names)}
    lengths |= {"max_seqlen_q": 5, "max_seqlen_k": 6}
    blocks = BlockMask(torch.zeros(1), torch.ones(1))
    for window in (EVERY_KEY, Window(3, 0)):
        for of_lengths in (NO_LENGTHS, lengths, {**lengths, "deterministic": True}):
            for mask in ((None, None), blocks):
                listed = Listed(None, window)
                decision = Decision(None, 0.5, window, 1, True, False, listed=listed)
                mine = decision.of_lengths(of_lengths).listed.options_with(mask)
                named = {"window": window, "scale": 0.5, "block_mask": mask, **of_lengths}
                right = Options(*of_table("attention", named))
                for a, b in zip(Options(*mine), right, strict=True):
                    assert a is b or a == b


def test_another_device_is_seen():
    from fa3.flex import device, lists
    from fa3.flex.call import EVERY_KEY
    from fa3.flex.functions import function_of

    tensor, meta = torch.ones(2), torch.zeros(1, 200, 1, 8, device="meta")
    with pytest.raises(fa3.InvalidArgument, match="expected captured tensors on meta"):
        device.on_device_of(meta, [tensor])
    function = function_of(lambda s, b, h, q, k: torch.where(q < k + 7, s, float("-inf")))
    host = torch.zeros(1, 200, 1, 8)
    for q in (host, meta, host):
        made, _ = lists.of_function(*function, EVERY_KEY, lists.Extents(1, 200, 200), 1, q.device)
        assert made.blocks.device == q.device


def test_what_needs_no_gradient_is_computed_without_autograd(monkeypatch):
    from fa3.flex import attention

    recorded = []
    monkeypatch.setattr(attention.Flex, "apply", lambda *a: recorded.append(1) or a[1:3])
    q, k, v = (x.requires_grad_() for x in inputs(dtype=torch.float32))
    slopes = torch.ones(HEADS)

    def call(*tensors):
        return fa3.flex_attention(*tensors, score_mod=lambda s, b, h, i, j: s * slopes[h])

    call(q, k, v)
    call(q.detach(), k.detach(), v)
    assert len(recorded) == 2
    call(q.detach(), k.detach(), v.detach())
    with torch.no_grad():
        call(q, k, v)
    assert len(recorded) == 2
    slopes.requires_grad_()
    call(q.detach(), k.detach(), v.detach())
    assert len(recorded) == 3

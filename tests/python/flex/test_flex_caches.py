# SPDX-License-Identifier: Apache-2.0
"""Biases, ALiBi and score functions over caches of keys, against softmax in float64."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fa3  # noqa: E402
from fa3.compat import flash_attn, vllm  # noqa: E402
from fa3.flex.decisions import max_rows  # noqa: E402

BATCH, HEADS, KV_HEADS, DIM = 3, 8, 2, 64
USED = (1300, 0, 411)
MOST, PAGE = 1312, 16

pytestmark = pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")


class Cache:
    """Keys of each sequence, as lists of tensors, and where a call finds them."""

    def __init__(self, layout, device, dim=DIM):
        draw = torch.Generator().manual_seed(8)
        self.device = device
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.layout = layout
        self.padding = (3, 0, 400) if "padded" in layout else (0,) * BATCH
        self.draw = draw

        def made(*shape):
            return torch.randn(*shape, generator=draw)

        entries = 5
        k, v = (made(entries, MOST, KV_HEADS, dim) for _ in range(2))
        order = [4, 0, 2] if "indexed" in layout or "pages" in layout else [*range(BATCH)]
        self.options = {"seqused_k": self.numbers(USED)}
        self.factors = torch.ones(2, BATCH, KV_HEADS)
        if "fp8" in layout:
            k, v = (x.to(torch.float8_e4m3fn) for x in (k, v))
            self.factors = made(2, BATCH, KV_HEADS).abs() + 0.5
            self.options |= {
                "k_descale": self.factors[0].to(device),
                "v_descale": self.factors[1].to(device),
            }
        else:
            k, v = (x.to(self.dtype) for x in (k, v))
        if not ("indexed" in layout or "pages" in layout):
            k, v = k[:BATCH], v[:BATCH]
        self.right = [
            tuple(
                x[order[n], self.padding[n] : USED[n]].double() * of[n][:, None].double()
                for x, of in zip((k, v), self.factors, strict=True)
            )
            for n in range(BATCH)
        ]
        if "pages" in layout:
            pages = torch.randperm(entries * MOST // PAGE, generator=draw)
            table = torch.empty_like(pages)
            table[pages] = torch.arange(len(pages))  # page pages[n] holds the n-th rows
            k, v = (
                x.reshape(-1, PAGE, KV_HEADS, dim).view(torch.uint8 if "fp8" in layout else x.dtype)
                [table].view(x.dtype)
                for x in (k, v)
            )  # fmt: skip
            self.options["page_table"] = pages.view(entries, -1)[order].int().to(device)
        elif "indexed" in layout:
            self.options["batch_index"] = self.numbers(order)
        if "padded" in layout:
            self.options["left_padding"] = self.numbers(self.padding)
        self.k, self.v = k.to(device), v.to(device)

    def numbers(self, of):
        return torch.tensor(of, dtype=torch.int32, device=self.device)

    def queries(self, rows, dim=DIM):
        q = torch.randn(BATCH, rows, HEADS, dim, generator=self.draw)
        return q.to(self.dtype).to(self.device)

    def expected(self, q, change, causal):
        """(out, lse). change(scores, b, i, j): (heads, rows, keys) -> the same."""
        outs, lses = [], []
        for number, (k, v) in enumerate(self.right):
            rows = q[number].cpu().double().transpose(0, 1)
            k, v = (x.transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
            scores = rows @ k.mT * q.shape[-1] ** -0.5
            i, j = torch.arange(rows.shape[1])[:, None], torch.arange(k.shape[1])
            scores = change(scores, number, i, j)
            if causal:
                scores = scores.masked_fill(j > i + k.shape[1] - rows.shape[1], -math.inf)
            lses.append(scores.logsumexp(-1))
            outs.append((scores.softmax(-1).nan_to_num() @ v).transpose(0, 1))
        return torch.stack(outs), torch.stack(lses)

    def with_alibi(self, q, causal):
        slopes = slopes_of(self.device)
        return self.expected(q, lambda s, b, i, j: alibi(s, slopes, i, j), causal)

    def compare(self, mine, right):
        out, lse = mine
        step = torch.finfo(self.dtype).eps
        atol = max(4 * step, 1e-5) * right[0].abs().max().item()
        torch.testing.assert_close(out.cpu().double(), right[0], rtol=0, atol=atol)
        torch.testing.assert_close(lse.cpu().double(), right[1], rtol=1e-4, atol=2e-3)


def slopes_of(device):
    return torch.tensor([2.0 ** -(n + 1) for n in range(HEADS)], device=device)


def alibi(scores, slopes, i, j):
    rows, keys = scores.shape[-2:]
    return scores - slopes[:, None, None].cpu().double() * (i + keys - rows - j).abs()


LAYOUTS = [
    "contiguous",
    "indexed",
    "pages",
    "padded",
    "padded indexed",
    "padded pages",
    "fp8",
    "fp8 pages",
    "fp8 padded",
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows, causal", [(1, True), (3, False), (4, True), (70, True)])
def test_alibi_and_a_bias_of_keys_over_a_cache(device, layout, rows, causal):
    cache = Cache(layout, device)
    q, slopes = cache.queries(rows), slopes_of(device)
    bias = torch.randn(BATCH, 1, 1, MOST, generator=cache.draw)
    mine = fa3.attention(
        q, cache.k, cache.v, bias=bias.to(device), alibi_slopes=slopes, causal=causal,
        return_lse=True, **cache.options,
    )  # fmt: skip

    def change(scores, b, i, j):
        return alibi(scores, slopes, i, j) + bias[b, 0, 0, : scores.shape[-1]].double()

    cache.compare(mine, cache.expected(q, change, causal))


@pytest.mark.parametrize("dim", [64, 72, 128, 256])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("splits", [0, 1, 5])
def test_head_dims_and_splits(device, dim, rows, splits):
    cache = Cache("pages", device, dim)
    q, slopes = cache.queries(rows, dim), slopes_of(device)
    options = cache.options | {"num_splits": splits}
    mine = fa3.attention(q, cache.k, cache.v, alibi_slopes=slopes, return_lse=True, **options)
    right = cache.with_alibi(q, False)
    cache.compare(mine, right)


def softcap_of_places(score, b, h, q_idx, kv_idx):
    score = 2 * torch.tanh(score / 2) + 0.1 * h - 0.2 * b + 0.01 * q_idx
    return torch.where((kv_idx + b) % 3 == 0, -float("inf"), score)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, 4, 20])
def test_functions_over_a_cache(device, layout, rows):
    cache = Cache(layout, device)
    q = cache.queries(rows)

    def near(b, h, q_idx, kv_idx):
        return kv_idx % 5 > q_idx % 2

    mine = fa3.flex_attention(
        q, cache.k, cache.v, score_mod=softcap_of_places, mask_mod=near, causal=True,
        return_lse=True, **cache.options,
    )  # fmt: skip

    def change(scores, b, i, j):
        h = torch.arange(HEADS)[:, None, None]
        return softcap_of_places(scores, b, h, i, j).masked_fill(~near(b, h, i, j), -math.inf)

    cache.compare(mine, cache.expected(q, change, True))


@pytest.mark.parametrize("low", [-1e9, -1e12, -1e30])
@pytest.mark.parametrize("rows", [1, 4, 20])
@pytest.mark.parametrize("layout", ["contiguous", "pages", "fp8 pages"])
def test_stages_of_large_numbers_alone_leave_rows_right(device, layout, rows, low):
    """Their roundings are larger than other scores."""
    cache = Cache(layout, device)
    q = cache.queries(rows)

    def score_mod(score, b, h, q_idx, kv_idx):
        return torch.where(kv_idx % 400 < 40, score, low)

    options = {"score_mod": score_mod, "return_lse": True, **cache.options}
    mine = fa3.flex_attention(q, cache.k, cache.v, **options)
    cache.compare(mine, cache.expected(q, lambda s, b, i, j: score_mod(s, b, 0, i, j), False))


@pytest.mark.parametrize("layout", ["contiguous", "pages"])
def test_packed_queries_of_different_numbers(device, layout):
    cache = Cache(layout, device)
    counts = (1, 2, 30)
    q = cache.queries(max(counts))
    packed = torch.cat([q[n, :count] for n, count in enumerate(counts)])
    starts, slopes = cache.numbers((0, 1, 3, 33)), slopes_of(device)
    lengths = {"cu_seqlens_q": starts, "max_seqlen_q": max(counts)}
    out, lse = fa3.attention(
        packed, cache.k, cache.v, alibi_slopes=slopes, causal=True, return_lse=True,
        **lengths, **cache.options,
    )  # fmt: skip
    for n, count in enumerate(counts):
        right = cache.with_alibi(q[:, :count], True)
        begin = sum(counts[:n])
        part = out[begin : begin + count][None], lse[None, :, begin : begin + count]
        cache.compare(part, tuple(x[n : n + 1] for x in right))


def test_serving_doors_take_alibi_slopes(device):
    for layout in ("contiguous", "pages", "indexed"):
        cache = Cache(layout, device)
        q, slopes = cache.queries(2), slopes_of(device)
        right = cache.with_alibi(q, True)
        used = cache.options["seqused_k"]
        table, index = (cache.options.get(name) for name in ("page_table", "batch_index"))
        mine = flash_attn.flash_attn_with_kvcache(
            q, cache.k, cache.v, cache_seqlens=used, block_table=table, cache_batch_idx=index,
            causal=True, alibi_slopes=slopes, return_softmax_lse=True,
        )  # fmt: skip
        cache.compare(mine, right)
        if index is not None:
            continue
        starts = cache.numbers(range(0, 2 * BATCH + 1, 2))
        out = torch.empty_like(q.flatten(0, 1))
        given = {"seqused_k": used, "block_table": table, "return_softmax_lse": True, "out": out}
        result, lse = vllm.flash_attn_varlen_func(
            q.flatten(0, 1), cache.k, cache.v, 2, starts, MOST, causal=True, fa_version=3,
            alibi_slopes=slopes, **given,
        )  # fmt: skip
        assert result is out
        cache.compare((out.view_as(q), lse.unflatten(1, (BATCH, 2)).transpose(0, 1)), right)
        if table is not None:
            ends = torch.cat([used.new_zeros(1), used.cumsum(0).int()])
            varlen = flash_attn.flash_attn_varlen_func(
                q.flatten(0, 1), cache.k, cache.v, starts, ends, 2, MOST, causal=True,
                alibi_slopes=slopes, block_table=table,
            )  # fmt: skip
            torch.testing.assert_close(varlen, out)


def test_appended_rows_are_seen_and_a_refused_call_changes_nothing(device):
    cache = Cache("contiguous", device)
    q, new = cache.queries(1), torch.ones(BATCH, 1, KV_HEADS, DIM).to(cache.k)
    slopes, used = slopes_of(device), cache.options["seqused_k"]
    before = cache.k.clone()
    call = {"cache_seqlens": used, "causal": True}
    with pytest.raises(fa3.InvalidArgument, match="alibi_slopes: expected"):
        flash_attn.flash_attn_with_kvcache(
            q, cache.k, cache.v, new, new, alibi_slopes=slopes[:3], **call
        )
    assert torch.equal(cache.k, before)
    mine = flash_attn.flash_attn_with_kvcache(
        q, cache.k, cache.v, new, new, alibi_slopes=slopes, return_softmax_lse=True, **call
    )
    one = torch.ones(1, KV_HEADS, DIM, dtype=torch.float64)
    cache.right = [tuple(torch.cat([x, one]) for x in pair) for pair in cache.right]
    cache.compare(mine, cache.with_alibi(q, True))


def test_what_is_refused_is_a_sentence():
    cache = Cache("pages", "cpu")
    q, slopes = cache.queries(1), slopes_of("cpu")
    with pytest.raises(fa3.Unsupported, match="page_table: no gradient goes through a cache"):
        fa3.attention(q.requires_grad_(), cache.k, cache.v, alibi_slopes=slopes, **cache.options)
    q = q.detach()
    with pytest.raises(fa3.Unsupported, match="sink: not together with"):
        fa3.attention(
            q, cache.k, cache.v, alibi_slopes=slopes, sink=torch.ones(HEADS), **cache.options
        )
    wrong = cache.options | {"page_table": cache.options["page_table"] + 1000}
    with pytest.raises(fa3.InvalidArgument, match="page_table: expected pages from 0 to"):
        fa3.attention(q, cache.k, cache.v, alibi_slopes=slopes, **wrong)
    with pytest.raises(fa3.Unsupported, match="cp_world_size: expected 1"):
        vllm.flash_attn_varlen_func(
            q[:, 0], cache.k, cache.v, 1, cache.numbers(range(BATCH + 1)), MOST,
            seqused_k=cache.options["seqused_k"], block_table=cache.options["page_table"],
            alibi_slopes=slopes, cp_world_size=2, fa_version=3,
        )  # fmt: skip


def test_no_torch_operation_is_launched_for_a_decoded_token():
    from fa3.flex import bias

    used = torch.tensor([5, 7], dtype=torch.int32)
    q, k = torch.zeros(2, 1, 4, 8), torch.zeros(2, 9, 4, 8)
    lengths = bias.OPTIONS | {"seqused_k": used}
    shift, less = bias.shift_of(q, k, lengths)
    assert shift is used and less == 1
    shift, less = bias.shift_of(q, k, lengths | {"left_padding": used - 4})
    assert (shift - less).tolist() == [3, 3]
    assert max_rows(q, k, {}) < 2**31
    table = torch.zeros(2, 2**22, dtype=torch.int32)
    assert max_rows(q, k, {"page_table": table}) == 2**31

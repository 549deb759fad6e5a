# SPDX-License-Identifier: Apache-2.0
"""Masks of fa3.flex_attention as lists of blocks: what is hidden whole is not computed, maps are
made once, and what cannot walk lists asks the mask function."""

import math
import warnings
from functools import partial

import flex_functions
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import masks  # noqa: E402
from fa3._options import Options  # noqa: E402
from fa3.flex import attention, kept  # noqa: E402
from fa3.flex import device as device_of_scores  # noqa: E402
from fa3.flex.call import EVERY_KEY  # noqa: E402
from fa3.flex.decisions import Decision, Listed  # noqa: E402
from fa3.flex.function.text import MOST_ROWS  # noqa: E402
from fa3.flex.functions import function_of  # noqa: E402
from fa3.flex.query import Answer, lists_win  # noqa: E402

ROWS, KEYS, HEADS, DIM = 300, 420, 4, 32


def inputs(dtype=torch.float32):
    draw = torch.Generator().manual_seed(1)
    shapes = (2, ROWS, HEADS, DIM), (2, KEYS, 2, DIM), (2, KEYS, 2, DIM)
    return [torch.randn(s, generator=draw).to(dtype).requires_grad_() for s in shapes]


def prefix(b, h, q, k):
    return k < 130 * (1 + h // 2)


def diagonal(b, h, q, k):
    return (q // 100 == k // 100) & (b + k > 3)


def everything(b, h, q, k):
    return q >= 0


@pytest.fixture
def walked(monkeypatch):
    """The maps that engines were given."""
    seen = []
    by_lists = attention.by_lists

    def recorded(q, k, v, blocks, *others, **options):
        seen.append(blocks)
        return by_lists(q, k, v, blocks, *others, **options)

    monkeypatch.setattr(attention, "by_lists", recorded)
    kept.table.clear()
    return seen


def with_gradients(tensors, **options):
    out, lse = fa3.flex_attention(*tensors, return_lse=True, **options)
    loss = (out * out.detach().sin()).sum() + lse.masked_fill(lse == -math.inf, 0).sum()
    return out, lse, *torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (90, 40)}], ids=str)
@pytest.mark.parametrize("mask", [prefix, diagonal, everything], ids=lambda m: m.__name__)
def test_lists_give_what_the_function_gives(walked, mask, options):
    mine = with_gradients(inputs(), mask_mod=mask, **options)
    assert len(walked) == 1
    right = with_gradients(inputs(torch.float64), mask_mod=mask, **options)  # never by lists
    assert len(walked) == 1
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-5)


def test_lengths_are_not_forgotten_beside_a_mask(walked):
    starts = torch.tensor([0, 100], dtype=torch.int32)
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        with pytest.raises(fa3.InvalidArgument, match="cu_seqlens|expected .total"):
            fa3.flex_attention(*inputs(), mask_mod=prefix, **{name: starts})
    assert not walked


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (90, 40)}], ids=str)
@pytest.mark.parametrize("mask", [prefix, diagonal], ids=lambda m: m.__name__)
def test_sequences_of_their_own_lengths_have_lists_too(walked, mask, options):
    starts_q, starts_k = torch.tensor([[0, 140, 140, 300], [0, 200, 230, 420]], dtype=torch.int32)
    packed = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    packed |= {"max_seqlen_q": 160, "max_seqlen_k": 200} | options
    used = {"seqused_q": torch.tensor([250, 300], dtype=torch.int32), **options}
    used |= {"seqused_k": torch.tensor([420, 131], dtype=torch.int32)}

    def tensors(dtype, first):
        return [x[0].detach().requires_grad_() if first else x for x in inputs(dtype)]

    for lengths, first in ((packed, True), (used, False)):
        walked.clear()
        mine = with_gradients(tensors(torch.float32, first), mask_mod=mask, **lengths)
        assert len(walked) == 1
        right = with_gradients(tensors(torch.float64, first), mask_mod=mask, **lengths)
        assert len(walked) == 1
        for a, b in zip(mine, right, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-5)


def test_maps_of_much_padding_are_not_made(walked):
    q, k, v = (x[0].detach() for x in inputs())
    starts = torch.tensor([0, 10, 20, 300], dtype=torch.int32)
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 280}
    fa3.flex_attention(q, k[:300], v[:300], mask_mod=prefix, **lengths, max_seqlen_k=280)
    assert not walked


def test_hidden_blocks_are_not_read(walked):
    q, k, v = inputs()
    with torch.no_grad():
        v[:, 256:] = math.nan
    out = fa3.flex_attention(q, k, v, mask_mod=lambda b, h, q, k: k < 256)
    assert walked and out.isfinite().all()


def test_a_map_is_made_once_for_a_function_and_what_it_captures(walked, monkeypatch):
    made = []
    from_rule = masks.from_rule
    monkeypatch.setattr(masks, "from_rule", lambda *a, **k: made.append(1) or from_rule(*a, **k))
    owner = torch.arange(KEYS) // 150

    def documents(owner):
        return lambda b, h, q, k: owner[q] == owner[k]

    def call(owner, **options):
        return fa3.flex_attention(*inputs(), mask_mod=documents(owner), **options)

    first = call(owner)
    assert torch.equal(call(owner), first) and len(made) == 1
    assert walked[0] is walked[1] and len(walked[0].bits) > 0
    call(owner, causal=True)
    assert len(made) == 2
    call(owner.clone())
    assert len(made) == 3
    with torch.no_grad():
        owner[100:] = 7
    assert not torch.equal(call(owner), first) and len(made) == 4
    with torch.inference_mode():
        inside = call(owner)
    loss = fa3.flex_attention(*inputs(), mask_mod=documents(owner)).sum()
    loss.backward()  # may save the map
    assert len(made) == 4 and inside.isfinite().all()
    kept.table.keep("another", masks.BlockMask(owner, None), bytes=8)
    maps = [e for e in kept.table.entries.values() if e.bytes]
    assert len(maps) == 3  # none of the clone, which is gone
    assert kept.table.bytes == sum(e.bytes for e in maps)


def test_a_map_is_that_of_the_calls_mask_window_and_shapes(walked):
    owner = torch.arange(KEYS) // 150
    q, k, v = (x.detach() for x in inputs())
    calls = [
        (q, k, v),
        (q[:, :200], k, v),
        (q, k[:, :310], v[:, :310]),
        (q[:1], k[:1], v[:1]),
        (q[:, :, :2], k, v),
    ]

    def same(b, h, i, j):
        return owner[i] == owner[j] + h % 2

    for tensors in calls * 2:
        rows, keys, heads = tensors[0].shape[1], tensors[1].shape[1], tensors[0].shape[2]
        place = torch.arange(heads)[:, None, None], owner[:rows, None], owner[:keys]
        seen = (place[1] == place[2] + place[0] % 2)[None]
        for options in ({}, {"causal": True}, {"window": (70, 0)}):
            mine = fa3.flex_attention(*tensors, mask_mod=same, **options)
            torch.testing.assert_close(mine, fa3.attention(*tensors, bias=seen, **options))
    listed = len(walked)
    fa3.flex_attention(q, k, v, mask_mod=same)
    assert len(walked) == listed + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fa3.flex_attention(q, k, v, mask_mod=same)
    assert len(walked) == listed + 1


def test_a_map_is_not_that_of_a_tensor_that_is_gone(walked):
    q, k, v = (x.detach() for x in inputs())

    def compare(owner):
        mine = fa3.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: owner[i] == owner[j])
        seen = owner[:ROWS, None] == owner
        torch.testing.assert_close(mine, fa3.attention(q, k, v, bias=seen))

    numbers = [[key // keys for key in range(KEYS)] for keys in (100, 200, 300)]
    flex_functions.use_at_one_address([partial(torch.tensor, n) for n in numbers], compare)


def test_maps_are_kept_up_to_their_size(monkeypatch):
    monkeypatch.setattr(kept, "MOST_BYTES", 3 * 1024)
    table = kept.Table()
    table.keep("a decision", "lists")
    for name in "abcde":
        table.keep(name, name, bytes=1024)
    assert [*table.entries] == ["a decision", "c", "d", "e"]
    table.find("c")
    table.keep("f", "f", bytes=1024)
    assert [*table.entries] == ["a decision", "e", "c", "f"]
    table.keep("large", "large", bytes=4096)
    assert "large" not in table.entries and table.bytes == 3072


@pytest.mark.parametrize("mask", [prefix, diagonal], ids=lambda m: m.__name__)
def test_a_block_mask_of_fa3_beside_a_score_function(mask):
    made = masks.from_rule(mask, 2, HEADS, ROWS, KEYS, device="cpu")
    wrong = masks.BlockMask(made.blocks.clone(), made.bits)
    wrong.blocks[0, 0, 0, 0] = 10**6  # names no bits: hidden, as in the engines

    def squashed(score, b, h, q, k):
        return 3 * torch.tanh(score) + b

    tensors = inputs(torch.float64)
    right = with_gradients(tensors, score_mod=squashed, mask_mod=mask)
    mine = with_gradients(tensors, score_mod=squashed, block_mask=made)
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    hidden = fa3.flex_attention(*tensors, score_mod=squashed, block_mask=wrong)
    assert not torch.equal(hidden[0, :128, 0], mine[0][0, :128, 0])
    torch.testing.assert_close(hidden[0, 128:], mine[0][0, 128:])


def test_an_index_out_of_range_is_clamped_in_maps_too(walked):
    limit = torch.tensor([50, 100])
    q, k, v = inputs()
    mine = fa3.flex_attention(q, k, v, mask_mod=lambda b, h, q, k: k < limit[q + 7])
    right = fa3.attention(q, k[:, :100], v[:, :100])
    assert walked
    torch.testing.assert_close(mine, right)


def test_keys_that_are_hidden_from_all_queries_take_bits_of_one_row(walked):
    q, k, v = inputs()
    padding = torch.rand(2, 1, 1, KEYS, generator=torch.Generator().manual_seed(2)) < 0.6
    mine = fa3.attention(q, k, v, bias=padding)
    assert walked[0].blocks.shape == (2, 1, 3, 4) and len(walked[0].bits) == 2 * 4
    dense = padding.expand(-1, -1, ROWS, -1).contiguous()
    torch.testing.assert_close(mine, fa3.attention(q, k, v, bias=dense), rtol=0, atol=0)
    fa3.attention(q, k, v, bias=padding[:])  # the same memory, by another view
    assert walked[2] is walked[0] and len(walked[1].bits) == 2 * 3 * 4
    fa3.attention(q, k, v, bias=padding.expand(-1, HEADS, ROWS, -1))
    assert walked[3].blocks.shape == (2, 1, 3, 4) and len(walked[3].bits) == 2 * 4


def answer(supported, first_engine=True, reason=""):
    return Answer(supported, 0, first_engine, "", reason)


@pytest.mark.parametrize(
    ("of_lists", "of_function", "walks"),
    [
        (answer(True), None, True),  # nothing else is asked
        (answer(False), None, False),
        (answer(True, first_engine=False), answer(True), False),
        (answer(True, first_engine=False), answer(False), True),
    ],
)
def test_lists_win_by_the_first_engine_or_where_nothing_else_is_supported(
    of_lists, of_function, walks
):
    assert lists_win(of_lists, lambda: of_function) == walks


def test_the_library_is_asked_once_how_a_call_is_computed(monkeypatch):
    asked, query = [], attention._native.forward_query

    def question(score, q, k, v, *options):
        asked.append(Options(*options))
        return query(score, q, k, v, *options)

    monkeypatch.setattr(attention._native, "forward_query", question)
    q, k, v = (x.detach() for x in inputs())
    for _ in range(3):
        fa3.flex_attention(q, k, v, mask_mod=diagonal)
    assert len(asked) == 1
    blocks = [-(-rows // masks.BLOCK) for rows in (ROWS, KEYS)]
    assert asked[0].block_mask[4] == (1, 1, *blocks)


class OfAGpu:
    """Answers of a library with kernels, for device.plan_backward()."""

    def __init__(self, monkeypatch, supported):
        self.supported, self.asked = supported, []
        monkeypatch.setattr(device_of_scores, "ask", self.ask)

    def ask(self, question, function, max_rows, tensors, q, k, v, options, further):
        _, sums, _ = further
        way = "lists" if Options(*options).block_mask is not None else "function"
        self.asked.append((way, any(s is not None and s[1] for s in sums)))
        return answer(self.asked[-1] in self.supported, reason=f"not {len(self.asked)}")


LISTS, FUNCTION = "lists", "function"


@pytest.mark.parametrize(
    ("supported", "decided", "asked"),
    [
        ([(LISTS, True)], (True, 0), 1),
        ([(FUNCTION, True), (LISTS, False)], (False, 0), 2),
        ([(LISTS, False)], (True, None), 3),
        ([(FUNCTION, False)], (False, None), 4),
        ([], (False, None), 4),
    ],
)
def test_a_backward_pass_takes_the_best_that_is_supported(monkeypatch, supported, decided, asked):
    gpu = OfAGpu(monkeypatch, supported)
    bias = torch.zeros(2, HEADS, ROWS, 424, dtype=torch.bfloat16)
    scores = function_of(lambda s, b, h, q, k: s + bias[b, h, q, k])
    function, tensors = function_of(
        lambda s, b, h, q, k: s + bias[b, h, q, k], lambda b, h, q, k: k < 99
    )
    listed = Listed(scores[0], EVERY_KEY, before_map=Options().around_block_mask()[0])
    call = Decision(function, 1.0, EVERY_KEY, MOST_ROWS, False, True, listed=listed)
    q = torch.zeros(2, ROWS, HEADS, 64, dtype=torch.bfloat16)
    k = torch.zeros(2, 424, 2, 64, dtype=torch.bfloat16)
    lists_given = masks.BlockMask("blocks", "bits")
    given = call, (0,), (q, k, k), tensors, lists_given
    has_lists, stored, said = device_of_scores.plan_backward(*given)
    assert (has_lists, stored) == decided and len(gpu.asked) == asked
    assert said.supported == bool(supported) and (supported or said.reason == "not 4")


def test_what_is_captured_beside_a_mask_comes_first():
    slopes, owner = torch.rand(HEADS), torch.arange(KEYS) // 100

    def alibi(score, b, h, q, k):
        return score + slopes[h] * (k - q)

    def documents(b, h, q, k):
        return owner[q] == owner[k]

    function, tensors = function_of(alibi, documents)
    alone, first = function_of(alibi)
    assert attention.captures_first((alone, first), (function, tensors))
    assert [t is s for t, s in zip(tensors, (slopes, owner), strict=True)] == [True] * 2
    assert function.may_hide and not alone.may_hide
    other, first = function_of(lambda s, b, h, q, k: s + owner[k])
    assert not attention.captures_first((other, first), (function, tensors))


def learned_bias(tensor):
    return lambda s, b, h, q, k: s + tensor[h, k - q + ROWS]


SCORES = {
    "no function": lambda tensor: None,
    "a function of the score": lambda tensor: lambda s, b, h, q, k: 8 * torch.tanh(s / 8),
    "what learns": learned_bias,
    "both": lambda tensor: (
        lambda s, b, h, q, k: torch.tanh(s) + learned_bias(tensor)(s, b, h, q, k)
    ),
}


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("dim", [64, 72, 128])
@pytest.mark.parametrize("mask", [prefix, diagonal], ids=lambda m: m.__name__)
@pytest.mark.parametrize("score", SCORES)
def test_functions_beside_lists_are_those_of_float64(device, score, mask, dim):
    draw = torch.Generator().manual_seed(5)
    narrow = torch.bfloat16 if device == "cuda" else torch.float32

    def made(*shape):
        numbers = torch.randn(*shape, generator=draw).to(narrow)
        return numbers.to(device).requires_grad_()

    q, k, v = made(2, ROWS, HEADS, dim), made(2, KEYS, 2, dim), made(2, KEYS, 2, dim)
    table = made(HEADS, ROWS + KEYS)
    upstream = torch.randn(2, ROWS, HEADS, dim, generator=draw).to(device)

    def call(*tensors):
        score_mod = SCORES[score](tensors[3])
        out = fa3.flex_attention(*tensors[:3], score_mod=score_mod, mask_mod=mask, scale=0.2)
        learned = tensors if "learn" in score or score == "both" else tensors[:3]
        return out, *torch.autograd.grad((out * upstream).sum(), learned)

    mine = call(q, k, v, table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", device_of_scores.SlowScores)
        right = call(*(t.detach().double().requires_grad_() for t in (q, k, v, table)))
    step = torch.finfo(narrow).eps
    for a, b in zip(mine, right, strict=True):
        atol = max(4 * step, 5e-6) * b.abs().max().item()
        torch.testing.assert_close(a.double(), b, rtol=0, atol=atol)


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (90, 40)}], ids=str)
@pytest.mark.parametrize("score", [s for s in SCORES if s != "no function"])
def test_functions_beside_lists_of_sequences_of_their_own_lengths(device, score, options):
    draw = torch.Generator().manual_seed(6)
    narrow = torch.bfloat16 if device == "cuda" else torch.float32

    def made(*shape):
        return torch.randn(*shape, generator=draw).to(narrow).to(device).requires_grad_()

    packed = made(ROWS, HEADS, 64), made(KEYS, 2, 64), made(KEYS, 2, 64)
    batched = made(2, ROWS, HEADS, 64), made(2, KEYS, 2, 64), made(2, KEYS, 2, 64)
    table = made(HEADS, ROWS + KEYS)

    def of(*numbers):
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    starts = {"cu_seqlens_q": of(0, 140, 140, 300), "cu_seqlens_k": of(0, 200, 230, 420)}
    starts |= {"max_seqlen_q": 160, "max_seqlen_k": 200}
    used = {"seqused_q": of(250, 300), "seqused_k": of(420, 131)}

    def call(lengths, *tensors):
        score_mod = SCORES[score](tensors[3])
        out, lse = fa3.flex_attention(
            *tensors[:3], score_mod=score_mod, mask_mod=diagonal, scale=0.2, return_lse=True,
            **lengths, **options,
        )  # fmt: skip
        learned = tensors if "learn" in score or score == "both" else tensors[:3]
        upstream = torch.sin(torch.arange(out.numel(), device=device)).reshape(out.shape)
        loss = (out * upstream).sum() + lse.masked_fill(lse == -math.inf, 0).sum()
        return out, lse, *torch.autograd.grad(loss, learned)

    step = torch.finfo(narrow).eps
    for tensors, lengths in ((packed, starts), (batched, used)):
        mine = call(lengths, *tensors, table)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", device_of_scores.SlowScores)
            right = call(
                lengths, *(t.detach().double().requires_grad_() for t in (*tensors, table))
            )
        for a, b in zip(mine, right, strict=True):
            hidden = b == -math.inf
            assert torch.equal(hidden, a == -math.inf)
            a, b = (x.masked_fill(hidden, 0).double() for x in (a, b))
            atol = max(4 * step, 5e-6) * b.abs().max().item()
            torch.testing.assert_close(a, b, rtol=0, atol=atol)


def test_lists_beside_functions_keep_the_window_where_lengths_differ(monkeypatch):
    """What kernels are asked for: the mask in the map, causal masks and windows beside it."""
    calls = []

    def recorded(call, q, k, v, tensors, blocks, *_):
        calls.append((call.listed.score_only, Options(*call.listed.options_with(blocks))))
        return q, None

    monkeypatch.setattr(device_of_scores, "forward", recorded)
    monkeypatch.setattr(attention, "ask", lambda *_: answer(True))
    starts = torch.tensor([0, 140, 300], dtype=torch.int32)
    q, k, v = (x[0, :300].detach() for x in inputs())
    packed = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    packed |= {"max_seqlen_q": 160, "max_seqlen_k": 160}
    options = {"score_mod": lambda s, b, h, q, k: s * 2, "mask_mod": diagonal, "window": (90, 40)}
    fa3.flex_attention(q, k, v, **options, **packed)
    fa3.flex_attention(q[None], k[None], v[None], **options)
    (function, asked), (_, alike) = calls
    assert (asked.window_left, asked.window_right, alike.window_left) == (90, 40, -1)
    assert asked.cu_seqlens_q is starts and not function.may_hide
    assert asked.block_mask.shape == (2, 1, 2, 2)


def test_kernels_with_functions_do_not_read_what_lists_hide(device):
    if device == "cpu":
        pytest.skip("torch operations multiply what a function hides by 0")
    q, k, v = (x.detach().to(device, torch.bfloat16) for x in inputs())
    v[:, 256:] = math.nan
    out = fa3.flex_attention(
        q, k, v, score_mod=lambda s, b, h, q, k: s * 2, mask_mod=lambda b, h, q, k: k < 256
    )
    assert out.isfinite().all()


def test_a_captured_graph_makes_its_own_map(device):
    if device == "cpu":
        pytest.skip("graphs are a GPU's")
    q, k, v = (x.detach().to(device, torch.bfloat16) for x in inputs())
    owner = torch.arange(KEYS, device=device) // 150

    def call():
        return fa3.flex_attention(q, k, v, mask_mod=lambda b, h, q, k: owner[q] == owner[k])

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    owner.copy_(torch.arange(KEYS, device=device) // 90)
    graph.replay()
    torch.testing.assert_close(out, call(), rtol=0, atol=0)

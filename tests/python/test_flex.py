# SPDX-License-Identifier: Apache-2.0
"""fa3.flex_attention beside torch's own in float64, and beside finite differences."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import flex_functions as functions
import pytest
from builds import ROOT
from flex_functions import randn

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
from torch.nn.attention.flex_attention import (  # noqa: E402
    BlockMask,
    create_block_mask,
    noop_mask,
)
from torch.nn.attention.flex_attention import flex_attention as torchs  # noqa: E402

HEADS, KV_HEADS, ROWS, DIM = 4, 2, 40, 8


def inputs(rows=ROWS, keys=ROWS, batch=2, dtype=torch.float64):
    q = randn(batch, rows, HEADS, DIM, dtype=dtype, seed=11)
    k = randn(batch, keys, KV_HEADS, DIM, dtype=dtype, seed=12)
    v = randn(batch, keys, KV_HEADS, DIM, dtype=dtype, seed=13)
    return [x.requires_grad_() for x in (q, k, v)]


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


def test_an_index_out_of_range_is_clamped():
    table = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    q, k, v = inputs(rows=1, keys=9, batch=1)

    def lse(score_mod):
        return fa3.flex_attention(0 * q, k, v, score_mod=score_mod, return_lse=True)[1][0, 0, 0]

    beyond = lse(lambda s, b, h, i, j: table[j])
    clamped = torch.cat([table, table[2:].expand(6)]).logsumexp(0)
    torch.testing.assert_close(beyond, clamped)
    behind = lse(lambda s, b, h, i, j: table[j - 8])  # -8 .. -4: 0; -3 .. -1: from the end
    torch.testing.assert_close(behind, table[[0, 0, 0, 0, 0, 0, 1, 2, 0]].logsumexp(0))


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


@pytest.mark.parametrize(
    "result, got",
    [
        (lambda i, j: i - j, "a tensor of torch.int32"),
        (lambda i, j: 1, "1"),
        (lambda i, j: None, "None"),
    ],
)
def test_a_mask_that_is_no_boolean_is_refused(result, got):
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises(fa3.InvalidArgument, match=f"mask_mod: expected a boolean, .*, got {got}"):
        fa3.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: result(i, j))


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"scale": 0}, "scale: expected a finite number > 0"),
        ({"scale": -1.0}, "scale: expected a finite number > 0"),
        ({"scale": "1"}, "scale: expected a number"),
        ({"causal": "no"}, "causal: expected True or False"),
        ({"seqused_k": [3, 4]}, "seqused_k: expected a torch.Tensor"),
        ({"seqused_k": torch.tensor([3, 4])}, "seqused_k: expected int32 .*int64"),
    ],
)
def test_wrong_options_are_named(options, sentence):
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises((fa3.InvalidArgument, TypeError), match=sentence):
        fa3.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 1, **options)


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


REFUSED = {
    "reads the value": lambda s, b, h, q, k: s if q > k else -s,
    "aten.i0": lambda s, b, h, q, k: torch.special.i0(s),
    "a whole captured tensor of shape": lambda s, b, h, q, k: s + torch.ones(3)[None].sum(0)[:2],
    "captured tensor without elements": lambda s, b, h, q, k: s + torch.ones(3, 0).t()[h, q],
    "a row of a captured tensor": lambda s, b, h, q, k: s + torch.ones(3, 2).neg()[h],
    "a captured tensor of 5 dimensions": lambda s, b, h, q, k: s + torch.ones(1, 1, 1, 1, 1)[0 * h],
    "aten.add_": lambda s, b, h, q, k: s.add_(1),
    "computes with a NoneType": lambda s, b, h, q, k: None,
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_translated_is_named(sentence):
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises(fa3.Unsupported, match=sentence):
        fa3.flex_attention(q, k, v, score_mod=REFUSED[sentence])


def graph_of(score_mod):
    from fa3.flex.known_functions import function_of

    return function_of(score_mod)[0].graph


def test_captured_tensors_are_data_and_numbers_are_part_of_the_function():
    def with_number(x):
        return lambda s, b, h, q, k: s * x

    zero_dim, q, k, v = torch.tensor(2.0), *inputs(dtype=torch.float32)
    call = with_number(zero_dim)
    before = fa3.flex_attention(q, k, v, score_mod=call)
    zero_dim.fill_(-1.0)
    after = fa3.flex_attention(q, k, v, score_mod=call)
    torch.testing.assert_close(before, fa3.flex_attention(q, k, v, score_mod=with_number(2.0)))
    torch.testing.assert_close(after, fa3.flex_attention(q, k, v, score_mod=with_number(-1.0)))
    assert graph_of(call) is graph_of(with_number(zero_dim))
    assert graph_of(with_number(2.0)) is not graph_of(with_number(3.0))
    assert graph_of(with_number(1.0)) is not graph_of(with_number(1))


FACTOR = 2.0
SLOPES = torch.ones(HEADS)


def of_globals(s, b, h, q, k):
    scaled = lambda x: x * FACTOR  # noqa: E731
    return scaled(s) + SLOPES[h] * (k - q)


def test_globals_are_a_part_of_a_function_too(monkeypatch):
    from fa3.flex.known_functions import function_of

    first, _ = function_of(of_globals)
    assert function_of(of_globals)[0] is first
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    second, _ = function_of(of_globals)
    assert second is not first
    monkeypatch.setitem(globals(), "SLOPES", torch.zeros(HEADS))
    third, captured = function_of(of_globals)
    assert third is not second and captured[0] is SLOPES
    monkeypatch.setitem(globals(), "FACTOR", object)  # it cannot be told whether that changes
    with pytest.raises(TypeError):
        function_of(of_globals)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert graph_of(of_globals) is not graph_of(lambda *_: _[0] * FACTOR)


def helper(score):
    return score * FACTOR


def another_helper(score):
    return score * 2.0


def of_helper(s, b, h, q, k):
    return helper(s)


def changes():
    """Score functions that multiply by 1, and what makes them multiply by 2."""
    number, scalar, row = 1.0, torch.tensor(1.0), torch.ones(HEADS)

    def inner(s):
        return s * number

    def by_number(s, b, h, q, k):
        return s * number

    def by_inner(s, b, h, q, k):
        return inner(s)

    def by_scalar(s, b, h, q, k):
        return s * scalar

    def by_row(s, b, h, q, k):
        return s * row[h]

    def by_default(s, b, h, q, k, factor=1.0):
        return s * factor

    def by_keyword(s, b, h, q, k, *, factor=1.0):
        return s * factor

    def change(name):
        nonlocal number, scalar, row
        if name in ("by_number", "by_inner"):
            number = 2.0
        elif name == "by_scalar":
            scalar = torch.tensor(2.0)
        elif name == "by_row":
            row = torch.full((HEADS,), 2.0)
        elif name == "by_default":
            by_default.__defaults__ = (2.0,)
        elif name == "by_keyword":
            by_keyword.__kwdefaults__ = {"factor": 2.0}
        else:
            by_code.__code__ = doubled.__code__

    def by_code(s, b, h, q, k):
        return s * 1.0

    def doubled(s, b, h, q, k):
        return s * 2.0

    functions = by_number, by_inner, by_scalar, by_row, by_default, by_keyword, by_code
    return {f.__name__: f for f in functions}, change


@pytest.mark.parametrize("name", changes()[0])
def test_what_a_function_captures_is_looked_at_in_each_call(name):
    functions, change = changes()
    tensors = inputs(dtype=torch.float32)

    def call():
        return fa3.flex_attention(*tensors, score_mod=functions[name], scale=0.5)

    assert all(torch.equal(call(), fa3.flex_attention(*tensors, scale=0.5)) for _ in range(2))
    change(name)
    torch.testing.assert_close(call(), fa3.flex_attention(*tensors, scale=1.0))


def test_what_tells_functions_apart_tells_no_two_of_these_alike():
    from fa3.flex.known_functions import signature

    def of_cells(*values):
        first, second = values
        return lambda s, b, h, q, k: s * first + second

    def of_defaults(defaults, **keywords):
        def function(s, *others, **more):
            return s

        function.__defaults__, function.__kwdefaults__ = defaults, keywords
        return function

    zeros, ones = torch.zeros(2), torch.ones(2)
    numbers = (1, 1.0), (1, 1), (1, True), (1.0, 1), (0.0, 1), (-0.0, 1), ("1", 1), (None, 1)
    tensors = (zeros, 1), (ones, 1), (zeros, ones), (ones, zeros), (zeros[:1], 1)
    tuples = ((1, 2), 3), (1, (2, 3)), ((1,), 2), (((1,),), 2), ((), ())
    values = [*numbers, *tensors, *tuples]
    given = ((1, 2),), ((1,),), ((),), (((1, 2),),)
    named = of_defaults((), a=1), of_defaults((), b=1), of_defaults((1,), a=2)
    functions = [*(of_cells(*x) for x in values), *(of_defaults(*x) for x in given), *named]
    identities = [signature(f) for f in functions]
    assert None not in identities and len({*identities}) == len(functions)
    assert signature(of_cells(zeros, 1)) == signature(of_cells(zeros, 1))
    known = signature(of_cells(zeros, 1))
    zeros.requires_grad_()
    assert signature(of_cells(zeros, 1)) != known


def test_a_call_is_remembered_with_its_window_and_scale():
    q, k, v = inputs(dtype=torch.float32)
    slope = torch.tensor(2.0)

    def by_slope(s, b, h, i, j):
        return s * slope

    for _ in range(2):
        for options in ({}, {"causal": True}, {"window": (3, 0)}, {"scale": 0.3}):
            scale = options.get("scale", q.shape[-1] ** -0.5)
            mine = fa3.flex_attention(q, k, v, score_mod=by_slope, **options)
            right = fa3.attention(q, k, v, **{**options, "scale": scale * slope.item()})
            torch.testing.assert_close(mine, right)
        slope.fill_(0.5)


def test_a_tensor_that_has_another_ones_address_is_another_one():
    q, k, v = (x.detach() for x in inputs(dtype=torch.float32))  # no graph keeps the row

    def compare(row):
        mine = fa3.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * row[h], scale=0.5)
        torch.testing.assert_close(mine, fa3.attention(q, k, v, scale=0.5 * row[0].item()))

    rows = [partial(torch.full, (HEADS,), factor) for factor in (1.0, 2.0, 3.0)]
    functions.use_at_one_address(rows, compare)


def test_threads_have_functions_of_their_own():
    q, k, v = inputs(dtype=torch.float32)
    right = {x: fa3.attention(q, k, v, scale=0.5 * x) for x in (1.0, 2.0, 3.0, 4.0)}

    def call(factor):
        row = torch.full((HEADS,), factor)
        times = lambda s, b, h, i, j: s * row[h]  # noqa: E731
        return fa3.flex_attention(q, k, v, score_mod=times, scale=0.5)

    factors = [*right] * 10
    with ThreadPoolExecutor(4) as threads:
        for factor, mine in zip(factors, threads.map(call, factors), strict=True):
            torch.testing.assert_close(mine, right[factor])


shape = object()  # a global of which of_attribute() names an attribute alone


def of_attribute(s, b, h, q, k):
    return s * SLOPES.shape[0]


def test_names_of_attributes_are_no_globals(monkeypatch):
    from fa3.flex.known_functions import signature

    known = signature(of_attribute)
    assert known is not None
    monkeypatch.setitem(globals(), "shape", 2.0)
    assert signature(of_attribute) == known
    monkeypatch.setitem(globals(), "SLOPES", torch.ones(HEADS + 1))
    assert signature(of_attribute) != known


def test_options_are_in_the_order_of_the_table():
    from fa3._options import Options
    from fa3._options import in_order as of_table
    from fa3.flex import call
    from fa3.flex.call import EVERY_KEY, NO_LENGTHS, Listed, Window, deterministic, in_order
    from fa3.masks import BlockMask

    names = "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"
    lengths = {n: torch.full((), i) for i, n in enumerate(names)}
    lengths |= {"max_seqlen_q": 5, "max_seqlen_k": 6}
    blocks = BlockMask(torch.zeros(1), torch.ones(1))
    for window in (EVERY_KEY, Window(3, 0)):
        for of_lengths in (NO_LENGTHS, lengths, {**lengths, "deterministic": True}):
            for mask in ((None, None), blocks):
                mine = in_order(0.5, window, of_lengths, 4 * (of_lengths is lengths))
                mine = Listed(None, call.up_to_lists(mine)).options_with(mask)
                named = {"window": window, "scale": 0.5, "block_mask": mask, **of_lengths}
                named |= {"engine": "hopper"} if of_lengths is lengths else {}
                right = Options(*of_table("attention", named))
                for a, b in zip(Options(*mine), right, strict=True):
                    assert a is b or a == b
                assert Options(*deterministic(mine)).deterministic is True
                assert Options(*deterministic(mine))[:13] == Options(*mine)[:13]


def test_functions_in_globals_are_looked_at_in_each_call(monkeypatch):
    tensors = inputs(dtype=torch.float32)

    def call():
        return fa3.flex_attention(*tensors, score_mod=of_helper, scale=0.5)

    first = call()
    monkeypatch.setitem(globals(), "FACTOR", 4.0)  # named by what the function names
    torch.testing.assert_close(call(), fa3.flex_attention(*tensors, scale=2.0))
    monkeypatch.setitem(globals(), "helper", another_helper)
    torch.testing.assert_close(call(), first)


def test_a_captured_tensor_of_another_rank_is_another_function():
    scalar = torch.tensor(1.0)
    q, k, v = inputs(dtype=torch.float32)

    def score_mod(s, b, h, q, k):
        return s * scalar

    fa3.flex_attention(q, k, v, score_mod=score_mod)
    scalar.data = torch.ones(3)
    with pytest.raises(fa3.Unsupported, match="whole captured tensor"):
        fa3.flex_attention(q, k, v, score_mod=score_mod)


def test_another_device_is_seen():
    from fa3.flex import device, lists
    from fa3.flex.call import EVERY_KEY
    from fa3.flex.known_functions import function_of

    tensor, meta = torch.ones(2), torch.zeros(1, 200, 1, 8, device="meta")
    with pytest.raises(fa3.InvalidArgument, match="expected captured tensors on meta"):
        device.on_device_of(meta, [tensor])
    function = function_of(lambda s, b, h, q, k: torch.where(q < k + 7, s, float("-inf")))
    host = torch.zeros(1, 200, 1, 8)
    for q in (host, meta, host):
        made = lists.of_function(*function, EVERY_KEY, lists.Extents(1, 200, 200), 1, q.device)
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


def test_a_function_of_whole_tensors_is_traced_again():
    logits = torch.zeros(HEADS)
    q, k, v = inputs(dtype=torch.float32)

    def score_mod(s, b, h, i, j):
        return s * (2 * logits)[h]

    zero = fa3.flex_attention(q, k, v, score_mod=score_mod)
    logits.fill_(0.5)
    torch.testing.assert_close(
        fa3.flex_attention(q, k, v, score_mod=score_mod), fa3.attention(q, k, v)
    )
    assert not torch.allclose(zero, fa3.attention(q, k, v))


PAGE = re.findall(r"```python\n(.*?)```", (ROOT / "docs/flex.md").read_text(), re.DOTALL)
SHOWN = (
    *("torch.Size([8])", "tensor(True)", "True", "True", "torch.Size([2, 100, 8, 64])"),
    "torch.Size([2, 1, 8, 64])",
)


@pytest.mark.parametrize(("code", "shown"), zip(PAGE, SHOWN, strict=True))
def test_a_variant_of_the_page_runs(code, shown, capsys):
    exec(compile(code, "docs/flex.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == shown + "\n"

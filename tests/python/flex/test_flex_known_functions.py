# SPDX-License-Identifier: Apache-2.0
"""What is known of a score function serves calls of the same, and of no other: each number, tensor,
global and default that it names is looked at in each call."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from flex_functions import HEADS, inputs, use_at_one_address

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")


def graph_of(score_mod):
    from fa3.flex.functions import function_of

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
    from fa3.flex.functions import function_of

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
    from fa3.flex.kept import signature

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
    use_at_one_address(rows, compare)


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
    from fa3.flex.kept import signature

    known = signature(of_attribute)
    assert known is not None
    monkeypatch.setitem(globals(), "shape", 2.0)
    assert signature(of_attribute) == known
    monkeypatch.setitem(globals(), "SLOPES", torch.ones(HEADS + 1))
    assert signature(of_attribute) != known


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


def test_the_first_call_does_not_import_torchs_compiler():
    """Which takes seconds."""
    program = """
import sys, torch, fa3
q = torch.randn(1, 20, 4, 16, requires_grad=True)
slopes = torch.rand(4, requires_grad=True)
table = torch.rand(4, 40)
def score(s, b, h, i, j):
    s = torch.where(i % 3 == 2, torch.tanh(s / 2), s.clamp(max=5) ** 2)
    return s - slopes[h] * (i - j).abs() + table[h, i - j + 20]
out = fa3.flex_attention(q, q, q, score_mod=score, mask_mod=lambda b, h, i, j: i >= j)
out.sum().backward()
print(slopes.grad.shape, "torch._dynamo" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout == "torch.Size([4]) False\n", run.stderr

# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of a score function computes what the graph does: compiled as plain C++ here."""

import ctypes
import math

import flex_functions as functions
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
from compiled_text import (  # noqa: E402
    COMPILER,
    ERROR,
    HEADS,
    ROWS,
    GradientParams,
    captures_of,
    check,
    compiled,
    leaves_of,
    of_text,
    places,
)

from fa3.flex.function.interpret import add_into, evaluate  # noqa: E402
from fa3.flex.function.pieces import (  # noqa: E402
    ADDED,
    ANY,
    OF_KEY,
    OF_SCORE,
    gradient_texts_of,
    pieces_of,
)
from fa3.flex.function.text import MOST_ROWS  # noqa: E402
from fa3.flex.functions import function_of  # noqa: E402


@pytest.mark.parametrize("make", functions.ALL, ids=lambda make: make.__name__)
def test_text_computes_what_the_graph_does(make, tmp_path):
    check(make(HEADS, ROWS, torch.float32)[0], tmp_path)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32),
        *(torch.int16, torch.int8, torch.uint8, torch.bool),
    ],
)
def test_every_type_is_loaded(dtype, tmp_path):
    table = (functions.randn(ROWS, HEADS, seed=1) * 3).to(dtype).t()
    check(lambda s, b, h, q, k: s + table[h, k], tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_neighbouring_keys_are_taken_from_one_word(dtype, tmp_path):
    if COMPILER is None:
        pytest.skip("g++ is not installed")
    table = functions.randn(HEADS, ROWS, ROWS - 1, seed=1).to(dtype)[..., :-1]
    table = torch.nn.functional.pad(table, (0, 2))[..., :-1]  # odd extent, even strides
    function, _ = function_of(lambda s, b, h, q, k: torch.tanh(s) + table[h, q - k * 0, k])
    assert pieces_of(function).element is None  # its other indices name the key
    function, tensors = function_of(lambda s, b, h, q, k: torch.tanh(s) + table[h, q, k])
    assert pieces_of(function).element.kind == OF_SCORE
    where = places()
    scores = functions.randn(len(where), dtype=torch.float32, seed=9)
    captures, results = captures_of(tensors), torch.empty_like(scores)
    captures[0].extent_of_pairs = table.shape[-1]
    compute = compiled(function, tmp_path).compute_further
    arrays = (ctypes.c_void_p(x.data_ptr()) for x in (scores, where, results))
    compute(captures, *arrays, len(where))
    has_pair = where[:, 3] // 2 * 2 + 2 <= table.shape[-1]
    assert torch.equal(results.isfinite(), has_pair) and has_pair.sum() > len(where) // 2
    right = of_text(function, tensors, scores, where, tmp_path)
    torch.testing.assert_close(results[has_pair], right[has_pair], rtol=0, atol=0)


def pieces_of_mod(score_mod):
    return pieces_of(function_of(score_mod)[0])


def test_what_is_only_added_to_the_score_says_so():
    table, row = functions.randn(HEADS, ROWS, ROWS, seed=1), functions.randn(ROWS, seed=2)
    for added in (
        lambda s, b, h, q, k: s + table[h, q, k],
        lambda s, b, h, q, k: table[h, q, k] + s,
        lambda s, b, h, q, k: s + (table[h, q, k] + row[k]),
        lambda s, b, h, q, k: s - table[h, q, k],
    ):
        mine = pieces_of_mod(added)
        assert mine.kind == ADDED and "score;" not in mine.text.replace("namespace score;", "")
    for other in (
        lambda s, b, h, q, k: s + s * table[h, q, k],
        lambda s, b, h, q, k: s * 2 + table[h, q, k],
        lambda s, b, h, q, k: table[h, q, k] - s,
        lambda s, b, h, q, k: s + s,
    ):
        assert pieces_of_mod(other).kind == ANY


def test_what_is_loaded_ahead_is_the_only_one_of_16_bits():
    tables = functions.randn(2, HEADS, ROWS, seed=1).half()
    one, other, wide = tables[0], tables[1], tables[1].float()
    texts = {
        "one": lambda s, b, h, q, k: s * one[h, k] + wide[h, k],
        "none": lambda s, b, h, q, k: s * wide[h, k] + tables[0, 0, 0].clone()[...],
        "two": lambda s, b, h, q, k: s * one[h, k] * other[h, q],
        "distance": lambda s, b, h, q, k: s * one[h, q - k],
        "by the score": lambda s, b, h, q, k: s + one[(s > 0.0) * 1, k],
    }
    elements = {n: pieces_of_mod(f).element for n, f in texts.items()}
    assert elements.pop("one").kind == OF_KEY
    assert elements == dict.fromkeys(("none", "two", "distance", "by the score"))


def test_what_has_an_element_for_each_score_is_loaded_by_scores():
    table = functions.randn(HEADS, ROWS, ROWS, seed=1).half()
    texts = {
        "score": lambda s, b, h, q, k: s + table[h, q, k],
        "score of a number": lambda s, b, h, q, k: s + table[b * 0 + 1, q, k],
        "row before": lambda s, b, h, q, k: s + table[h, q - 1, k],
        "head of a row": lambda s, b, h, q, k: s + table[(h + q) % HEADS, q, k],
        "row and head": lambda s, b, h, q, k: s + table[q, h, k],
    }
    elements = {n: pieces_of_mod(f).element for n, f in texts.items()}
    by_key = {"row before", "head of a row", "row and head"}
    assert {n: e.kind for n, e in elements.items()} == {
        n: OF_KEY if n in by_key else OF_SCORE for n in texts
    }
    heads = {n: e.head_index for n, e in elements.items()}
    assert heads == {**dict.fromkeys(texts, 0), "score of a number": -1, "row and head": 1}


def test_tangents_are_repeated_where_nothing_is_loaded():
    factor = functions.randn(HEADS, dtype=torch.float32, seed=1)
    assert pieces_of_mod(lambda s, b, h, q, k: torch.tanh(s) * 3).repeats_tangents
    assert not pieces_of_mod(lambda s, b, h, q, k: torch.tanh(s) * factor[h]).repeats_tangents
    assert not pieces_of_mod(lambda s, b, h, q, k: s * 3).repeats_tangents


@pytest.mark.parametrize("divisor", [20.0, -3.0, 0.0, 3e38, math.inf])
def test_constants_divide_or_their_inverses_multiply(divisor, tmp_path):
    score_mod = lambda s, b, h, q, k: s / divisor  # noqa: E731
    check(score_mod, tmp_path)
    multiplies = 2.0**-126 <= abs(divisor) <= 2.0**126
    assert (" / " in pieces_of_mod(score_mod).text) != multiplies


def test_indices_are_clamped(tmp_path):
    table = functions.randn(5, dtype=torch.float32)
    check(lambda s, b, h, q, k: s + table[k - q] + table[k * 100000] + table[q - 3], tmp_path)


def test_integers_are_divided_as_in_torch(tmp_path):
    def divided(s, b, h, q, k):
        a, c = q - 10, k - 7
        towards_zero = torch.div(a, c, rounding_mode="trunc") + torch.fmod(
            a, torch.where(c == 0, 5, c)
        )
        return (
            s
            + a // c
            + (a % c) * 0.5
            + towards_zero * 0.25
            + (a << 2)
            + (a >> 1)
            + (q & k | 4)
            + (q ^ ~k)
        )

    check(divided, tmp_path)


def test_what_is_no_number_stays_so(tmp_path):
    nan, inf = float("nan"), float("inf")
    scores = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1e30, -1e30, 88.0] * 375)

    def hostile(s, b, h, q, k):
        x = torch.where(q < 5, torch.maximum(s, k * 1.0), torch.minimum(s, k * 1.0))
        x = torch.where(q < 10, x, torch.clamp(s, -3.0, 3.0))
        return torch.where(q < 15, x, torch.where(k < 10, torch.tanh(s), torch.sigmoid(s)))

    check(hostile, tmp_path, scores)
    check(lambda s, b, h, q, k: torch.where(q > k, s, -inf), tmp_path, scores)
    check(lambda s, b, h, q, k: torch.where(q > k, s, nan), tmp_path, scores)


def test_numbers_are_written_in_full(tmp_path):
    check(lambda s, b, h, q, k: s * 0.1 + 1e-40 - 3.4e38 + (1e300 * 0 + 2.0), tmp_path)
    check(lambda s, b, h, q, k: s * (q - 2147483647), tmp_path)


def test_bounds_of_integers_hold():
    from fa3.flex.function.trace import trace

    table = torch.arange(7)

    def many(s, b, h, q, k):
        x = [q - k, -q, q * -3, (q - k).abs(), torch.maximum(q - k, h), torch.clamp(q - 5, -2, 3)]
        x += [torch.where(q > k, q, -k), (q - 9) // 4, (q - k) % 6, table[q] + q, (q > k) + k]
        return s + sum(x)

    graph, where = trace(many)[0].graph, places()
    names = ("batch", "head", "query", "key")
    leaves = {"score": torch.zeros(len(where), dtype=torch.float64)}
    leaves |= dict(zip(names, where.long().unbind(-1), strict=True))
    numbers = [n for n, node in enumerate(graph.nodes) if node.kind == "int"]
    bounded = 0
    for number, value in zip(numbers, evaluate(graph, numbers, leaves, [table]), strict=True):
        least, largest = graph.bounds(number, ROWS)
        if least is not None:
            bounded += 1
            assert least <= value.min() and value.max() <= largest
    assert bounded > 15


def test_small_integers_become_floats_exactly(tmp_path):
    where = torch.tensor(
        [[0, 0, q, k] for q in (0, 1, MOST_ROWS - 1) for k in (0, 7, MOST_ROWS - 1)]
    )
    function, tensors = function_of(lambda s, b, h, q, k: s * 0 + (q - k) * 1.0)
    assert "small_to_float" in pieces_of(function).text
    assert "small_to_float" not in pieces_of(function, max_rows=2**31).text
    results = of_text(function, tensors, torch.zeros(len(where)), where.to(torch.int32), tmp_path)
    assert results.tolist() == [float(q - k) for _, _, q, k in where.tolist()]


def gradients_of_graph(function, tensors, gradient, scores, where, given):
    """The slope of each score, and the gradient of each captured tensor."""
    graph = function.graph
    leaves = leaves_of(scores, where)
    (slope,) = evaluate(
        graph, [gradient.score], {**leaves, "cotangent": torch.ones_like(leaves["score"])}, tensors
    )
    totals = [torch.zeros(t.shape, dtype=torch.float64) for t in tensors]
    leaves["cotangent"] = given.double()
    for load, value in gradient.loads:
        node = graph.nodes[load]
        values = evaluate(graph, [value, *node.arguments], leaves, tensors)
        of_value = torch.where(given == 0, 0, values[0]).expand(given.shape)
        add_into(totals[node.value], values[1:], of_value)
    return slope.expand(scores.shape), totals


def check_gradient(score_mod, folder):
    """Returns the texts, which compute what the graph of the gradient does."""
    if COMPILER is None:
        pytest.skip("g++ is not installed")
    function, tensors = function_of(score_mod)
    floats = [n for n, t in enumerate(tensors) if t.is_floating_point()]
    gradient = function.gradient(tuple(floats))
    texts = gradient_texts_of(function, gradient)
    where = places()
    scores, given = (functions.randn(len(where), dtype=torch.float32, seed=s) for s in (9, 10))
    given[::3] = 0
    slopes, mine = torch.empty_like(scores), [torch.zeros(t.shape) for t in tensors]
    params = GradientParams(captures_of(tensors))
    for to, total in zip(params.gradients, mine, strict=False):
        to.data = total.data_ptr()
        to.stride[: total.ndim] = total.stride()
    differentiate = compiled(function, folder, texts).differentiate
    arrays = (ctypes.c_void_p(x.data_ptr()) for x in (scores, given, where, slopes))
    differentiate(ctypes.byref(params), *arrays, len(scores))
    right_slopes, right = gradients_of_graph(function, tensors, gradient, scores, where, given)
    if texts.slope is not None:
        torch.testing.assert_close(slopes.double(), right_slopes, rtol=ERROR, atol=ERROR)
    for total, exact in zip(mine, right, strict=True):
        torch.testing.assert_close(total.double(), exact, rtol=2e-5, atol=2e-5)
    assert floats == [] or any(total.abs().sum() > 0 for total in mine)
    return texts


@pytest.mark.parametrize("make", functions.ALL, ids=lambda make: make.__name__)
def test_gradient_text_computes_what_the_graph_does(make, tmp_path):
    check_gradient(make(HEADS, ROWS, torch.float32)[0], tmp_path)


def test_gradients_are_summed_before_they_are_added(tmp_path):
    slopes, keys = functions.randn(HEADS, dtype=torch.float32), functions.randn(2, ROWS).float()
    table = functions.randn(ROWS, ROWS).float()

    def three(s, b, h, q, k):
        return (
            s
            + slopes[h] * (k - q)
            + slopes[(h + 1) % 3] * 0.5
            + keys[b, k]
            + table[q, k] * keys[0, k]
        )

    slope, gradients, use_score = check_gradient(three, tmp_path)
    assert slope is None and not use_score
    for name in ("add_for_tile<0>(", "add<0>(", "add_for_key<1>(", "add<1>(", "add<2>("):
        assert gradients.count(name) == 1


def test_hidden_keys_leave_the_slope_alone(tmp_path):
    inf = float("inf")

    def hides(s, b, h, q, k):
        return torch.where(k > q + 2, -inf, torch.where(q - k < 5, s + h, -inf))

    assert check_gradient(hides, tmp_path)[0] is None
    assert check_gradient(lambda s, b, h, q, k: torch.where(q > k, s, s * 2), tmp_path)[0]


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40])
def test_an_integer_beyond_32_bits_is_no_text_but_a_number_of_torch(number):
    def far(s, b, h, q, k):
        return torch.where((q * number + k) % 97 < 48, s, s * 2)

    function, _ = function_of(far)
    with pytest.raises(fa3.Unsupported, match=f"integer {number}, where a kernel's have 32 bits"):
        pieces_of(function)
    q, k, v = functions.inputs(dtype=torch.float32)
    place = torch.arange(functions.ROWS)
    factor = torch.where((place[:, None] * number + place) % 97 < 48, 1.0, 2.0)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) * q.shape[-1] ** -0.5
    p = (scores * factor).softmax(-1)
    right = torch.einsum("bhij,bjhd->bihd", p, v.repeat_interleave(2, 2))
    torch.testing.assert_close(fa3.flex_attention(q, k, v, score_mod=far), right)


@pytest.mark.parametrize("number", [2**31 - 1, -(2**31)])
def test_an_integer_of_32_bits_is_itself_in_the_text(number, tmp_path):
    check(lambda s, b, h, q, k: torch.where(q * 0 + number == number, s, 0.0), tmp_path)

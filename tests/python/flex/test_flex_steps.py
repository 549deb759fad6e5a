# SPDX-License-Identifier: Apache-2.0
"""What a function adds to the score, from key to key: lines, loads of what lies side by side."""

import re

import flex_functions as functions
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3", reason="the Python package is not built")
from compiled_text import COMPILER, HEADS, ROWS, check, of_text, places  # noqa: E402

from fa3.flex.function.pieces import (  # noqa: E402
    ADDED,
    ANY,
    CLAMPED_RUN,
    KEY_TERM,
    OF_KEY,
    ROW_LINE,
    ROW_LINES,
    RUN,
    gradient_texts_of,
    pieces_of,
)
from fa3.flex.functions import function_of  # noqa: E402

slopes = functions.randn(HEADS, dtype=torch.float32, seed=1)
of_rows = functions.randn(HEADS, ROWS, dtype=torch.float32, seed=2)
table = functions.randn(HEADS, 2 * ROWS, dtype=torch.float32, seed=3)
last = ROWS - 1

LINES = {
    "alibi": lambda s, b, h, q, k: s + slopes[h] * (k - q),
    "behind": lambda s, b, h, q, k: s - slopes[h] * (q - k),
    "of a number": lambda s, b, h, q, k: 0.25 * k + s,
    "of a head": lambda s, b, h, q, k: s - (q - k) / 2.0 ** (h + 1.0),
    "of a row": lambda s, b, h, q, k: s + (of_rows[h, q] * (2 * k - 3) + k) * 0.5,
}
TWO_LINES = {
    "alibi": lambda s, b, h, q, k: s - slopes[h] * (q - k).abs(),
    "and a line": lambda s, b, h, q, k: s + (q - 2 * k).abs() * 0.125 - k,
    "of floats": lambda s, b, h, q, k: s - torch.abs(k * 0.5 - q - 3.3),
}
NO_LINES = {
    "of the score": lambda s, b, h, q, k: s * 2 + k,
    "square": lambda s, b, h, q, k: s + k * k,
    "three": lambda s, b, h, q, k: s + (k - 3).abs() - (k - 7).abs(),
    "bent twice": lambda s, b, h, q, k: s + ((k - 7).abs() - 3).abs(),
    "clamped": lambda s, b, h, q, k: s + torch.clamp(k - q, min=-3) * 0.5,
    "divisor": lambda s, b, h, q, k: s + 1.0 / (k + 1.0),
    "steps": lambda s, b, h, q, k: s + k // 3,
    "truth": lambda s, b, h, q, k: s + (k > q) * 1.0,
    "no key": lambda s, b, h, q, k: s + slopes[h] * q,
    "a load": lambda s, b, h, q, k: s + table[h, k],
}
RUNS = {  # and their steps
    "distance": (lambda s, b, h, q, k: s + table[h, q - k + last], -1),
    "other distance": (lambda s, b, h, q, k: s + table[b, k - q] * slopes[h], 1),
    "every second": (lambda s, b, h, q, k: s - 0.5 * table[h, 2 * k - q], 2),
    "of 16 bits": (lambda s, b, h, q, k: s + table.half()[h, k - q], 1),
    "of a row": (lambda s, b, h, q, k: s + table[q % 3, k], 1),
    "of a row's square": (lambda s, b, h, q, k: s + table[h, k + (q * q) % 7], 1),
}
CLAMPED_RUNS = {
    "clamped": (lambda s, b, h, q, k: s + table[h, torch.clamp(q - k, -3, 9) + 3], -1),
    "with a bound": (lambda s, b, h, q, k: s + table[h, torch.clamp(k - q, min=b)], 1),
    "behind a bound": (lambda s, b, h, q, k: s + table[h, 5 - torch.clamp(q - k, -9, 5)], 1),
    "of the nearest": (lambda s, b, h, q, k: s + table[h, torch.minimum(k, q)], 1),
    "beyond the table": (lambda s, b, h, q, k: s + slopes[torch.clamp(k - q, 0, 9)], 1),
}
KEY_TERMS = {
    "keys": lambda s, b, h, q, k: s + table[h, k],
    "of 16 bits": lambda s, b, h, q, k: s - table.half()[b, k] * slopes[h],
    "every second": lambda s, b, h, q, k: s + (0.5 * table[h, 2 * k - 3] - slopes[h]),
    "of a head": lambda s, b, h, q, k: s + slopes[h],
    "computed": lambda s, b, h, q, k: torch.sin(0.1 * k) + s,
    "clamped": lambda s, b, h, q, k: s + slopes[torch.clamp(k - 4, 0, 3)],
    "two lines": lambda s, b, h, q, k: s - torch.abs(k * 0.5 - 3.3),
}
DISTANCES = {  # and their steps from key to key
    "before": (lambda s, b, h, q, k: s + table[h, q - k + last], -1),
    "behind": (lambda s, b, h, q, k: s * 2 + slopes[h] * table[b, k - q - 3], 1),
    "of a tensor of one dimension": (lambda s, b, h, q, k: s + slopes[k - q], 1),
}
NO_DISTANCES = {
    "keys": lambda s, b, h, q, k: s + table[h, k],
    "sum": lambda s, b, h, q, k: s + table[h, q + k],
    "every second": lambda s, b, h, q, k: s + table[h, 2 * (q - k)],
    "clamped": lambda s, b, h, q, k: s + table[h, torch.clamp(q - k, -3, 3) + 3],
    "of a row": lambda s, b, h, q, k: s + table[q % 3, q - k],
    "of scores": lambda s, b, h, q, k: s + table[q % 3, k],
}
NO_RUNS = {
    "of the score": lambda s, b, h, q, k: s * table[h, k],
    "two": lambda s, b, h, q, k: s + table[h, k] + slopes[k],
    "not the last": lambda s, b, h, q, k: s + table[k, q],
    "both": lambda s, b, h, q, k: s + table[k, k],
    "turns back": lambda s, b, h, q, k: s + table[h, (q - k).abs()],
    "from the end": lambda s, b, h, q, k: s + table[h, torch.clamp(q - k, -64, 63)],
    "two bounds of the key": lambda s, b, h, q, k: s + table[h, torch.minimum(k, 9 - k)],
    "each second time": lambda s, b, h, q, k: s + table[h, k // 2],
    "a step of its own": lambda s, b, h, q, k: s + table[h, k * h],
    "no key": lambda s, b, h, q, k: s + table[h, q],
}


def pieces_of_mod(score_mod):
    return pieces_of(function_of(score_mod)[0])


def steps_of(score_mod, where, folder):
    if COMPILER is None:
        pytest.skip("g++ is not installed")
    function, tensors = function_of(score_mod)
    given = function, tensors, torch.zeros(len(where)), where, folder
    return of_text(*given, "compute_further").double(), of_text(*given).double()


def at_next_keys(where):
    behind = where.clone()
    behind[:, 3] += 1
    return behind


@pytest.mark.parametrize("line", LINES)
def test_a_line_says_by_how_much_it_changes_from_key_to_key(line, tmp_path):
    assert pieces_of_mod(LINES[line])[::2] == (ROW_LINE, None)
    check(LINES[line], tmp_path)
    where = places()
    steps, before = steps_of(LINES[line], where, tmp_path)
    _, behind = steps_of(LINES[line], at_next_keys(where), tmp_path)
    torch.testing.assert_close(behind - before, steps, rtol=0, atol=1e-5)


@pytest.mark.parametrize("line", TWO_LINES)
def test_two_keys_of_one_step_lie_on_one_line(line, tmp_path):
    assert pieces_of_mod(TWO_LINES[line])[::2] == (ROW_LINES, None)
    check(TWO_LINES[line], tmp_path)
    where = places()
    steps, before = steps_of(TWO_LINES[line], where, tmp_path)
    others, behind = steps_of(TWO_LINES[line], at_next_keys(where), tmp_path)
    alike = steps == others
    assert alike.sum() > len(where) // 2 and not alike.all()
    torch.testing.assert_close((behind - before)[alike], steps[alike], rtol=0, atol=1e-5)


@pytest.mark.parametrize("other", NO_LINES)
def test_what_is_no_line_does_not_say_so(other):
    assert pieces_of_mod(NO_LINES[other]).kind in (ANY, ADDED, KEY_TERM)


@pytest.mark.parametrize("name", KEY_TERMS)
def test_what_queries_have_alike_is_a_term_of_its_key(name, tmp_path):
    """An operand of the tensor cores (src/engine/hopper/config/key_term.h)."""
    assert pieces_of_mod(KEY_TERMS[name])[::2] == (KEY_TERM, None)
    check(KEY_TERMS[name], tmp_path)


@pytest.mark.parametrize(
    "other",
    [
        lambda s, b, h, q, k: s + table[h, k] * q,
        lambda s, b, h, q, k: s * 2 + table[h, k],
        lambda s, b, h, q, k: s + 0.5 * k,
    ],
)
def test_what_is_no_term_of_a_key_does_not_say_so(other):
    assert pieces_of_mod(other).kind != KEY_TERM


@pytest.mark.parametrize("run", [*RUNS, *CLAMPED_RUNS])
def test_a_run_has_what_the_function_loads(run, tmp_path):
    score_mod, step = (RUNS | CLAMPED_RUNS)[run]
    check(score_mod, tmp_path)
    function, tensors = function_of(score_mod)
    mine = pieces_of(function)
    assert mine.kind == ADDED and mine.element.step == step
    assert mine.element.kind == (RUN if run in RUNS else CLAMPED_RUN)
    where = places()
    given = function, tensors, functions.randn(len(where)).float(), where, tmp_path
    by_runs, right = of_text(*given, "compute_further"), of_text(*given)
    inside = by_runs.isfinite()
    assert inside.sum() > len(where) // 4
    torch.testing.assert_close(by_runs[inside], right[inside], rtol=0, atol=0)


def test_a_run_is_not_inside_where_an_index_is_clamped_or_counts_from_the_end(tmp_path):
    if COMPILER is None:
        pytest.skip("g++ is not installed")
    row = functions.randn(7, dtype=torch.float32, seed=5)
    where = places()
    zeros = torch.zeros(len(where))
    for offset in (-3, 0):
        function, tensors = function_of(lambda s, b, h, q, k, o=offset: s + row[k + o] + 0.0 * q)
        found = of_text(function, tensors, zeros, where, tmp_path, "compute_further")
        first, key = (where[:, 3] - 5).clamp(min=0) + offset, where[:, 3] + offset
        assert torch.equal(found.isfinite(), (first >= 0) & (key < 7))
    strided = functions.randn(HEADS, 4 * ROWS, dtype=torch.float32)[:, ::2]
    function, tensors = function_of(lambda s, b, h, q, k: s + strided[h, k] + 0.0 * q)
    assert of_text(function, tensors, zeros, where, tmp_path, "compute_further").isnan().all()


@pytest.mark.parametrize("other", NO_RUNS)
def test_what_is_no_run_is_loaded_one_by_one(other):
    assert pieces_of_mod(NO_RUNS[other]).element is None


def gradients(score_mod):
    function, tensors = function_of(score_mod)
    return gradient_texts_of(function, function.gradient((*range(len(tensors)),))).gradients


@pytest.mark.parametrize("distance", DISTANCES)
def test_gradients_of_a_distance_are_added_up(distance):
    score_mod, step = DISTANCES[distance]
    assert re.search(rf"add_for_distance<\d, {step}>\(", gradients(score_mod))


@pytest.mark.parametrize("other", NO_DISTANCES)
def test_what_is_no_distance_is_added_otherwise(other):
    assert "add_for_distance" not in gradients(NO_DISTANCES[other])


def test_one_tensor_has_sums_of_distances():
    def two(s, b, h, q, k):
        return s + table[h, q - k] + slopes[k - q]

    text = gradients(two)
    assert text.count("add_for_distance<") == 1 and text.count("add<") == 1


def test_what_each_query_has_of_its_own_is_loaded_a_block_ahead():
    narrow = functions.randn(HEADS, ROWS, ROWS + 1, seed=6).half()
    mine = pieces_of_mod(lambda s, b, h, q, k: s + narrow[h, (q + 1) % ROWS, k])
    assert mine.element.kind == OF_KEY

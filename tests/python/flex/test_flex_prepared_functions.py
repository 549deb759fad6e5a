# SPDX-License-Identifier: Apache-2.0
"""What is decided of a call serves functions that are alike, and no others: globals, cells,
code and what they capture."""

import sys
import types

import flex_functions
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")


import warm_calls  # noqa: E402
from warm_calls import (  # noqa: E402
    BIAS,
    DIM,
    DRAW,
    ROWS,
    K,
    Q,
    V,
    alibi,
    attend,
    decided,  # noqa: F401
    documents,
    flex,
    is_recorded,
    is_seen,
    new_table,  # noqa: F401
    softcap,
)

from fa3.flex import kept  # noqa: E402

FACTOR, OPERATION = 2.0, torch.tanh
constants = types.ModuleType("constants")


def scaled_by_global(s, b, h, i, j):
    return s * FACTOR


def helped(s, b, h, i, j):
    return scaled_by_global(s, b, h, i, j) + 1


def by_operation(s, b, h, i, j):
    return OPERATION(s)


def of_module(s, b, h, i, j):
    return constants.turned(s * constants.factor + constants.row[h] * i)


def test_globals_are_looked_at(monkeypatch):
    def rebind(name, value, module=sys.modules[__name__]):
        return lambda: monkeypatch.setattr(module, name, value)

    slopes = rebind("SLOPES", torch.tensor([1.0, 0.125]), warm_calls)
    owner = rebind("OWNER", torch.arange(ROWS) // 5, warm_calls)
    changes = rebind("FACTOR", 3.0), rebind("FACTOR", -1), rebind("scaled_by_global", softcap)
    assert is_seen(lambda: flex(helped), *changes)
    assert is_seen(lambda: flex(alibi), slopes)
    # Built-in functions, of which each is as good a global as another.
    assert is_seen(lambda: flex(by_operation), rebind("OPERATION", torch.sin))
    assert is_seen(lambda: flex(mask_mod=documents), owner)


def test_what_a_function_names_of_modules_is_looked_at(monkeypatch):
    def of(name, value):
        return lambda: monkeypatch.setattr(constants, name, value, raising=False)

    of("turned", torch.sin)()
    of("row", torch.tensor([0.1, 0.2]))()
    of("factor", 2.0)()
    rows = torch.tensor([0.3, 0.1])
    changes = of("factor", 3.0), of("row", rows), of("turned", torch.tanh)
    assert is_seen(lambda: flex(of_module), *changes, lambda: rows.mul_(2))


def test_cells_defaults_attributes_and_code_are_looked_at():
    number, row, operation = 2.0, torch.tensor([0.5, 0.25]), torch.tanh

    def score_mod(s, b, h, i, j, factor=1.0, *, power=1.0):
        return operation(s * number * factor) + row[h] * power * j

    def other(s, b, h, i, j, factor=1.0, *, power=1.0):
        return operation(s * number * factor) - row[h] * power * j

    def change_cell(name):
        nonlocal number, row, operation
        number = 3.0 if name == "number" else number
        row = torch.tensor([1.0, 2.0]) if name == "row" else row
        operation = torch.sin if name == "operation" else operation

    assert is_seen(
        lambda: flex(score_mod),
        lambda: change_cell("number"),
        lambda: change_cell("row"),
        lambda: change_cell("operation"),
        lambda: setattr(score_mod, "__defaults__", (2.0,)),
        lambda: setattr(score_mod, "__kwdefaults__", {"power": 0.5}),
        lambda: setattr(score_mod, "__code__", other.__code__),
    )

    def with_attribute(s):
        return s * of_attribute.by

    def of_attribute():
        pass

    of_attribute.by = 2.0
    by_attribute = lambda s, b, h, i, j: with_attribute(s)  # noqa: E731
    assert is_seen(lambda: flex(by_attribute), lambda: setattr(of_attribute, "by", 4.0))


def test_captured_tensors_are_data(decided):  # noqa: F811
    slopes, owner = torch.tensor([0.5, 0.25]), torch.arange(ROWS) // 7

    def score_mod(s, b, h, i, j):
        return s + slopes[h] * (j - i)

    def mask_mod(b, h, i, j):
        return owner[i] == owner[j]

    for options in ({}, {"mask_mod": mask_mod}):
        assert is_seen(lambda o=options: flex(score_mod, **o), lambda: slopes.mul_(-1))
    assert is_seen(lambda: flex(mask_mod=mask_mod), lambda: owner.add_(torch.arange(ROWS) % 2))
    seen = torch.rand(ROWS, ROWS, generator=DRAW) < 0.5
    for tensor in (slopes.clone(), BIAS.clone(), seen):
        name = "alibi_slopes" if tensor.ndim == 1 else "bias"
        change = tensor.logical_not_ if tensor.dtype == torch.bool else lambda t=tensor: t.mul_(-1)
        assert is_seen(lambda n=name, t=tensor: attend(**{n: t}), change)
    decided.clear()
    flex(score_mod)
    slopes.mul_(2)
    flex(score_mod)
    assert len(decided) == 1  # a warm call reads them


def test_a_tensor_that_is_out_of_sight_is_looked_at(monkeypatch):
    row = torch.tensor([0.5, 0.25])
    monkeypatch.setattr(constants, "box", types.SimpleNamespace(row=row), raising=False)
    call = lambda: flex(lambda s, b, h, i, j: s * constants.box.row[h])  # noqa: E731
    assert not is_recorded(call())
    row.requires_grad_()
    assert is_recorded(call())


def test_a_number_that_is_read_from_a_tensor_is_read_in_each_call():
    row = torch.tensor([0.5, 0.25])
    call = lambda: flex(lambda s, b, h, i, j: s * row.sum().item())  # noqa: E731
    assert is_seen(call, lambda: row.mul_(3))


def test_lists_of_what_does_not_count_its_writes_are_made_in_each_call():
    with torch.inference_mode():
        owner = torch.arange(ROWS) // 7
    mask_mod = lambda b, h, i, j: owner[i] == owner[j]  # noqa: E731

    def change():
        with torch.inference_mode():
            owner.add_(torch.arange(ROWS) % 2)

    for options in ({}, {"score_mod": softcap}):
        assert is_seen(lambda o=options: flex(mask_mod=mask_mod, **o), change)


def test_what_a_tensor_is_like_is_looked_at():
    tensor = torch.tensor([0.5, 0.25])
    limit = 3

    def score_mod(s, b, h, i, j):
        return s + tensor[h] * j if tensor.dtype == torch.float32 else s - tensor[h] * j

    assert is_seen(
        lambda: flex(score_mod), lambda: setattr(tensor, "data", torch.ones(2, dtype=torch.float64))
    )

    def by_shape(s, b, h, i, j):
        return s * tensor.shape[0] * limit

    assert is_seen(lambda: flex(by_shape), lambda: setattr(tensor, "data", torch.ones(5)))
    with pytest.raises(fa3.Unsupported, match="whole captured tensor"):
        flex(lambda s, b, h, i, j: s + tensor)


def test_a_tensor_that_is_gone_is_not_another_one():
    """Also one whose elements no function reads."""

    def use(marked):
        out = flex(lambda s, b, h, i, j: s * marked.factor)
        forget_nothing = fa3.attention(Q, K, V, scale=DIM**-0.5 * marked.factor)
        torch.testing.assert_close(out, forget_nothing)

    def make(factor):
        tensor = torch.zeros(3)
        tensor.factor = factor
        return tensor

    flex_functions.use_at_one_address([lambda x=x: make(x) for x in (1.0, 2.0, 3.0)], use)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_what_stops_a_program_is_not_swallowed(raised, monkeypatch):
    def names_of(code):
        raise raised

    class Refusing(torch.Tensor):
        __dlpack_c_exchange_api__ = None
        raises = ValueError

        @property
        def shape(self):
            raise self.raises

    def asked_of_a_module(s, b, h, i, j):
        return s * constants.refusing

    def asked_of_a_library(s, b, h, i, j):
        return s * torch.refusing

    captured = torch.ones(2).as_subclass(Refusing)
    by_cell = lambda s, b, h, i, j: s * captured  # noqa: E731
    for module in (constants, torch):
        monkeypatch.setattr(module, "refusing", captured, raising=False)
    assert kept.signature(by_cell) is kept.signature(asked_of_a_module) is None
    assert kept.signature(asked_of_a_library) is not None
    Refusing.raises = raised
    for function in (by_cell, asked_of_a_module, asked_of_a_library):
        with pytest.raises(raised):
            kept.signature(function)
    monkeypatch.setattr(kept, "names_of", names_of)
    with pytest.raises(raised):
        kept.signature(lambda s, b, h, i, j: s)

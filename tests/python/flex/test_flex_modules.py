# SPDX-License-Identifier: Apache-2.0
"""Functions that read a module of the user's own, or what no signature shows, are right after each
change; those of what can be told are known again."""

import functools
import math
import operator
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import numpy as np  # noqa: E402
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks  # noqa: E402
from warm_calls import ROWS, flex, is_seen, new_table  # noqa: E402, F401

from fa3.flex.kept import signature  # noqa: E402

SOURCE = """
def near(i, j):
    return (i - j).abs() <= WIDTH

def same(i, j):
    return OWNER[i] == OWNER[j]
"""
HERE = sys.modules[__name__]
limit = sys.getrecursionlimit
WIDE = 5


@pytest.fixture
def settings(monkeypatch):
    made = types.ModuleType("settings")
    exec(SOURCE, made.__dict__)
    made.WIDTH, made.OWNER = 3, torch.arange(ROWS) // 7
    made.config, made.table = types.SimpleNamespace(width=3), {"width": [3]}
    made.part = types.ModuleType("settings.part")
    exec(SOURCE, made.part.__dict__)
    made.part.WIDTH = 3
    monkeypatch.setitem(sys.modules, "settings", made)
    monkeypatch.setattr(HERE, "settings", made, raising=False)
    monkeypatch.setattr(HERE, "WIDE", 3)
    return made


def width_of(module):
    return module.WIDTH


def by_import(b, h, i, j):
    from settings import WIDTH

    return (i - j).abs() <= WIDTH


def by_cell():
    import settings

    return lambda b, h, i, j: settings.near(i, j)


def by_default(b, h, i, j, module=None):
    return (i - j).abs() <= module.WIDTH


def set_width(module):
    module.WIDTH = 9


def set_owner(module):
    module.before = module.OWNER  # which still exists
    module.OWNER = torch.arange(ROWS) // 4


def set_item(module):
    module.table["width"][0] = 9


# Each: a mask, and what changes what it shows.
READERS = {
    "a function of it": (lambda b, h, i, j: settings.near(i, j), set_width),
    "a function of its part": (
        lambda b, h, i, j: settings.part.near(i, j),
        lambda m: set_width(m.part),
    ),
    "a tensor of it": (lambda b, h, i, j: settings.same(i, j), set_owner),
    "an object of it": (
        lambda b, h, i, j: (i - j).abs() <= settings.config.width,
        lambda m: setattr(m.config, "width", 9),
    ),
    "a list of it": (lambda b, h, i, j: (i - j).abs() <= settings.table["width"][0], set_item),
    "an import": (by_import, set_width),
    "getattr": (lambda b, h, i, j: (i - j).abs() <= getattr(settings, "WIDTH"), set_width),  # noqa: B009
    "an argument": (lambda b, h, i, j: (i - j).abs() <= width_of(settings), set_width),
    "a tuple": (lambda b, h, i, j: (i - j).abs() <= (settings,)[0].WIDTH, set_width),
    "globals": (
        lambda b, h, i, j: (i - j).abs() <= globals()["WIDE"],
        lambda m: setattr(HERE, "WIDE", 9),
    ),
    "a module that makes its attributes": (
        lambda b, h, i, j: (i - j).abs() <= settings.made,
        lambda m: setattr(m, "__getattr__", lambda name: 9),
    ),
    "a function of Python's": (
        lambda b, h, i, j: (i - j).abs() <= limit() % 100,
        lambda m: sys.setrecursionlimit(1009),
    ),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("as_mask", [True, False])
def test_what_is_read_of_a_module_is_looked_at(settings, name, as_mask):
    mask, change = READERS[name]
    settings.__getattr__ = lambda name: 3
    score = lambda s, b, h, i, j: torch.where(mask(b, h, i, j), s, -math.inf)  # noqa: E731
    before = limit()
    sys.setrecursionlimit(1003)
    try:
        assert is_seen(
            lambda: flex(mask_mod=mask) if as_mask else flex(score), lambda: change(settings)
        )
    finally:
        sys.setrecursionlimit(before)


def test_a_module_in_a_cell_or_a_default_is_looked_at(settings):
    mask = by_cell()
    assert is_seen(lambda: flex(mask_mod=mask), lambda: set_width(settings))
    assert signature(mask) is not None
    settings.WIDTH = 3
    by_default.__defaults__ = (settings,)
    assert is_seen(lambda: flex(mask_mod=by_default), lambda: set_width(settings))
    by_default.__defaults__ = (None,)


def test_functions_of_libraries_and_modules_are_known_again(settings):
    functional, gelu = torch.nn.functional, torch.nn.functional.gelu

    def inner(x):
        return settings.near(x, 0) & torch.nn.functional.relu(x).bool()

    known = [
        READERS["a function of it"][0],
        READERS["a function of its part"][0],
        READERS["a tensor of it"][0],
        lambda s, b, h, i, j: torch.where(i > j, s, -math.inf) + math.log(2) + np.pi,
        lambda s, b, h, i, j: torch.nn.functional.silu(functional.softplus(gelu(s))),
        lambda s, b, h, i, j: functools.reduce(operator.and_, [i > 3, j > 3], i >= 0),
        lambda s, b, h, i, j: s * max(2.0, abs(-3)) + float(len((1, 2))),
        lambda s, b, h, i, j: torch.ops.aten.tanh(s).to(torch.float32),
        lambda b, h, i, j: inner(i - j),
        or_masks(and_masks(READERS["a function of it"][0], noop_mask), noop_mask),
    ]
    for number, function in enumerate(known):
        told = signature(function)
        assert told is not None and told == signature(function), number
    assert len({signature(function) for function in known}) == len(known)

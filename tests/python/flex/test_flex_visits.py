# SPDX-License-Identifier: Apache-2.0
"""How many functions of the package a call visits between the public function and the C ABI: a
reader follows that path. The kernel is a stand-in, since a CPU has none."""

import sys
from pathlib import Path

import pytest
from flex_functions import HEADS, ROWS, randn
from warm_calls import kernels_on_the_cpu

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

PACKAGE = str(Path(fa3.__file__).parent)
DIM = 64
SLOPES = torch.tensor([2.0**-h for h in range(HEADS)])


def inputs(rows):
    return [randn(2, rows, HEADS, DIM, dtype=torch.bfloat16, seed=n) for n in range(3)]


def attend(tensors):
    rows = tensors[0].shape[1]
    bias = torch.zeros(HEADS, rows, rows, dtype=torch.bfloat16)
    return lambda: fa3.attention(*tensors, bias=bias, causal=True, scale=0.1)


def flex(tensors):
    alibi = lambda s, b, h, i, j: s + SLOPES[h] * (j - i)  # noqa: E731
    return lambda: fa3.flex_attention(*tensors, score_mod=alibi, causal=True, scale=0.1)


@pytest.fixture
def visited(monkeypatch):
    """visited(call): the functions of fa3 that the call visits, comprehensions aside, up to the
    kernel's own."""
    kernels = []
    kernels_on_the_cpu(monkeypatch, lambda *given: kernels.append(given))

    def of(call):
        names = []

        def see(frame, event, _):
            code = frame.f_code
            is_ours = code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")
            if event == "call" and is_ours:
                names.append((Path(code.co_filename).name, code.co_name))

        before = len(kernels)
        sys.setprofile(see)
        try:
            call()
        finally:
            sys.setprofile(None)
        assert len(kernels) == before + 1
        return [*dict.fromkeys(names)]

    return of


@pytest.mark.parametrize(("call_of", "most_warm"), [(attend, 13), (flex, 10)])
def test_a_call_visits_few_functions(visited, call_of, most_warm):
    visited(call_of(inputs(ROWS)))  # which traces the function
    call = call_of(inputs(ROWS + 8))
    first, warm = visited(call), visited(call)
    assert len(first) <= 30, first
    assert len(warm) <= most_warm, warm

# SPDX-License-Identifier: Apache-2.0
"""Signatures of the API reference have the types of the stubs (docs/reference/extensions)."""

import sys

import pytest
from builds import ROOT

pytest.importorskip("fa3", reason="the Python package is not built")
sys.path.insert(0, str(ROOT / "docs" / "reference" / "extensions"))
import stub_types

import fa3


def typed(function, signature):
    return stub_types.typed(None, "function", "", function, None, signature, "")


def test_options_and_results_have_types():
    signature, result = typed(fa3.attention, "(q, k, *, causal=False, window=(-1, -1))")
    window = "window: Sequence[int | None] | None=(-1, -1)"
    assert signature == f"(q: Array, k: Array, *, causal: bool=False, {window})"
    assert result == "Array | tuple[Array, Array] | tuple[Array, ...]"


def test_a_function_without_a_stub_keeps_its_signature():
    assert typed(fa3.errors.Error, "(sentence)") is None
    assert typed(len, "(x)") is None

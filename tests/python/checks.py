# SPDX-License-Identifier: Apache-2.0
"""Comparison element by element, with the coordinates of the worst one in the message; and of
signatures.
"""

import inspect

import numpy as np
import pytest


def assert_within(name, actual, expected, bound):
    """|actual - expected| <= bound everywhere; equal infinities and NaN agree."""
    assert actual.shape == expected.shape, f"{name}: {actual.shape} is not {expected.shape}"
    actual, bound = np.asarray(actual, np.float64), np.broadcast_to(bound, expected.shape)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        excess = np.where(same, 0.0, abs(actual - expected) / np.maximum(bound, 1e-300))
    excess = np.where(np.isnan(excess), np.inf, excess)
    if excess.size and excess.max() > 1.0:
        at = np.unravel_index(excess.argmax(), excess.shape)
        pytest.fail(
            f"{name}{list(map(int, at))}: expected {expected[at]:.9g} +- {bound[at]:.2g}, "
            f"got {actual[at]:.9g}"
        )


def signature_of(function):
    """As text and without types, as it is recorded of the originals."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))

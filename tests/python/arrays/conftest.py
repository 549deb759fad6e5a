# SPDX-License-Identifier: Apache-2.0
"""What the tests of arrays share."""

import pytest
from jax_arrays import random_arrays


@pytest.fixture
def qkv():
    return random_arrays((2, 10, 4, 16), (2, 12, 2, 16), (2, 12, 2, 24))

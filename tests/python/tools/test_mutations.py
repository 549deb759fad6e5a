# SPDX-License-Identifier: Apache-2.0
"""Every mutation of tools/mutation_check.py still fits the sources; running them takes an hour."""

import sys

from builds import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from mutation_check import mutations


def test_every_mutation_names_code_that_stands_once_in_its_file():
    found = mutations()
    assert len(found) >= 20
    for what, path, old, new in found:
        assert (ROOT / path).read_text().count(old) == 1, what
        assert old != new, what

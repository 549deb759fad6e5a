# SPDX-License-Identifier: Apache-2.0
"""The examples with pictures: they print what their pages show, and draw."""

import re
import sys

import builds
import numpy as np
import pytest
from builds import ROOT

pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")

sys.path.insert(0, str(ROOT / "examples" / "pictures"))
import attention_of_a_sentence


def shown_and_printed(name, tmp_path):
    page = (ROOT / "docs" / "examples" / f"{name}.md").read_text()
    (shown,) = re.findall(r"```\n\$ python3 \S+\n(.*?)```", page, re.DOTALL)
    program = ROOT / "examples" / "pictures" / f"{name.replace('-', '_')}.py"
    picture = tmp_path / "picture.svg"
    printed = builds.run(sys.executable, program, "--out", picture)
    assert "</svg>" in picture.read_text()
    return shown, printed


def test_the_sentence_prints_what_its_page_shows(tmp_path):
    shown, printed = shown_and_printed("attention-of-a-sentence", tmp_path)
    assert shown == printed


def test_the_weights_are_those_of_the_formula():
    q, k = (np.load(ROOT / f"examples/data/minilm_layer2_{n}.npy").astype(np.float64) for n in "qk")
    scores = np.einsum("bqhd,bkhd->bhqk", q, k)[0] / np.sqrt(q.shape[-1])
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(attention_of_a_sentence.weights(2), expected, atol=1e-5)


def test_memory_prints_the_page_s_scores(tmp_path):
    """The workspace is the machine's."""
    shown, printed = shown_and_printed("memory-against-length", tmp_path)
    columns = [[line.split()[:3] for line in text.splitlines()] for text in (shown, printed)]
    assert columns[0] == columns[1]

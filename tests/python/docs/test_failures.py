# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/failures show what they say: their snippets print it, their commands run."""

import re
import subprocess
import sys

import builds
import pytest
from builds import ROOT

pytest.importorskip("fa3", reason="the Python package is not built")

import fa3

PAGES = sorted(set((ROOT / "docs/failures").glob("*.md")) - {ROOT / "docs/failures/index.md"})
ENDS_WITH = {"unsupported-gpu": (3, "no engine can run this call: hopper: ")}  # code, sentence


def blocks(page, language):
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in fences if name == language]


def named(page):
    return page.stem


def test_every_story_has_its_page():
    stories = ["head-counts", "nan", "odd-lengths", "tensor-order", "unsupported-gpu"]
    assert [page.stem for page in PAGES] == stories


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_snippet_prints_what_the_page_shows(page):
    (code,), (output,) = blocks(page, "python"), blocks(page, "output")
    if "hopper" in output and "hopper" not in [name for name, *_ in fa3.engines()]:
        pytest.skip("the page shows a build with CUDA, this one has none")
    assert builds.run(sys.executable, "-c", code) == output


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "")], ids=named)
def test_a_command_ends_as_the_page_says(page):
    (line,) = blocks(page, "")
    command = [builds.program("fa3"), *line.split()[1:]]
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=hidden, check=False)
    code, sentence = ENDS_WITH.get(page.stem, (0, ""))
    assert done.returncode == code and sentence in done.stderr, done.stdout + done.stderr


def test_every_link_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"

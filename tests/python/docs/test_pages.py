# SPDX-License-Identifier: Apache-2.0
"""Every block of Python on the pages for users runs as pasted and prints what the page shows."""

import importlib.util
import os
import re
import sys

import builds
import pytest
from builds import ROOT

PAGES = [
    *("index", "install", "quickstart", "features", "masks", "block-masks", "environment"),
    "monitoring",
    *("flex", "score-functions", "gate", "fp8", "mla"),
    *("examples/attention-of-a-sentence", "examples/memory-against-length"),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n(?:\n```output\n(.*?)^```)?", re.M | re.S)


def blocks(page, language):
    """(code, what the page shows that it prints, or "")."""
    text = (ROOT / f"docs/{page}.md").read_text()
    return [(code, shown) for of, code, shown in FENCE.findall(text) if of == language]


BLOCKS = [
    pytest.param(code, shown, id=f"{page}-{number}")
    for page in PAGES
    for number, (code, shown) in enumerate(blocks(page, "python"))
]
# What the pages import without fa3's package, and is not there in every environment.
OPTIONAL = ("torch", "transformers", "jax")


@pytest.mark.parametrize(("code", "shown"), BLOCKS)
def test_a_block_prints_what_the_page_shows(code, shown):
    pytest.importorskip("fa3", reason="the Python package is not built")
    for package in OPTIONAL:
        imported = re.search(rf"^(?:import|from) {package}\b", code, re.M)
        if imported and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    printed = builds.run(sys.executable, "-W", "ignore", "-c", code, env=hidden)
    assert printed.strip() and (not shown or printed == shown)


def test_the_quick_start_shows_the_embedding_examples():
    for language, name in (("cpp", "embed.cpp"), ("c", "embed_c.c")):
        ((shown, _),) = blocks("quickstart", language)
        example = (ROOT / "examples/embed" / name).read_text()
        assert example[example.index("#include") :] == shown


@pytest.mark.parametrize("name", ["embed", "embed_c"])
def test_an_embedding_example_runs(name):
    assert "o[0] = " in builds.run(builds.program(name))


def test_every_environment_variable_is_on_its_page():
    """Variables that the library, the command and the package read."""
    text = (ROOT / "docs/environment.md").read_text()
    read = re.compile(r'(?:getenv|environ\.get|environment)\(\s*"(\w+)"|^SWITCH = "(\w+)"', re.M)
    sources = [
        path
        for folder in ("src", "python")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".cpp", ".h", ".py", ".cu", ".cuh")
    ]
    found = {"".join(names) for path in sources for names in read.findall(path.read_text())} - {
        "HOME"
    }
    assert len(found) >= 10
    assert sorted(name for name in found if f"`{name}`" not in text and name not in text) == []


def test_every_page_is_in_the_menu():
    """A page in no table of contents cannot be found from the landing page."""
    listed = set()
    for page in (ROOT / "docs").rglob("*.md"):
        for toctree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.S):
            for line in toctree.splitlines():
                if line and not line.startswith(":"):
                    listed.add((page.parent / f"{line}.md").resolve())
    pages = {path.resolve() for path in (ROOT / "docs").rglob("*.md")} - {ROOT / "docs/index.md"}
    assert sorted(str(page.relative_to(ROOT)) for page in pages - listed) == []

# SPDX-License-Identifier: Apache-2.0
"""Every block of Python on the pages of docs/callers runs as pasted, on the CPU."""

import ast
import importlib.util
import re

import pytest
from builds import ROOT

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3", reason="the Python package is not built")
front = pytest.importorskip("fa3.torch")

PAGES = sorted((ROOT / "docs" / "callers").glob("*.md"))
BLOCKS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


def imported(code):
    """Names of the modules that a block imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.fixture
def torch_as_it_was():
    yield
    front.disable_sdpa()


@pytest.mark.parametrize("code", BLOCKS)
def test_a_block_runs(code, capsys, one_thread, torch_as_it_was):
    for module in imported(code):
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            adopted = " (fa3 adopt; test_adopt.py)" if package.startswith("flash_attn") else ""
            pytest.skip(f"{package} is not installed here{adopted}")
    exec(compile(code, "block", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()  # each ends by showing what came out


def test_the_overview_leads_to_every_page():
    overview = (ROOT / "docs/callers/index.md").read_text()
    assert len(BLOCKS) >= 3
    assert [p.name for p in PAGES if f"({p.name})" not in overview and p.stem != "index"] == []

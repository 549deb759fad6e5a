# SPDX-License-Identifier: Apache-2.0
"""The package as a thing to install: what it imports, what it exports, what its stubs say."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import ops  # noqa: E402

PACKAGE = Path(fa3.__file__).parent


def imported_by(statement):
    code = f"import sys; {statement}; print(*sorted(sys.modules))"
    return subprocess.check_output([sys.executable, "-c", code], text=True).split()


def test_import_needs_numpy_and_nothing_else():
    extra = {name.split(".")[0] for name in imported_by("import fa3")}
    extra -= {name.split(".")[0] for name in imported_by("import numpy")}
    assert extra - sys.stdlib_module_names == {"fa3"}


def test_every_exported_name_exists_and_is_documented():
    for name in fa3.__all__:
        assert inspect.getdoc(getattr(fa3, name)), name


def test_version_of_the_library_and_of_the_wheel_are_one():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{fa3.__version__}"' in project


def stubbed(path):
    """name -> argument names, of the functions in a stub file."""
    functions = [node for node in ast.parse(path.read_text()).body if hasattr(node, "args")]
    return {f.name: [a.arg for a in (*f.args.args, *f.args.kwonlyargs)] for f in functions}


def test_stubs_have_the_arguments_of_the_functions():
    stubs = stubbed(PACKAGE / "ops.pyi")
    assert set(stubs) <= set(fa3.__all__)
    for name, arguments in stubs.items():
        parameters = inspect.signature(getattr(ops, name)).parameters.values()
        written = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        assert arguments == written, name


def test_stubs_export_the_names_of_the_package():
    body = ast.parse((PACKAGE / "__init__.pyi").read_text()).body
    imported = {alias.asname for node in body for alias in getattr(node, "names", [])}
    assert imported == set(fa3.__all__)


@pytest.mark.parametrize("stub", sorted(PACKAGE.rglob("*.pyi")), ids=lambda path: path.name)
def test_every_stub_belongs_to_a_module(stub):
    assert stub.with_suffix(".py").exists() or stub.with_suffix(".abi3.so").exists()


def test_torch_front_has_the_arguments_of_the_numpy_front():
    pytest.importorskip("torch", reason="torch is not installed")
    from fa3 import torch as front

    ours = inspect.signature(front.attention).parameters
    assert {p.name: p.default for p in ours.values()} == {
        p.name: p.default for p in inspect.signature(fa3.attention).parameters.values()
    }

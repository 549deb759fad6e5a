# SPDX-License-Identifier: Apache-2.0
"""The API reference has every public name, and none that is gone.

docs/reference lists them; `make docs` fails where a listed name has no comment.
"""

import ast
import re
from collections import Counter

import pytest
from builds import ROOT


def source(name):
    return (ROOT / name).read_text()


def listed(page, directive):
    """Names on a page of the reference; an overload counts each time."""
    return Counter(
        re.findall(rf"^\.\. {directive}\w*:: ([\w.:]+)", source(f"docs/reference/{page}.rst"), re.M)
    )


def exported(module):
    """__all__; without one, the functions that have the names of the flash_attn packages."""
    tree = ast.parse(source(f"python/{module}"))
    functions = [x.name for x in tree.body if isinstance(x, ast.FunctionDef)]
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "__all__":
            return ast.literal_eval(statement.value)
    return [name for name in functions if name.startswith(("flash_attn_", "get_"))]


@pytest.mark.parametrize(
    "page, modules",
    [
        (
            "python",
            {
                "fa3": "fa3/__init__.py",
                "fa3.masks": "fa3/masks.py",
                "fa3.mla": "fa3/mla.py",
                "fa3.monitor": "fa3/monitor.py",
                "fa3.flex": "fa3/flex/__init__.py",
            },
        ),
        ("torch", {"fa3.torch": "fa3/torch/__init__.py"}),
        ("distributed", {"fa3.distributed": "fa3/distributed/__init__.py"}),
        ("jax", {"fa3.jax": "fa3/jax/__init__.py"}),
        (
            "flash-attn",
            {
                f"fa3.compat.{name}": f"fa3/compat/{name}.py"
                for name in (
                    "flash_attn",
                    "flash_attn_interface",
                    "flash_attn_4",
                    "vllm",
                    "sglang",
                    "flash_mla",
                    "flashinfer",
                    "sgl_flash_mla",
                    "vllm_cache",
                    "ring_flash_attn",
                    "xformers",
                )
            },
        ),
    ],
)
def test_every_public_python_name_is_in_the_reference(page, modules):
    names = [f"{module}.{name}" for module, file in modules.items() for name in exported(file)]
    assert names
    assert listed(page, "auto(?!module)") == Counter(names)


def test_every_name_of_the_c_header_is_in_the_reference():
    """cmake/symbols.map exports fa3_* and nothing else; these headers declare them."""
    code = "".join(source(f"include/fa3/{name}.h") for name in ("fa3", "fp8", "mla", "ring"))
    code = re.sub(r"/\*.*?\*/", "", code, flags=re.S)
    names = re.findall(r"^(?:FA3_API|static inline) [\w *]*?\b(fa3_\w+)\(", code, re.M)
    names += re.findall(
        r"^} (fa3_\w+);|\(\*(fa3_\w+)\)|^enum {\s*(\w+)|#define (FA3_\w+) ", code, re.M
    )
    names = {"".join(name) for name in names} - {"FA3_API"}
    assert len(names) >= 50
    assert listed("c", "doxygen(?!file)") == Counter(names)


@pytest.mark.parametrize(
    "module",
    [
        path
        for path in sorted((ROOT / "python/fa3").rglob("*.py"))
        if path.stem == "__init__" or not path.stem.startswith("_")
    ],
    ids=lambda path: path.stem,
)
def test_a_module_imports_where_torch_is_a_dummy(module):
    """`make docs` replaces torch by dummies, for which `Tensor | None` cannot be computed."""
    text = module.read_text()
    tree = ast.parse(text)
    annotations = [
        x.annotation for x in ast.walk(tree) if isinstance(x, ast.arg | ast.AnnAssign)
    ] + [x.returns for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)]
    unions = [
        ast.unparse(x)
        for annotation in annotations
        if annotation is not None
        for x in ast.walk(annotation)
        if isinstance(x, ast.BinOp) and re.search(r"\btorch\.|\bTensor\b", ast.unparse(x))
    ]
    assert not unions or "from __future__ import annotations" in text, unions


def test_every_name_of_the_cpp_headers_is_in_the_reference():
    code = "".join(source(f"include/fa3/{name}.h") for name in ("attention", "tensor", "status"))
    code = re.sub(r"^namespace detail {.*?^}", "", code, flags=re.S | re.M)
    kinds = r"inline \w+|struct|enum class|class(?: \[\[nodiscard\]\])?"
    names = re.findall(rf"^(?:{kinds}) (\w+)", code, re.M)
    assert len(names) >= 20
    assert listed("cpp", "doxygen(?!file)") == Counter(f"fa3::{name}" for name in names)


def test_the_cpp_face_has_every_kind_of_call():
    """The params structs of C are ForwardArgs, BackwardArgs, ... in C++."""
    code = source("include/fa3/fa3.h") + source("include/fa3/fp8.h") + source("include/fa3/mla.h")
    structs = set(re.findall(r"^} fa3_(\w+)_params;", code, re.M))
    face = set(
        re.findall(r"^struct \w+Args : fa3_(\w+)_params", source("include/fa3/attention.h"), re.M)
    )
    assert {"forward", "append"} <= structs == face

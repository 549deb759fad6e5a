# SPDX-License-Identifier: Apache-2.0
"""The package as a thing to install: what it imports, what it exports, what its stubs say."""

import ast
import graphlib
import importlib
import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest
from builds import ROOT

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import _native, _options, ops  # noqa: E402

PACKAGE = Path(fa3.__file__).parent


def imported_by(statement):
    code = f"import sys; {statement}; print(*sorted(sys.modules))"
    return subprocess.check_output([sys.executable, "-c", code], text=True).split()


def test_import_needs_numpy_and_nothing_else():
    extra = {name.split(".")[0] for name in imported_by("import fa3")}
    extra -= {name.split(".")[0] for name in imported_by("import numpy")}
    assert extra - sys.stdlib_module_names == {"fa3"}


def names_of_fa3(path):
    """(module, name) of every `from fa3... import ...` of a file, within functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fa3":
            yield from ((node.module, alias.name) for alias in node.names)


def test_scripts_import_names_that_are_there():
    pytest.importorskip("torch", reason="torch is not installed")
    folders = (ROOT / name for name in ("tools", "benchmarks", "examples", "tests/cuda"))
    found = {
        pair for folder in folders for path in folder.rglob("*.py") for pair in names_of_fa3(path)
    }
    assert ("fa3.flex", "lists") in found
    for module, name in found:
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")


PLAN = 'import numpy, fa3; x = numpy.zeros((1, 8, 2, 16), "f"); print(fa3.plan(x, x, x{}))'
OF_FLOAT32_ON_A_GPU = """from fa3 import _native
x = 0, "float32", 2, 0, (1, 8, 2, 16), (256, 32, 16, 1)
_native.forward_plan(x, x, x, None, None)"""


def plan_under(engine, options="", program=PLAN):
    return subprocess.run(
        [sys.executable, "-c", program.format(options)],
        env=os.environ | {"FA3_ENGINE": engine},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_environment_names_the_engine_of_calls_that_ask_for_none():
    assert "engine reference\n" in plan_under("reference").stdout
    assert "engine cpu\n" in plan_under("reference", ", engine='cpu'").stdout
    for other in ("auto", ""):
        assert "engine cpu\n" in plan_under(other).stdout
        assert "FA3_ENGINE" not in plan_under(other).stdout
    on_gpus = plan_under("hopper").stdout
    assert "engine cpu\n" in on_gpus and "; not hopper, which the environment's FA3" in on_gpus
    assert "FA3_ENGINE" not in plan_under("hopper", ", engine='cpu'").stdout
    refused = plan_under("hopper", program=OF_FLOAT32_ON_A_GPU).stderr
    assert "call: hopper: " in refused and "environment's FA3_ENGINE names hopper" in refused
    assert "expected one of auto, " in plan_under("cuda").stderr


def module_of(path):
    return ".".join(("fa3", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


# flash_attn_2_cuda is there to be imported, and has nothing to call.
NAMES_ELSEWHERE = {module_of(path) for path in (PACKAGE / "compat").glob("[a-z]*.py")}
PUBLIC = [
    *("fa3.torch", "fa3.masks", "fa3.distributed"),
    *sorted(NAMES_ELSEWHERE - {"fa3.compat.flash_attn_2_cuda"}),
]


@pytest.mark.parametrize("name", PUBLIC)
def test_tab_completion_offers_public_names_alone(name):
    pytest.importorskip("torch", reason="torch is not installed")
    module = importlib.import_module(name)
    assert {*dir(module)} >= {*module.__all__}
    for offered in {*dir(module)} - {*module.__all__}:
        assert getattr(module, offered).__module__ == name and not offered.startswith("_")


@pytest.mark.parametrize("name", [name for name in PUBLIC if "compat" in name])
def test_annotations_of_names_elsewhere_are_types(name):
    pytest.importorskip("torch", reason="torch is not installed")
    module = importlib.import_module(name)
    functions = [getattr(module, offered) for offered in module.__all__]
    for function in filter(inspect.isfunction, functions):
        typing.get_type_hints(function)


def test_tab_completion_of_the_package_offers_public_names_and_packages_that_are_loaded():
    fa3_masks = importlib.import_module("fa3.masks")
    assert set(dir(fa3)) >= {*fa3.__all__, "masks", "__version__"} and fa3.masks is fa3_masks
    beside = {*dir(fa3)} - {*fa3.__all__, "__version__"}
    assert all(inspect.ismodule(getattr(fa3, name)) for name in beside)
    assert beside & {"ops", "fp8", "quantization", "_native", "flex", "commands"} == set()


def test_every_exported_name_exists_and_is_documented():
    for name in fa3.__all__:
        assert inspect.getdoc(getattr(fa3, name)), name


def test_version_of_the_library_and_of_the_wheel_are_one():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{fa3.__version__}"' in project


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")} | {"fa3._native": None}


def imported_in(source):
    """The modules of fa3 that a source imports, also inside of functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in MODULES else node.module


def test_imports_form_no_circle():
    """Without the edges from a module to the __init__ of its package, which Python runs first."""
    sources = {name: path.read_text() for name, path in MODULES.items() if path}
    graph = {name: set(imported_in(source)) for name, source in sources.items()}
    order = list(graphlib.TopologicalSorter(graph).static_order())  # CycleError: the circle
    assert order.index("fa3._native") < order.index("fa3.torch") < order.index("fa3.ops")


ARRAY = np.zeros((0, 1, 1, 8), np.float32)
VIEW = (ARRAY.ctypes.data, "float32", 1, 0, ARRAY.shape, (8, 8, 8, 1))


@pytest.mark.parametrize(
    "call, tensors, lines, behind",
    [
        (_native.forward, (*[VIEW] * 4, None), _options.FORWARD, (None, None, None)),
        (_native.backward, (*[VIEW] * 5, *[None] * 6), _options.BOTH_PASSES, (None, False, False)),
    ],
    ids=["forward", "backward"],
)
def test_the_compiled_module_reads_the_options_in_the_order_of_the_table(
    call, tensors, lines, behind
):
    names = list(_options.DEFAULTS)[: len(lines)]
    values = list(_options.DEFAULTS.values())[: len(lines)]
    for place, name in enumerate(names):
        wrong = [*values[:place], "x", *values[place + 1 :]]
        said = {"window_left": r"window\[0\]", "window_right": r"window\[1\]"}.get(name, name)
        with pytest.raises(TypeError, match=f"^{said}: expected"):
            call(None, *tensors, *wrong)
    with pytest.raises(TypeError, match="too many arguments"):
        call(None, *tensors, *values, *behind, None)


def test_options_go_in_order_up_to_the_last_that_is_not_at_its_default():
    def in_order(**named):
        return _options.in_order("attention", named)

    assert in_order() == in_order(scale=None, engine="auto", causal=False) == []
    assert (
        in_order(softcap=float("0"), dropout_p=float("0")) == []
    )  # other objects than the table's
    assert in_order(num_splits=0.0)[-1] == 0.0  # refused by the call: no integer
    assert in_order(causal=True) == [True]
    assert in_order(window=(3, 0)) == [False, 3, 0]
    names = list(_options.DEFAULTS)
    assert in_order(engine="cpu") == [*list(_options.DEFAULTS.values())[: names.index("engine")], 1]
    full = in_order(window=(3, 0), v_mean=1)
    assert _options.Options(*full) == _options.Options(window_left=3, window_right=0, v_mean=1)


STUB_TYPES = {"Tensor?": "Array | None", "SymInt": "int", "float?": "float | None"}
STUB_TYPES_OF = {
    "window": "Sequence[int | None] | None",
    "dropout_p": "float | None",
    "dropout_seed": "Array | tuple[int, int] | None",
    "dropout_origin": "tuple[int, int, int, int] | None",
    "block_mask": "Any",
    "softcap": "float | None",
    "attention_chunk": "int | None",
    "engine": "Engine",
}


def stubbed(path):
    """name -> (arguments, types of the options by name), of the functions in a stub file."""
    body = ast.parse(path.read_text()).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}

    def fields(name):
        bases = [base.value.id for base in classes[name].bases if isinstance(base, ast.Subscript)]
        inherited = [fields(base) for base in bases if base in classes]
        own = {node.target.id: ast.unparse(node.annotation) for node in classes[name].body}
        return {name: kind for part in (*inherited, own) for name, kind in part.items()}

    functions = {}
    for f in (node for node in body if isinstance(node, ast.FunctionDef)):
        taken = f.args.kwarg and f.args.kwarg.annotation.slice.value.id
        arguments = [a.arg for a in (*f.args.args, *f.args.kwonlyargs)]
        functions[f.name] = arguments, fields(taken) if taken else {}
    return functions


def test_stubs_have_the_arguments_of_the_functions():
    stubs = stubbed(PACKAGE / "ops.pyi")
    assert set(stubs) <= set(fa3.__all__)
    for name, (arguments, options) in stubs.items():
        shown = inspect.signature(getattr(ops, name)).parameters
        assert sorted([*arguments, *options]) == sorted(shown), name
        for option in options.keys() & _options.OF_FORWARD.keys():
            declared = _options.TYPES.get(option)
            expected = STUB_TYPES_OF.get(option) or STUB_TYPES.get(declared, declared)
            assert options[option] == expected, option


def test_the_stub_of_flex_attention_has_its_arguments():
    body = ast.parse((PACKAGE / "_flex.pyi").read_text()).body
    stub = next(x.args for x in body if isinstance(x, ast.FunctionDef))  # the first overload
    shown = inspect.signature(fa3.flex_attention).parameters.values()
    assert [a.arg for a in (*stub.args, *stub.kwonlyargs)] == [p.name for p in shown]
    defaults = [ast.literal_eval(x) for x in stub.kw_defaults]
    assert defaults == [p.default for p in shown if p.default is not p.empty]


def test_every_option_is_documented():
    described = re.findall(
        r"^ {8}(\w[\w, ]*): ", ops.attention.__doc__.partition("Returns:")[0], re.MULTILINE
    )
    names = [name for line in described for name in line.split(", ")]
    assert sorted(names) == sorted(inspect.signature(fa3.attention).parameters)


def test_stubs_export_the_names_of_the_package():
    body = ast.parse((PACKAGE / "__init__.pyi").read_text()).body
    from_modules = [node for node in body if getattr(node, "module", "fa3") != "fa3"]
    imported = {alias.asname for node in from_modules for alias in node.names}
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


@pytest.mark.parametrize("folder", ["torch", "jax", "hf", "distributed"])
def test_the_map_of_the_package_names_every_module(folder):
    """docs/python-package.md, How it is built: who looks for a thing finds its file there."""
    page = (ROOT / "docs" / "python-package.md").read_text()
    tree = re.search(r"## How it is built\n\n```\n(.*?)```", page, re.DOTALL)[1]
    words = set(re.findall(r"\w+", tree))
    modules = {path.stem for path in (ROOT / "python" / "fa3" / folder).glob("*.py")}
    assert modules - {"__init__"} - words == set()

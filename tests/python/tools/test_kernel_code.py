# SPDX-License-Identifier: Apache-2.0
"""The names and hashes of kernels' machine code (tools/kernel_code.py)."""

import subprocess
import sys

import pytest
from builds import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import kernel_code
from kernel_code import Names, Symbol

NESTED = "_ZN3fa36hopper5shortIXtlNS0_6KernelEtlNS0_5ShapeELi64ELin1EELNS_4cuda7ElementE"
SHAPE = "tlNS0_5ShapeELi64ELi64ELi64ELi128ELi1ELi6ELi0ELi2ELb1ELb0EE"
PARTS = "".join(
    f"LNS0_{name}E{number}E"
    for name, number in (
        *(("8Operands", 0), ("5Tiles", 3), ("6Scores", 0)),
        *(("3Sum", 0), ("7Weights", 0)),
    )
)
STREAM_K = (
    f"_ZN3fa36hopper14forward_kernelIXtlNS0_6KernelE{SHAPE}LNS_4cuda7ElementE1E{PARTS}"
    "tlNS0_8CapturedELNS0_5AheadE0ELb0EE"
    "tlNS4_7OutputsELNS4_4GateE0ELNS4_8GateTypeE0ELb0EEEEEEvNS0_13ForwardParamsE"
)
LINES = (
    'fa3 kernel forward 26 other "d64/64 64x128 stream-K" '
    "64,64,64,128,1,6,0,2,1,0,1,0,3,0,0,0,0,0,0,0,0, engine/hopper/forward/stream_k_tiles.cuh\n"
)


@pytest.mark.parametrize(
    ("mangled", "names", "arguments"),
    [
        ("_ZN3fa34cuda11rank_kernelENS_5RanksE", ["fa3", "cuda", "rank_kernel"], []),
        (
            "_ZN3fa36hopper35_GLOBAL__N__ab259372_7_some_cu_43c37combineILNS_4cuda7ElementE1ELin8EEEvi",
            ["fa3", "hopper", "combine"],
            [1, -8],
        ),
        (
            "_ZN3fa36hopper5shortIXtlNS0_1KEtlNS0_5ShapeELi64ELb1EELNS_4cuda7ElementE0EEELb1EEEvi",
            ["fa3", "hopper", "short"],
            [("K", [("Shape", [64, 1]), 0]), 1],
        ),
        ("_ZN3fa34cuda6appendI6__half6Float8EEvi", ["fa3", "cuda", "append"], ["__half", "Float8"]),
    ],
)
def test_a_kernels_symbol_is_its_names_and_its_templates_numbers(mangled, names, arguments):
    assert Symbol.of(mangled) == (names, arguments)


def test_a_forward_kernel_has_the_name_that_the_catalogue_gives_its_numbers():
    names = Names(LINES)
    assert names.of(Symbol.of(STREAM_K)) == "hopper forward_kernel d64/64 64x128 stream-K bf16"
    in_fp16 = STREAM_K.replace("ElementE1E", "ElementE0E")
    assert names.of(Symbol.of(in_fp16)) == "hopper forward_kernel d64/64 64x128 stream-K fp16"
    other = STREAM_K.replace("Li6E", "Li7E")
    assert "stream-K" not in names.of(Symbol.of(other))


def test_names_of_nested_structs_are_found_by_all_their_numbers():
    names = Names('fa3 kernel forward 3 sample "small" 64,-1,1, a.cuh\n')
    assert names.of(Symbol.of(f"{NESTED}1EEEEEvi")) == "hopper short small bf16"
    assert names.of(Symbol.of(f"{NESTED}0EEEEEvi")) == "hopper short small fp16"


@pytest.fixture
def build(tmp_path):
    """A function that makes objects of one section of code for each kernel."""

    def stage(name, kernels):
        objects = tmp_path / "src" / "engine" / "hopper" / "CMakeFiles" / "kernels.dir"
        objects.mkdir(parents=True, exist_ok=True)
        catalogue = tmp_path / "generated" / "engine" / "hopper" / "kernels.txt"
        catalogue.parent.mkdir(parents=True, exist_ok=True)
        catalogue.write_text(LINES)
        sections = "".join(
            f'.section .text.{symbol},"a"\n.ascii "{text}"\n' for symbol, text in kernels.items()
        )
        image = tmp_path / "image.o"
        assemble(sections, image)
        header = f".long 0xBA55ED50\n.short 1, 16\n.quad {16 + image.stat().st_size}\n"
        entry = f".long 0, 16\n.quad {image.stat().st_size}\n"
        fatbin = f'.section .nv_fatbin,"a"\n{header}{entry}.incbin "{image}"\n'
        assemble(fatbin, objects / f"{name}.cu.o")
        return tmp_path

    def assemble(lines, output):
        command = ["gcc", "-c", "-x", "assembler", "-", "-o", str(output)]
        subprocess.run(command, input=lines, text=True, check=True)

    return stage


def test_kernels_are_compared_by_name_wherever_they_were_compiled(build):
    other = "_ZN3fa36hopper7prepareEv"
    build("first", {STREAM_K: "code", other: "more"})
    old = kernel_code.code_of_build(build("second", {}))
    assert set(old) == {"hopper forward_kernel d64/64 64x128 stream-K bf16", "hopper prepare"}
    build("first", {other: "more"})
    assert (
        kernel_code.differences(old, kernel_code.code_of_build(build("second", {STREAM_K: "code"})))
        == []
    )
    build("first", {other: "changed", "_ZN3fa36hopper3newEv": "new"})
    assert kernel_code.differences(old, kernel_code.code_of_build(build("second", {}))) == [
        "vanished: hopper forward_kernel d64/64 64x128 stream-K bf16",
        "appeared: hopper new",
        "changed: hopper prepare",
    ]

# SPDX-License-Identifier: Apache-2.0
"""The example of docs/add-a-feature.md applies to the sources and makes the kernels it names."""

import os
import re
import shutil
from pathlib import Path

import pytest
from builds import ROOT, need, run

DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(rb'fa3 kernel (\w+) (\d+) \w+ "([^"]+)" \S+ ([^\0]+)')
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
MACHINE = ROOT / "tests/cpp/engine/hopper/machine"


def kernels(source):
    """Name -> row and headers of the forward kernels that a tree's catalogue has."""
    list_ = source.parent / "list.o"
    catalogue = source / "engine/hopper/kernels/list.cpp"
    run("g++", "-std=c++20", "-c", f"-I{source}", f"-I{ROOT}/include", catalogue, "-o", list_)
    lines = LINE.findall(list_.read_bytes())
    return {name: (int(row), headers) for pass_, row, name, headers in lines if pass_ == b"forward"}


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """The sources with the example's diffs."""
    need("git", "g++")
    tree = tmp_path_factory.mktemp("feature")
    shutil.copytree(ROOT / "src", tree / "src")
    diffs = DIFF.findall((ROOT / "docs/add-a-feature.md").read_text())
    assert len(diffs) == 2
    for diff in diffs:
        run("git", "apply", "-", cwd=tree, input=diff)
    return tree / "src"


def test_the_example_adds_dense_kernels_with_a_softcap_and_takes_none_away(changed, tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    before, after = kernels(tmp_path / "src"), kernels(changed)
    assert before.keys() < after.keys()
    for name in after.keys() - before.keys():
        assert name.endswith(b" capped") and b"varlen" not in name
        assert b"dense_tiles.cuh" in after[name][1] and b"scores_capped.cuh" in after[name][1]


def test_the_example_s_kernels_compile_on_the_model_of_an_sm(changed, tmp_path):
    if not (CUDA / "cuda.h").is_file():
        pytest.skip(f"no CUDA headers in {CUDA}")
    row = kernels(changed)[b"d128/128 192x80 capped"][0]
    program = tmp_path / "kernel.cpp"
    program.write_text(f"""
#include "engine/hopper/kernels/forward.h"
#include "forward/kernel_on_trial.h"
namespace fa3::hopper {{
template KernelOnTrial kernel_on_trial<kernel_of(kForward[{row}], Element::kBf16)>();
}}
""")
    folders = [MACHINE, changed, ROOT / "include", ROOT / "tests", ROOT / "tests/cpp"]
    run(
        *("g++", "-std=c++20", "-fsyntax-only", "-include", MACHINE / "cuda_words.h"),
        *(f"-I{folder}" for folder in folders),
        *("-isystem", CUDA, "-Wno-unknown-pragmas", program),
    )

# SPDX-License-Identifier: Apache-2.0
"""Drivers that are too old are named, and a build for those of the 12 series is what they load.

A stub of libcuda.so.1 is the driver: it says its version, and has no GPU.
"""

import os
import re
import shutil
import struct
import sys

import builds
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

# EI_OSABI and EI_ABIVERSION of machine code that drivers of the 12 series load.
OF_CUDA_12 = 51, 7
EM_CUDA = 190
PROGRAM = """
import numpy as np
import fa3
print(dict((name, why) for name, _, why in fa3.engines())["hopper"])
q = np.ones((1, 8, 2, 32), np.float32)
print(fa3.attention(q, q, q).sum())
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The stub's folder."""
    builds.need("cc")
    folder = tmp_path_factory.mktemp("driver")
    source = builds.ROOT / "tests/python/install/old_driver.c"
    options = "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1"
    builds.run("cc", *options, source)
    return folder


@pytest.mark.parametrize(
    "version, sentence",
    [
        (
            12040,
            "the NVIDIA driver is for CUDA 12.4, expected one for 13.0 or later; update it, or "
            "build fa3 for drivers of the 12 series (docs/install.md)",
        ),
        (11080, "the NVIDIA driver is for CUDA 11.8, expected one for 13.0 or later; update it"),
        (13000, "no NVIDIA GPU"),
    ],
)
def test_a_driver_that_is_too_old_is_named_and_the_cpu_computes(driver, version, sentence):
    if "hopper" not in [name for name, _, _ in fa3.engines()]:
        pytest.skip("this build has no CUDA engines")
    path = os.pathsep.join(filter(None, sys.path))
    environment = {"OLD_DRIVER": str(version), "LD_LIBRARY_PATH": str(driver), "PYTHONPATH": path}
    said = builds.run(sys.executable, "-c", PROGRAM, env=os.environ | environment).splitlines()
    assert said == [sentence, "512.0"]


def machine_codes(path):
    """(EI_OSABI, EI_ABIVERSION) of each ELF file for a GPU within an object file."""
    content = path.read_bytes()
    for found in re.finditer(b"\x7fELF", content):
        begin = found.start()
        if struct.unpack_from("<H", content, begin + 18)[0] == EM_CUDA:
            yield content[begin + 7], content[begin + 8]


def test_a_toolkit_for_drivers_of_the_12_series_makes_what_they_load(tmp_path):
    builds.need("nvcc")
    if builds.BUILDS_LITTLE:
        pytest.skip("fetches 44 MB, and is for CI and FULL=1")
    script = tmp_path / "bin" / "nvcc"  # as on machines where the toolkit's folder is not in PATH
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shutil.which("nvcc")} "$@"\n')
    script.chmod(0o755)
    path = {"PATH": os.pathsep.join((str(script.parent), os.environ["PATH"]))}
    command = sys.executable, builds.ROOT / "tools/cuda12.py", tmp_path
    toolkit = builds.run(*command, env=os.environ | path).strip()
    nvcc, out = f"{toolkit}/bin/nvcc", tmp_path / "merge.o"
    source = builds.ROOT / "src/engine/cuda/kernels/merge.cu"
    includes = [f"-I{builds.ROOT / folder}" for folder in ("src", "include")]
    codes = "-gencode=arch=compute_80,code=[sm_80,compute_80]"
    options = "-std=c++20", "--compress-mode=none", "-Xcicc=-O0", "-Xptxas=-O0"
    builds.run(nvcc, *options, *includes, codes, "-c", source, "-o", out)
    assert set(machine_codes(out)) == {OF_CUDA_12}
    assert b".version 8.8\n" in out.read_bytes()  # PTX for GPUs that come later
    program = tmp_path / "program.cpp"
    program.write_text("#include <cuda_runtime_api.h>\nstatic_assert(CUDART_VERSION == 12090);\n")
    builds.run("g++", "-fsyntax-only", f"-I{toolkit}/include", program)

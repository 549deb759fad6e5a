# SPDX-License-Identifier: Apache-2.0
"""The source distribution holds every file that its build names, with and without CUDA.

CMake writes the build files of the unpacked archive and Ninja walks through them without running a
command, which fails at the first file that is not there. `make wheel` compiles the same archive.
"""

import sys
import tarfile

import builds
import pytest

BUILD_SDIST = "import sys; from scikit_build_core.build import build_sdist as b; b(sys.argv[1])"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    folder = tmp_path_factory.mktemp("sdist")
    builds.run(sys.executable, "-c", BUILD_SDIST, str(folder), cwd=builds.ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (source,) = (entry for entry in folder.iterdir() if entry.is_dir())
    return source


@pytest.mark.parametrize("cuda", ["OFF", "ON"])
def test_every_file_that_the_build_names_is_in_the_archive(unpacked, tmp_path, cuda):
    if cuda == "ON" and builds.BUILDS_LITTLE:
        pytest.skip("CMake asks nvcc for ten seconds (make test FULL=1)")
    builds.need("cmake", "ninja", *(["nvcc"] if cuda == "ON" else []))
    as_a_wheel = "-DSKBUILD=2 -DFA3_DEVELOPER=OFF -DFA3_PYTHON=ON".split()
    source = ["cmake", "-S", str(unpacked), "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
    builds.run(*source, *as_a_wheel, f"-DFA3_CUDA={cuda}", "-B", str(tmp_path), cwd=tmp_path)
    builds.run("cmake", "--build", str(tmp_path), "--", "-n", cwd=tmp_path)


def test_the_archive_says_what_it_is(unpacked):
    names = {entry.name for entry in unpacked.iterdir()}
    assert {"LICENSE", "README.md", "PKG-INFO", "pyproject.toml", "src", "include"} <= names
    assert not names & {"tests", "docs", "benchmarks", "build"}
    data = {path.name for path in (unpacked / "examples").rglob("*.*")}
    assert data == {"README.md", *(f"minilm_layer0_{x}.npy" for x in "qkv")}

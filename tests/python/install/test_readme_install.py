# SPDX-License-Identifier: Apache-2.0
"""The README's lines under "Install" do what they say, taken from there and run by a shell.

Each compiles the whole library, without the GPU's kernels if the build has none. Where ccache is
(tools/setup.sh), `make build` has compiled it already: same sources, same flags, same paths below
the folder of the sources.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import builds
import pytest
from builds import ROOT

README = (ROOT / "README.md").read_text()
LINES = re.search(r"## Install\n\n```\n(.*?)```", README, re.DOTALL)[1].splitlines()
PIP_LINE, _, CMAKE_LINE = (line.split("   #")[0].strip() for line in LINES)
WHEEL_NAME = re.search(r"build/wheel/(\S+)", LINES[1])[1]
PYTHON = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
(SNIPPET,) = [code for code in PYTHON if "import numpy" in code]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The checkout as git has it, in a folder that a line may write into."""
    builds.need("git", "cmake", "ninja")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("these sources are no git checkout")
    folder = tmp_path_factory.mktemp("readme") / "fa3"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture
def shell(tmp_path):
    """shell(line, folder): runs it where `pip` and `python` are those of a clean environment.

    It sees what the tests' environment has, NumPy and the build's backend among it, so that pip
    needs no network.
    """
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    clean = tmp_path / "clean"
    builds.run(sys.executable, "-m", "venv", "--without-pip", clean)
    (packages,) = (clean / "lib").glob("python*/site-packages")
    (packages / "tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = clean / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {clean}/bin/python -m pip "$@"\n')
    pip.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "PATH": f"{clean / 'bin'}:{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # that is: without isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "SKBUILD_BUILD_DIR": "build",
        "CMAKE_ARGS": builds.kernels(),  # for scikit-build
        **builds.compiler_cache(),
    }

    def run(line, folder, **more):
        here = environment | {"CCACHE_BASEDIR": str(folder)} | more
        return builds.run("bash", "-euc", line, cwd=folder, env=here)

    return run


def check_package(shell, folder):
    assert shell(f"python - <<'END'\n{SNIPPET}\nEND", folder).startswith("(1, 1000, 8, 64)")
    where = shell("python -c 'import fa3; print(fa3.__file__)'", folder)
    assert where.startswith(str(folder.parent / "clean")), where
    assert "works here" in shell("fa3 doctor", folder)


@pytest.fixture(scope="module")
def build_wheel(tmp_path_factory):
    """build_wheel(name): the wheel without CUDA code, built in a folder of its own, once a name."""
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    script, folder = ROOT / "tools" / "build_wheel.py", tmp_path_factory.mktemp("wheels")

    @functools.cache
    def build(name):
        environment = os.environ | builds.compiler_cache()
        builds.run(sys.executable, script, folder / name, "cpu", env=environment)
        (wheel,) = (folder / name / "cpu").glob(WHEEL_NAME)
        return wheel

    return build


takes_minutes = pytest.mark.skipif(
    builds.BUILDS_LITTLE,
    reason="building fa3 once more takes a minute (make test FULL=1)",
)


@takes_minutes
def test_a_wheel_installs(shell, build_wheel, tmp_path):
    wheel = build_wheel("one")
    shell(f"pip install {wheel}", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    check_package(shell, tmp_path / "elsewhere")
    assert "as exact as standard" in shell("fa3 demo --seqlen 64", tmp_path / "elsewhere")
    # A program in C++ finds the library of the wheel by CMake, as docs/cpp.md says.
    folder = "$(python -c 'import fa3; print(*fa3.__path__)')"
    line = f"cmake -S {ROOT}/examples/embed -B embed -DCMAKE_PREFIX_PATH={folder}"
    assert "workspace" in shell(f"{line} && cmake --build embed && embed/embed", tmp_path)


@pytest.mark.skipif(builds.QUICK, reason="a second wheel (make test FULL=1)")
def test_a_wheel_built_twice_has_the_same_bytes(build_wheel):
    assert build_wheel("one").read_bytes() == build_wheel("two").read_bytes()


@takes_minutes
def test_the_sources_install_by_pip(shell, source, tmp_path):
    shell(PIP_LINE, source)
    (tmp_path / "elsewhere").mkdir()
    check_package(shell, tmp_path / "elsewhere")


@takes_minutes
def test_the_sources_install_by_cmake(shell, source, tmp_path):
    shutil.rmtree(source / "build", ignore_errors=True)
    line = CMAKE_LINE.replace("cmake -B", f"cmake {builds.kernels()} -B")
    shell(line, source, DESTDIR=str(tmp_path), CMAKE_GENERATOR="Ninja")  # as `make build`
    prefix = Path(f"{tmp_path}{CMAKE_LINE.split()[-1]}")
    assert "works here" in builds.run(prefix / "bin" / "fa3", "doctor")
    assert (prefix / "include" / "fa3" / "fa3.h").exists()


def test_cmake_configures_for_make_too(shell, source):
    shutil.rmtree(source / "build", ignore_errors=True)
    shell(CMAKE_LINE.split("&&")[0], source, CMAKE_GENERATOR="Unix Makefiles")

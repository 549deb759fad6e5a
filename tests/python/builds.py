# SPDX-License-Identifier: Apache-2.0
"""The build that the tests run on, and commands that must succeed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Without FULL=1 the tests draw and compute less; and compile less, except in CI.
QUICK = "FA3_TEST_QUICK" in os.environ
BUILDS_LITTLE = QUICK and "CI" not in os.environ


def library():
    """libfa3.so of the build; skips where there is none."""
    path = os.environ.get("FA3_LIBRARY")
    if path is None:
        pytest.skip("FA3_LIBRARY names no build")
    return Path(path)


def folder():
    return library().parent.parent


def program(name):
    """A program of the build; skips where this build has none."""
    path = folder() / "bin" / name
    if not path.exists():
        pytest.skip(f"this build has no {name}")
    return path


def setting(name):
    """What CMake knows of the build."""
    cache = (folder() / "CMakeCache.txt").read_text()
    return re.search(rf"^{name}:\w+=(.*)$", cache, re.MULTILINE)[1]


def kernels():
    """CMake's option for builds that take after the build: the kernels that it has."""
    return f"-DFA3_KERNELS={setting('FA3_KERNELS')}"


def need(*tools):
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on the PATH of this machine")


def run(*command, **options):
    """What the command said on stdout; fails with all it said where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def compiler_cache():
    """Variables with which CMake compiles through ccache, if this machine has it.

    The compiler is the build's: ccache takes c++ and g++ for two.
    """
    if shutil.which("ccache") is None:
        return {}
    launchers = [f"CMAKE_{language}_COMPILER_LAUNCHER" for language in ("CXX", "CUDA")]
    cached = {"CXX": setting("CMAKE_CXX_COMPILER"), "CCACHE_NOHASHDIR": "1"}
    return dict.fromkeys(launchers, "ccache") | cached

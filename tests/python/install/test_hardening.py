# SPDX-License-Identifier: Apache-2.0
"""What the binaries that others run are built with, and what stays inside of them."""

import os
import platform
import re
import shutil

import builds
import pytest

NAMES = "lib/libfa3.so", "bin/fa3", "python/fa3/_native.abi3.so"


@pytest.fixture(params=NAMES, ids=lambda name: name.rpartition("/")[2])
def binary(request):
    builds.need("readelf")
    path = builds.folder() / request.param
    if not path.exists():
        pytest.skip(f"this build has no {request.param}")
    if "fsanitize" in builds.setting("CMAKE_CXX_FLAGS"):
        pytest.skip("sanitizers watch what hardening would")
    return path


def read(binary, *options):
    return builds.run("readelf", "--wide", *options, binary)


def test_its_relocations_are_read_only_once_it_is_loaded(binary):
    assert "GNU_RELRO" in read(binary, "--segments")
    assert "BIND_NOW" in read(binary, "--dynamic")


def test_its_stack_has_canaries_and_no_code(binary):
    assert "__stack_chk_fail" in read(binary, "--dyn-syms")
    (stack,) = re.findall(r"GNU_STACK .*", read(binary, "--segments"))
    assert " RW " in stack and "E" not in stack.split()[6]


def test_its_copies_are_checked(binary):
    # Elsewhere all copies have sizes that the compiler knows.
    if binary.name == "libfa3.so":
        assert re.search(r"__\w+_chk\b", read(binary, "--dyn-syms").replace("__stack_chk_fail", ""))
    assert "-D_FORTIFY_SOURCE=2" in (builds.folder() / "build.ninja").read_text()


def test_it_takes_a_shadow_stack(binary):
    if platform.machine() != "x86_64":
        pytest.skip("shadow stacks are of x86-64")
    assert "SHSTK" in read(binary, "--notes")


def test_it_looks_for_libraries_in_named_folders_alone(binary):
    """An empty entry of a path is the current folder."""
    for path in re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", read(binary, "--dynamic")):
        assert all(entry.startswith("$ORIGIN/") for entry in path.split(":")), path


def test_the_command_runs_no_code_of_the_current_folder(tmp_path):
    builds.need("g++")
    command = builds.program("fa3")
    source = tmp_path / "evil.cpp"
    source.write_text("#include <cstdlib>\n[[gnu::constructor]] void run() { std::_Exit(99); }\n")
    for name in ("libm.so.6", "libfa3.so.0"):
        builds.run("g++", "-shared", "-fPIC", "-o", tmp_path / name, source)
    environment = {name: x for name, x in os.environ.items() if name != "LD_LIBRARY_PATH"}
    assert "0.1.0" in builds.run(command, "--version", cwd=tmp_path, env=environment)


def exported(binary):
    lines = builds.run("nm", "--dynamic", "--defined-only", binary).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines}


def test_the_python_module_exports_its_entry_alone():
    builds.need("nm")
    module = builds.folder() / "python/fa3/_native.abi3.so"
    if not module.exists():
        pytest.skip("this build has no Python package")
    assert exported(module) == {"PyInit__native"}


def test_the_library_exports_the_abi_alone():
    builds.need("nm")
    names = exported(builds.library())
    assert "fa3_forward" in names
    assert all(re.match(r"fa3_|FA3_[0-9.]+$", name) for name in names), names


def test_an_installation_has_the_licences(tmp_path):
    builds.need("cmake")
    builds.run("cmake", "--install", builds.folder(), "--prefix", tmp_path)
    folder = tmp_path / "share/doc/fa3"
    assert (folder / "LICENSE").read_text() == (builds.ROOT / "LICENSE").read_text()
    notices = (folder / "copyright").read_text()
    for word in (
        "Apache License",
        "CLI11",
        "fmt",
        "nlohmann",
        "BSD-3-Clause",
        "Permission is hereby",
    ):
        assert word in notices, word
    shutil.rmtree(tmp_path)

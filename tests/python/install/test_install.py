# SPDX-License-Identifier: Apache-2.0
"""An installed fa3 serves programs in C, C++17 and C++20, by gcc and clang, as they find it."""

import builds
import pytest

ROOT = builds.ROOT
CONSUMERS = ROOT / "tests" / "consumers"
COMPILERS = {"gcc": "g++", "clang-14": "clang++-14"}
WARNINGS = "-Wall -Wextra -Wpedantic -Werror".split()


def need_compiler(name):
    builds.need(name, COMPILERS[name])
    if builds.BUILDS_LITTLE and name != "gcc":
        pytest.skip("a second compiler takes half a minute (make test FULL=1)")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    builds.need("cmake", "ninja")
    path = tmp_path_factory.mktemp("install") / "fa3"
    builds.run("cmake", "--install", builds.folder(), "--prefix", path)
    return path


@pytest.mark.parametrize("cc", COMPILERS)
def test_find_package(prefix, tmp_path, cc):
    need_compiler(cc)
    found = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={cc}"]
    found += [f"-DCMAKE_CXX_COMPILER={COMPILERS[cc]}"]
    builds.run("cmake", "-G", "Ninja", "-S", CONSUMERS, "-B", tmp_path, *found)
    builds.run("cmake", "--build", tmp_path)
    for name in ("consumer_c", "consumer_cpp11", "consumer_cpp17", "consumer_cpp20"):
        builds.run(tmp_path / name)


def test_a_program_in_c_needs_no_cpp_compiler(prefix, tmp_path):
    builds.need("cmake", "ninja")
    source = ROOT / "tests" / "cpp" / "api" / "c_abi_test.c"
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES C)\n"
        f"find_package(fa3 0.1 REQUIRED)\nadd_executable(consumer {source})\n"
        "target_link_libraries(consumer PRIVATE fa3::fa3 m)\n"
    )
    found = f"-DCMAKE_PREFIX_PATH={prefix}"
    builds.run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", found)
    builds.run("cmake", "--build", tmp_path / "build")


def test_the_examples(prefix, tmp_path):
    found = f"-DCMAKE_PREFIX_PATH={prefix}"
    builds.run("cmake", "-G", "Ninja", "-S", ROOT / "examples/embed", "-B", tmp_path, found)
    builds.run("cmake", "--build", tmp_path)
    assert "workspace" in builds.run(tmp_path / "embed")


@pytest.mark.parametrize("cc", COMPILERS)
def test_the_header_is_c99(prefix, cc):
    builds.need(cc)
    header = prefix / "include" / "fa3" / "fa3.h"
    command = [cc, "-std=c99", *WARNINGS, "-fsyntax-only", "-include", header, "-x", "c", "-"]
    builds.run(*command, input="int some_code;\n")


@pytest.mark.parametrize("cc", COMPILERS)
@pytest.mark.parametrize("standard", ["c11", "c++17", "c++20"])
def test_pkg_config(prefix, tmp_path, cc, standard):
    builds.need("pkg-config")
    need_compiler(cc)
    moved = tmp_path / "moved"  # the file finds its prefix by itself
    prefix.rename(moved)
    try:
        (place,) = moved.glob("**/pkgconfig")
        at_moved = {"PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH": str(place)}
        flags = builds.run("pkg-config", "--cflags", "--libs", "fa3", env=at_moved).split()
        assert builds.run("pkg-config", "--modversion", "fa3", env=at_moved).strip() == "0.1.0"
        in_c = standard == "c11"
        compiler = cc if in_c else COMPILERS[cc]
        source = "tests/cpp/api/c_abi_test.c" if in_c else "examples/embed/embed.cpp"
        program = tmp_path / "consumer"
        command = [compiler, f"-std={standard}", *WARNINGS, ROOT / source, "-o", program]
        builds.run(*command, *flags, "-lm")
        builds.run(program, env=at_moved | {"LD_LIBRARY_PATH": str(place.parent)})
    finally:
        moved.rename(prefix)


def test_a_build_of_the_library_makes_no_python_module(tmp_path):
    """The line of README and docs/cpp.md; a developer's build makes one."""
    builds.need("cmake", "ninja")
    of_library = "-DFA3_DEVELOPER=OFF", "-DFA3_CUDA=OFF"
    builds.run("cmake", "-G", "Ninja", "-S", ROOT, "-B", tmp_path, *of_library)
    targets = builds.run("ninja", "-C", tmp_path, "-t", "targets", "all")
    assert "libfa3.so" in targets and "_native" not in targets
    assert "_native" in builds.run("ninja", "-C", builds.folder(), "-t", "targets", "all")


def test_the_installed_command_runs(prefix):
    builds.program("fa3")
    assert "works here" in builds.run(prefix / "bin" / "fa3", "doctor")


def test_the_installed_demo_has_its_data(prefix, tmp_path):
    builds.program("fa3")
    demo = prefix / "bin" / "fa3", "demo", "--seqlen", "64"
    said = builds.run(*demo, cwd=tmp_path)
    assert "layer 0: 282 tokens" in said and "as exact as standard" in said


def test_the_debian_package(tmp_path):
    builds.need("cpack", "dpkg-deb", "dpkg-shlibdeps")
    builds.program("fa3")
    config = builds.folder() / "CPackConfig.cmake"
    builds.run("cpack", "--config", config, "-B", tmp_path, cwd=tmp_path)
    (package,) = tmp_path.glob("fa3_0.1.0_*.deb")
    depends = builds.run("dpkg-deb", "--field", package, "Depends")
    assert "libc6 (>=" in depends
    assert "libstdc++6 (>=" in depends
    assert "ldconfig" in builds.run("dpkg-deb", "--info", package, "triggers")
    builds.run("dpkg-deb", "--extract", package, tmp_path / "root")
    usr = tmp_path / "root" / "usr"
    assert "works here" in builds.run(usr / "bin" / "fa3", "doctor")
    assert list(usr.glob("lib/**/libfa3.so.0"))
    assert list(usr.glob("lib/**/pkgconfig/fa3.pc"))
    assert list(usr.glob("lib/**/cmake/fa3/fa3-config.cmake"))
    assert (usr / "include" / "fa3" / "fa3.h").exists()
    assert "CLI11" in (usr / "share" / "doc" / "fa3" / "copyright").read_text()

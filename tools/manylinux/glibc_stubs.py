#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes libraries to link against instead of the compiler's glibc, which look like glibc 2.28.

    glibc_stubs.py FOLDER COMPILER NM AR

A program runs with the glibc that it was linked with, or a later one: each symbol that it takes
carries a version, and the linker takes the newest. Here each symbol of that glibc that had
a version by 2.28 stands under that version, and no later one exists. Since 2.34 libc holds what
libpthread, libdl and librt held; here those are back, so that an older machine loads them.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

NEWEST, MERGED = (2, 28), (2, 34)
MOVED_INTO_LIBC = {
    "libpthread.so.0": r"pthread_|sem_",
    "libdl.so.2": r"dl",
    "librt.so.1": r"shm_|timer_|mq_|aio_|lio_",
}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
Stub = dict[str, tuple[str, str, int]]  # name -> version, kind of symbol, size


class Tools(NamedTuple):
    """The tools of the target machine."""

    compiler: str
    nm: str
    ar: str

    def compile(self, *arguments: str | Path) -> None:
        subprocess.run([self.compiler, *arguments], check=True)


def path_of(library: str, tools: Tools) -> Path:
    command = [tools.compiler, f"-print-file-name={library}"]
    return Path(subprocess.check_output(command, text=True).strip()).resolve()


def symbols(library: str, tools: Tools) -> dict[str, Stub]:
    """What each library of 2.28 held of today's `library`."""
    options = ["-D", "-S", "--defined-only", "--with-symbol-versions"]
    command = [tools.nm, *options, path_of(library, tools)]
    listing = subprocess.check_output(command, text=True)
    known: dict[str, list[tuple[tuple[int, ...], str, str, int]]] = {}
    for line in listing.splitlines():
        *place, kind, symbol = line.split()
        name, _, version = symbol.replace("@@", "@").partition("@")
        if re.fullmatch(r"GLIBC_[\d.]+", version) and len(place) == 2:
            numbers = tuple(map(int, version.removeprefix("GLIBC_").split(".")))
            known.setdefault(name, []).append((numbers, version, kind, int(place[1], 16)))
    homes: dict[str, Stub] = {library: {}}
    for name, versions in known.items():
        old = [version for version in versions if version[0] <= NEWEST]
        moved = any(version[0] == MERGED for version in versions)
        where = [home for home, names in MOVED_INTO_LIBC.items() if re.match(names, name)]
        if old:
            homes.setdefault(where[0] if moved and where else library, {})[name] = max(old)[1:]
    return homes


def write_stub(folder: Path, library: str, content: Stub, tools: Tools) -> None:
    """A shared library of this name whose symbols are there to be found, not to be run."""
    lines = []
    for i, (name, (version, kind, size)) in enumerate(sorted(content.items())):
        is_code = kind in "TtWwi"
        lines += [".text" if is_code else ".data", f".globl s{i}", f"s{i}: .zero {max(size, 1)}"]
        lines += [f".type s{i}, {'@function' if is_code else '@object'}", f".size s{i}, {size}"]
        lines += [f".symver s{i}, {name}@@{version}, remove"]
    versions = sorted({version for version, _, _ in content.values()})
    source, script = folder / f"{library}.s", folder / f"{library}.map"
    source.write_text("\n".join(lines) + '\n.section .note.GNU-stack, "", @progbits\n')
    script.write_text("".join(f"{version} {{ }};\n" for version in versions))
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
    tools.compile(*options, "-o", folder / library, source)


def main() -> int:
    if len(sys.argv) != 5:
        print(__doc__)
        return 2
    folder, tools = Path(sys.argv[1]).resolve(), Tools(*sys.argv[2:])
    folder.mkdir(parents=True, exist_ok=True)
    in_libc = symbols("libc.so.6", tools)
    for library, content in (in_libc | symbols("libm.so.6", tools)).items():
        write_stub(folder, library, content, tools)
    for code in ("since_2_28", "start"):
        source = Path(__file__).with_name(f"{code}.c")
        tools.compile("-xc", "-O2", "-fPIC", "-c", source, "-o", folder / f"{code}.o")
    # The linker searches these names before it comes to the machine's own.
    shared = " ".join(str(folder / name) for name in in_libc)
    static = path_of("libc_nonshared.a", tools)
    machine = subprocess.check_output([tools.compiler, "-dumpmachine"], text=True).partition("-")[0]
    loader = path_of(LOADERS[machine], tools)
    since = folder / "libsince_2_28.a"
    since.unlink(missing_ok=True)
    subprocess.run([tools.ar, "rcsD", since, folder / "since_2_28.o"], check=True)
    group = f"GROUP({shared} {since} {static} AS_NEEDED({loader}))\n"
    (folder / "libc.so").write_text(group)
    (folder / "libm.so").write_text(f"GROUP({folder / 'libm.so.6'})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

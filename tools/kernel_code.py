# SPDX-License-Identifier: Apache-2.0
"""The machine code of each kernel that a GPU check runs, as a hash.

What a check saw of a kernel holds for as long as its machine code stays: gpu_verify.py carries it
over when sources change around it. nvcc makes the same code of the same tokens, in any folder. Code
of the host, and small kernels beside these, are the contract's, which runs after every change. The
objects stay where they were built, which needs objcopy and zstd; BUILD/kernel_code.json travels
with the programs.
"""

import hashlib
import json
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

FILE = "kernel_code.json"
FATBIN_MAGIC, ZSTD_MAGIC = struct.pack("<I", 0xBA55ED50), struct.pack("<I", 0xFD2FB528)
HOPPER = "src/engine/hopper/CMakeFiles/fa3_hopper_kernels.dir"
# A table of a check program -> its objects, one a row or one for each element of a row. The plain
# kernels have one together.
ENTRIES = {
    "forward": {
        "forward": "forward_entry_{}",
        "plain": "plain_launch",
        **{t: t + "_entry_{}" for t in ("e4m3", "cache", "stream_k", "decode", "dropout")},
    },
    "backward": {
        "backward": "backward_entry_{}",
        **{t: t + "_backward_entry_{}" for t in ("dropout", "dense")},
    },
}


def pass_of(program: str) -> str:
    return "backward" if "backward" in program else "forward"


def objects_of(build: Path, program: str, entry: str) -> list[Path]:
    """An entry's: the program's own, compiled again for it, or else the library's."""
    names = [f"{entry}{element}.cu.o" for element in ("", "_fp16", "_bf16")]
    for folder in (f"tests/cuda/CMakeFiles/{program}.dir", HOPPER):
        if found := [path for name in names for path in (build / folder).rglob(name)]:
            return found
    return []


def parts_in(path: Path) -> set[bytes]:
    """The instructions and constants of an object's kernels, without their names and parameters'
    sizes: a parameter that a kernel does not read leaves its code as it is."""
    with tempfile.NamedTemporaryFile() as file:
        copy = ["objcopy", "-O", "binary", "--only-section=.nv_fatbin", str(path), file.name]
        subprocess.run(copy, check=True)
        fatbin = Path(file.name).read_bytes()
    return {part for image in images_in(fatbin) for part in parts_of_elf(image)} or {fatbin}


def images_in(fatbin: bytes) -> Iterator[bytes]:
    """The images of a fatbin: containers of entries, each a header, with its own size at byte 4 and
    the image's at 8, and the image, an ELF file or a frame of zstd."""
    at = 0
    while fatbin[at : at + 4] == FATBIN_MAGIC:
        (header, size) = struct.unpack_from("<6xHQ", fatbin, at)
        entry, at = at + header, (at + header + size + 7) // 8 * 8
        while entry < at and len(fatbin) >= entry + 16:
            (header, size) = struct.unpack_from("<4xIQ", fatbin, entry)
            image = fatbin[entry + header : entry + header + size]
            if image[:4] == ZSTD_MAGIC:
                unpack = ["zstd", "-dcq"]
                image = subprocess.run(unpack, input=image, capture_output=True).stdout
            yield image
            entry += header + size


def parts_of_elf(image: bytes) -> Iterator[bytes]:
    """The sections of code, each behind its number of registers, and of constants."""
    if image[:4] != b"\x7fELF":
        yield image
        return
    (table, size, count, names) = struct.unpack_from("<40xQ10xHHH", image)
    sections = [struct.unpack_from("<IIQQQQII", image, table + size * i) for i in range(count)]
    first_name = sections[names][4]
    for name, _, _, _, offset, length, _, info in sections:
        begin = first_name + name
        text = image[begin : image.index(b"\0", begin)].decode()
        # Bank 0 is the parameters' room. The number of registers stands above a symbol's number,
        # which other kernels of the object change.
        if text.startswith(".text.") or re.match(r"[.]nv[.]constant[1-9]", text):
            yield struct.pack("<I", info >> 24) + image[offset : offset + length]


def code_of_rows(build: Path, program: str, rows: list) -> dict[str, str]:
    """Row number of the program's list -> hash; without those whose objects are not there."""
    entries = ENTRIES[pass_of(program)]
    first, found = {}, {}
    for row in rows:
        entry = entries[row.table].format(row.number - first.setdefault(row.table, row.number))
        if objects := objects_of(build, program, entry):
            found[str(row.number)] = hash_of(set().union(*map(parts_in, objects)))
    return found


def hash_of(parts: set[bytes]) -> str:
    """The same in whichever objects the kernels are, and in any order."""
    digests = sorted(hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


class KernelCode:
    """Program -> row -> hash."""

    def __init__(self, programs: dict[str, dict[str, str]]):
        self.programs = programs

    @classmethod
    def of_build(cls, build: Path, rows_of: dict[str, list]) -> "KernelCode":
        """From the objects of a build, for each program's list of rows."""
        return cls({name: code_of_rows(build, name, rows) for name, rows in rows_of.items()})

    @classmethod
    def load(cls, build: Path) -> "KernelCode":
        path = build / FILE
        return cls(json.loads(path.read_text()) if path.exists() else {})

    def save(self, build: Path) -> None:
        (build / FILE).write_text(json.dumps(self.programs, indent=1) + "\n")

    def of_command(self, command: list) -> str | None:
        """Of all rows that a check runs; None where that is no such check, or is not known."""
        words = [Path(word).name if "/" in word else word for word in map(str, command)]
        program = next((word for word in words if word in self.programs), None)
        if program is None or "--rows" not in words:
            return None
        at = words.index("--rows")
        rows = range(int(words[at + 1]), int(words[at + 2]))
        codes = [self.programs[program].get(str(row)) for row in rows]
        if not all(codes):
            return None
        return hashlib.sha256("".join(codes).encode()).hexdigest()[:16]

# SPDX-License-Identifier: Apache-2.0
"""The machine code of each kernel, as a hash.

    python3 tools/kernel_code.py hash BUILD OUTPUT.json
    python3 tools/kernel_code.py compare OLD.json NEW.json

The first writes the hash of each kernel of a build under its name; the second prints the kernels
that changed, appeared or vanished, and fails if there are some.

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
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

FILE = "kernel_code.json"
FATBIN_MAGIC, ZSTD_MAGIC = struct.pack("<I", 0xBA55ED50), struct.pack("<I", 0xFD2FB528)
HOPPER = "src/engine/hopper/CMakeFiles/fa3_hopper_kernels.dir"


def objects_of(build: Path, program: str, source: str) -> list[Path]:
    """A generated source's: the program's own, compiled again for it, or else the library's."""
    names = [f"{source}{element}.cu.o" for element in ("", "_fp16", "_bf16")]
    for folder in (f"tests/cuda/CMakeFiles/{program}.dir", HOPPER):
        if found := [path for name in names for path in (build / folder).rglob(name)]:
            return found
    return []


def fatbin_of(path: Path) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        copy = ["objcopy", "-O", "binary", "--only-section=.nv_fatbin", str(path), file.name]
        subprocess.run(copy, check=True)
        return Path(file.name).read_bytes()


def parts_in(path: Path) -> set[bytes]:
    """The instructions and constants of an object's kernels, without their names and parameters'
    sizes: a parameter that a kernel does not read leaves its code as it is."""
    fatbin = fatbin_of(path)
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
    """The sections of code, each behind its number of registers, and of constants; of anything
    else than an ELF file, the whole."""
    if image[:4] != b"\x7fELF":
        yield image
        return
    for _, part in sections_of(image):
        yield part


def sections_of(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """The kernel's symbol and the content, behind the number of registers, of each section of code
    and of constants. The symbol of constants that kernels share is empty."""
    (table, size, count, names) = struct.unpack_from("<40xQ10xHHH", elf)
    sections = [struct.unpack_from("<IIQQQQII", elf, table + size * i) for i in range(count)]
    first_name = sections[names][4]
    for name, _, _, _, offset, length, _, info in sections:
        begin = first_name + name
        text = elf[begin : elf.index(b"\0", begin)].decode()
        # Bank 0 is the parameters' room. The number of registers stands above a symbol's number,
        # which other kernels of the object change.
        if match := re.match(r"[.]text[.](.*)|[.]nv[.]constant[1-9][.]?(.*)", text):
            content = elf[offset : offset + length]
            yield match[1] or match[2] or "", struct.pack("<I", info >> 24) + content


class Symbol(NamedTuple):
    """A kernel's mangled name, taken apart."""

    names: list[str]  # namespaces, then the function
    arguments: list  # of the template: numbers, or of a struct its name and its fields

    @classmethod
    def of(cls, mangled: str) -> "Symbol":
        """Of _ZN<names>[I<arguments>E]E...; arguments are literals and aggregates of them."""
        at = mangled.find("_ZN") + 3

        def source_name() -> str:
            nonlocal at
            digits = re.match(r"\d+", mangled[at:])[0]
            begin = at + len(digits)
            at = begin + int(digits)
            return mangled[begin:at]

        def type_name() -> str:
            """The last part of a type's name; what a substitution stands for is not looked up."""
            nonlocal at
            is_nested = mangled[at] == "N"
            at += is_nested
            name = ""
            while at < len(mangled):
                if mangled[at].isdigit():
                    name = source_name()
                elif match := re.match(r"S[0-9A-Z]*_|St", mangled[at:]):
                    at += match.end()
                elif is_nested:  # its end
                    at += 1
                    return name
                elif name:
                    return name
                else:
                    at += 1  # a builtin type
                    return ""
                if not is_nested:
                    return name
            return name

        def expression():
            nonlocal at
            if mangled[at] == "X":
                at += 1
                value = expression()
                at += 1
                return value
            if mangled.startswith("tl", at):
                at += 2
                name, fields = type_name(), []
                while mangled[at] != "E":
                    fields.append(expression())
                at += 1
                return name, fields
            if mangled[at] != "L":
                return type_name()
            at += 1
            type_of = Element if type_name() == "Element" else int
            number, at = mangled[at : mangled.index("E", at)], mangled.index("E", at) + 1
            return type_of(number.replace("n", "-"))

        names, arguments = [], []
        while mangled[at].isdigit():
            names.append(source_name())
        if mangled[at] == "I":
            at += 1
            while mangled[at] != "E":
                arguments.append(expression())
        return cls([name for name in names if not name.startswith("_GLOBAL__N_")], arguments)


# The fields of the structs that kernels are templates of, by engine and struct.
FIELDS = {
    "hopper Kernel": "head_dim head_dim_v block_m block_n q_stages kv_stages loaded_stages "
    "ctas_per_sm overlaps ping_pong element operands tiles scores sum weights ahead may_hide "
    "gate gate_type max_logit",
    "hopper BackwardConfig": "head_dim head_dim_v block_m block_n stages ds_stages helpers "
    "element tiles scores weights gradients sharing",
    "hopper LatentShape": "rows head_dim element is_bytes",
}
LINE = re.compile(r'fa3 kernel (forward) (\d+) \w+ "([^"]+)" ([-\d,]+),')


class Names:
    """The catalogue's names of kernels, by the numbers that they are templates of in bf16."""

    def __init__(self, lines: str = ""):
        self.of_numbers = {match[4]: match[3] for match in LINE.finditer(lines)}

    @classmethod
    def of_build(cls, build: Path) -> "Names":
        return cls((build / "generated/engine/hopper/kernels.txt").read_text())

    def of(self, symbol: Symbol) -> str:
        """A kernel's name: a struct among the template's arguments is its words."""
        _, engine, *function = symbol.names
        arguments = [
            str(x) if not isinstance(x, tuple) else self.words_of(f"{engine} {x[0]}", x[1])
            for x in symbol.arguments
        ]
        return " ".join([engine, *function, *arguments])

    def words_of(self, struct_name: str, values: list) -> str:
        element, numbers = "", []
        for value in literals_of(values):
            if isinstance(value, Element):
                element, value = ("fp16", "bf16")[value], 1
            numbers.append(str(int(value)))
        if name := self.of_numbers.get(",".join(numbers)):
            return f"{name} {element}"
        fields = fields_of(struct_name, values)
        return " ".join(f"{name} {value}" for name, value in fields.items() if value)


class Element(int):
    """A literal of the enum of this name."""


def fields_of(struct_name: str, values: list) -> dict[str, int]:
    """The numbers of a struct by name, those of structs in it among them."""
    numbers = list(literals_of(values))
    names = FIELDS.get(struct_name, "").split() or map(str, range(len(numbers)))
    return dict(zip(names, numbers, strict=True))


def literals_of(values: list) -> Iterator[int]:
    """The numbers of a struct and of the structs in it."""
    for value in values:
        if isinstance(value, tuple):
            yield from literals_of(value[1])
        else:
            yield value


def kernels_in(path: Path, names: Names) -> dict[str, bytes]:
    """Name -> digest of its code and constants, of each kernel of an object that has machine
    code."""
    found: dict[str, bytes] = {}
    for image in images_in(fatbin_of(path)):
        if image[:4] != b"\x7fELF":
            continue
        parts: dict[str, set[bytes]] = {}
        for symbol, part in sections_of(image):
            parts.setdefault(symbol, set()).add(part)
        shared = parts.pop("", set())
        for symbol, code in parts.items():
            if ".text" not in symbol:
                found[names.of(Symbol.of(symbol))] = digest_of(code | shared)
    return found


def code_of_build(build: Path) -> dict[str, str]:
    """Name -> hash, of each kernel of the library's engines."""
    objects = sorted(
        path for path in (build / "src" / "engine").rglob("*.cu.o") if "CMakeFiles" in path.parts
    )
    names = Names.of_build(build)
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda path: kernels_in(path, names), objects)
        kernels = chain.from_iterable(d.items() for d in found)
        codes: dict[str, set[bytes]] = {}
        for name, digest in kernels:
            codes.setdefault(name, set()).add(digest)
    return {name: digest_of(code).hex()[:16] for name, code in sorted(codes.items())}


def differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    return [
        f"{'vanished' if name not in new else 'appeared' if name not in old else 'changed'}: {name}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def code_of_rows(build: Path, program: str, rows: list) -> dict[str, str]:
    """Row number of the program's list -> hash; without those whose objects are not there."""
    found = {}
    for row in rows:
        if objects := objects_of(build, program, row.source):
            found[str(row.number)] = hash_of(set().union(*map(parts_in, objects)))
    return found


def digest_of(parts: set[bytes]) -> bytes:
    """The same in whichever objects the kernels are, and in any order."""
    digests = sorted(hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(b"".join(digests)).digest()


def hash_of(parts: set[bytes]) -> str:
    return digest_of(parts).hex()[:16]


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


def main(command: str, first: str, second: str) -> int:
    if command == "hash":
        codes = code_of_build(Path(first))
        Path(second).write_text(json.dumps(codes, indent=1) + "\n")
        print(f"{len(codes)} kernels")
        return 0
    old, new = (json.loads(Path(path).read_text()) for path in (first, second))
    found = differences(old, new)
    print("\n".join([*found, f"{len(old)} and {len(new)} kernels, {len(found)} differences"]))
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("hash", "compare"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

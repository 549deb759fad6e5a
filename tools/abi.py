# SPDX-License-Identifier: Apache-2.0
"""The ABI in words: what a compiled program relies on, one fact a line.

    tools/abi.py LIBRARY              prints the facts
    tools/abi.py LIBRARY --against F  exits with 1 where a fact of dump F holds no more

Facts are exported symbols with their versions, prototypes, values of enums, and places of
fields. New facts break nobody. Tools that compare whole layouts do not serve here: structs of fa3.h
grow (src/api/layout.h), also the fa3_options in the middle of others, so a field behind the options
is placed by its distance from their end.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = [ROOT / "include" / "fa3" / name for name in ("fa3.h", "fp8.h", "mla.h", "ring.h")]
GROWING = "fa3_options"  # within the params structs, which grow too


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def words(code: str) -> str:
    """One spelling for one prototype: single blanks, parameters without their names."""
    code = re.sub(r"\s*([,*()])\s*", r"\1", " ".join(code.split()))
    return re.sub(r"(?<!\(\*)(?:(?<=\*)|\s)\w+(?=[,)])", "", code)


def text_of_headers() -> str:
    return "".join(header.read_text() for header in HEADERS)


def exported(library: str) -> list[str]:
    lines = run("nm", "-D", "--defined-only", "--with-symbol-versions", library).splitlines()
    return [f"symbol {line.split()[-1]}" for line in lines if line.split()[1] != "A"]


def fields(body: str) -> list[tuple[str, str]]:
    """(type, name) of every field of a struct's body."""
    found = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        kind, names = re.fullmatch(r"((?:const )?\w+\b\s*\*?)\s*(.*)", declaration, re.S).groups()
        found += [(words(kind), re.sub(r"\[.*", "", name.strip())) for name in names.split(",")]
    return found


def questions(code: str) -> list[str]:
    """C statements that print the facts which only a compiler knows."""
    asked = []
    for body in re.findall(r"enum \w* ?{(.*?)}", code):
        for name in re.findall(r"(\w+)\s*=", body):
            asked.append(f'printf("value {name} = %lld\\n", (long long){name});')
    for name in re.findall(r"#define (FA3_WINDOW\w+|FA3_SCALE\w+)", text_of_headers()):
        asked.append(f'printf("value {name} = %.9g\\n", (double){name});')
    for name, body in re.findall(r"typedef struct (\w+) {(.*?)} \1;", code):
        members = fields(body)
        grows = name == GROWING or any(kind == "size_t" for kind, _ in members[:1])
        if not grows:
            asked.append(f'printf("size {name} = %zu\\n", sizeof({name}));')
        base, start = "", "0"
        for kind, field in members:
            place = f"offsetof({name}, {field}) - ({start})"
            size = f"sizeof((({name}*)0)->{field})"
            if kind == GROWING:  # its size is no promise; what lies behind it moves with it
                asked.append(f'printf("field {name}.{field} {kind} at %zu\\n", {place});')
                base, start = f"{field} + ", f"offsetof({name}, {field}) + {size}"
            elif field != "reserved":
                text = f"field {name}.{field} {kind} at {base}%zu, %zu bytes"
                asked.append(f'printf("{text}\\n", {place}, {size});')
    return asked


def facts(library: str) -> list[str]:
    code = re.sub(r"/\*.*?\*/", "", text_of_headers(), flags=re.DOTALL)
    code = " ".join(re.sub(r"^#.*$", "", code, flags=re.MULTILINE).split())
    prototypes = [f"function {words(line)}" for line in re.findall(r"FA3_API ([^;]*);", code)]
    types = re.findall(r"typedef ([^;{]*\(\*[^;]*);", code)
    prototypes += [f"function type {words(line)}" for line in types]
    program = "".join(f"#include <fa3/{header.name}>\n" for header in HEADERS)
    program += "#include <stdio.h>\nint main(void) {\n"
    program += "\n".join(questions(code)) + "\nreturn 0; }\n"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "layout.c"), Path(folder, "layout")
        source.write_text(program)
        run("cc", f"-I{HEADERS[0].parents[1]}", "-o", str(binary), str(source))
        return exported(library) + prototypes + run(str(binary)).splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    today = facts(arguments.library)
    if arguments.against is None:
        print("\n".join(today))
        return 0
    gone = [fact for fact in arguments.against.read_text().splitlines() if fact not in set(today)]
    for fact in gone:
        print(f"{arguments.against.name}: expected '{fact}', which holds no more")
    if gone:
        print("Programs compiled with that version break: keep what it had, add the new beside it.")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())

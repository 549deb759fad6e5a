# SPDX-License-Identifier: Apache-2.0
"""Writes the headers that a kernel includes into a C++ source, where NVRTC finds them.

Run: python3 tools/embed_headers.py OUTPUT FUNCTION ROOTS... -I FOLDERS...
ROOTS are names as in #include "...". From there every #include is followed, in FOLDERS or among
as src/engine/cuda/jit/std.h, which stands for all of STD_NAMES. Comments stay behind.
"""

import argparse
import hashlib
import re
from pathlib import Path

STD = Path(__file__).parent.parent / "src/engine/cuda/jit/std.h"
STD_NAMES = {
    *("algorithm", "array", "bit", "cfloat", "cstddef", "cstdint", "cuda.h", "numbers"),
    *("type_traits", "utility"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


def find(name, folders):
    if name in STD_NAMES:
        return STD
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise SystemExit(f"embed_headers.py: no {name} in {', '.join(map(str, folders))}")


def headers(roots, folders):
    """Name -> path of everything that is included, in order."""
    found, names = {}, list(roots)
    while names:
        name = names.pop(0)
        if name not in found:
            found[name] = find(name, folders)
            names += INCLUDE.findall(found[name].read_text())
    return found


def source(function, texts):
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"{name}\0{text}\0".encode())
    names = "".join(f'    "{name}",\n' for name in texts)
    bodies = "".join(f'    R"FA3({text})FA3",\n' for text in texts.values())
    return f"""// Written by tools/embed_headers.py.
#include "engine/cuda/jit/nvrtc.h"

namespace fa3::cuda {{
namespace {{
constexpr const char* kNames[] = {{
{names}}};
constexpr const char* kTexts[] = {{
{bodies}}};
}}  // namespace
EmbeddedHeaders {function}() {{
  return {{kNames, kTexts, "{digest.hexdigest()[:32]}"}};
}}
}}  // namespace fa3::cuda
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("function")
    parser.add_argument("roots", nargs="+")
    parser.add_argument("-I", dest="folders", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    found = headers(arguments.roots, arguments.folders)
    texts = {name: COMMENT.sub("", path.read_text()) for name, path in found.items()}
    Path(arguments.output).write_text(source(arguments.function, texts))
    every = " ".join(str(path.resolve()) for path in found.values())
    Path(arguments.output + ".d").write_text(f"{arguments.output}: {every}\n")


if __name__ == "__main__":
    main()

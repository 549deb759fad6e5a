# SPDX-License-Identifier: Apache-2.0
"""The sources of the Hopper kernels, and a hash of their tokens, which the record goes by."""

import hashlib
import re
from pathlib import Path

from source_tokens import CPP_SUFFIXES, tokens_of

ROOT = Path(__file__).resolve().parent.parent
# What decides the machine code and its launch.
SOURCES = (
    *("src/engine/hopper/**/*", "src/engine/ampere/**/*", "src/engine/cuda/**/*"),
    *("src/core/**/*", "tools/gen_wgmma.py"),
)
# What fa3_gpu_check_backward is made of: these and all that they need.
BACKWARD_STARTS = tuple(
    ROOT / "src/engine/hopper" / name
    for name in (
        "launch/launch_backward.h",
        "instances/backward_entry.cuh",
        "kernels/backward.h",
        "plan/backward/plan_backward.h",
    )
)
# Sources that only the backward has.
BACKWARD_ONLY = re.compile(r"/backward/|/\w*backward\w*[.]\w+$")
INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def sources(of: str = "", root: Path = ROOT) -> set[Path]:
    """Those that the checks of Hopper's "forward" or "backward" run, or all."""
    every = {path for pattern in SOURCES for path in root.glob(pattern) if path.is_file()}
    if of:
        every = {path for path in every if "/ampere/" not in path.as_posix()}
    if of == "forward":
        return {path for path in every if not BACKWARD_ONLY.search(path.as_posix())}
    if of == "backward":
        # Generators and build rules are everybody's.
        common = {path for path in every if path.suffix not in CPP_SUFFIXES}
        starts = {root / path.relative_to(ROOT) for path in BACKWARD_STARTS}
        return common | included(starts, every, root)
    return every


def included(starts: set[Path], every: set[Path], root: Path) -> set[Path]:
    """Of `every`: the starts, what they include, and the sources behind each header."""
    found, todo = set(), starts & every
    while todo:
        path = todo.pop()
        found.add(path)
        names = INCLUDE.findall(path.read_text())
        behind = {path.with_suffix(suffix) for suffix in (".cpp", ".cu")}
        todo |= ({root / "src" / name for name in names} | behind) & every - found
    return found


def source_hash(of: str = "", root: Path = ROOT) -> str:
    """SHA-256 over the names and tokens of sources(): comments and layout are free."""
    digest = hashlib.sha256()
    for path in sorted(sources(of, root)):
        for part in (path.relative_to(root).as_posix(), *tokens_of(path)):
            digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def hashes(names, root: Path = ROOT) -> dict:
    """The hash of the sources that each piece runs."""
    of = {kind: source_hash(kind, root) for kind in ("", "forward", "backward")}

    def kind_of(name):
        if "backward" in name:
            return "backward"
        return "forward" if name.startswith(("kernels", "compute-sanitizer")) else ""

    return {name: of[kind_of(name)] for name in names}

# SPDX-License-Identifier: Apache-2.0
"""The order in which a forward kernel's main loop issues its instructions, from machine code.

    python3 tools/instruction_order.py OBJECT... >docs/lab/results/x.jsonl

Needs nvdisasm (of the CUDA toolkit, or of `pip install nvidia-cuda-nvdisasm`; NVDISASM names
another one). FA3_COMMIT names the objects' commit; else it is the checkout's. The main loop is the
innermost loop with both matrix products and exponentials. A step of it can go several ways, since
max-tracking steps and ends of tiles are in the loop too; what is written is the shortest way round:
a guarded step within a tile. Each instruction is a letter of KINDS. benchmarks/figures.py draws the
rows.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import NamedTuple

from check_kernels import device_images, expected_of
from kernel_code import Symbol

KINDS = {
    "Q": "a part of Q K^T",  # both operands in shared memory
    "P": "a part of P V",  # P in registers
    "1": "wait until at most one group of products is left",
    "0": "wait for all products",
    "b": "barrier of the warpgroups",
    "t": "barrier of the copies",
    "x": "exponential",
    "f": "multiplication and addition",
    "a": "addition",
    "m": "maximum",
    "c": "conversion to 16 bits",
    ".": "other",
}
INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")
PREDICATE = re.compile(r"^@!?U?P\w+\s+")


class Instruction(NamedTuple):
    address: int
    text: str
    target: str | None  # label of a branch

    @property
    def opcode(self) -> str:
        return PREDICATE.sub("", self.text).split()[0]

    @property
    def branches(self) -> bool:
        return self.opcode.split(".")[0] == "BRA" and ".DIV" not in self.opcode

    @property
    def conditional(self) -> bool:
        return bool(PREDICATE.match(self.text))


def kind(instruction: Instruction) -> str:
    name, *parts = instruction.opcode.split(".")
    if name == "HGMMA":
        return "Q" if "gdesc" in instruction.text.split(",")[1] else "P"
    if name == "WARPGROUP" and "DEPBAR" in parts:
        return "0" if re.search(r"0x0$", instruction.text) else "1"
    simple = {"BAR": "b", "SYNCS": "t", "FFMA": "f", "FADD": "a", "FMNMX": "m", "F2FP": "c"}
    if name == "MUFU":
        return "x" if "EX2" in parts else "."
    return simple.get(name, ".")


class Code(NamedTuple):
    """A function: its instructions in order, and the number of the one behind each label."""

    instructions: list[Instruction]
    labels: dict[str, int]

    @classmethod
    def of(cls, listing: str) -> "Code":
        found, labels = [], {}
        for line in listing.splitlines():
            if label := LABEL.match(line):
                labels[label[1]] = len(found)
            elif match := INSTRUCTION.match(line):
                target = TARGET.search(match[2])
                found.append(Instruction(int(match[1], 16), match[2], target and target[1]))
        return cls(found, labels)

    def following(self, at: int) -> list[int]:
        one = self.instructions[at]
        if one.opcode == "EXIT" and not one.conditional:
            return []
        if not one.branches:
            return [at + 1]
        return [self.labels[one.target], *([at + 1] if one.conditional else [])]

    def main_loop(self) -> tuple[int, int]:
        """First and last instruction of the shortest loop with both products."""
        loops = []
        for last, one in enumerate(self.instructions):
            if one.branches and (first := self.labels[one.target]) <= last:
                kinds = {kind(each) for each in self.instructions[first : last + 1]}
                if {"Q", "P", "x"} <= kinds:
                    loops.append((last - first, first, last))
        if not loops:
            raise SystemExit("no loop has both matrix products and exponentials")
        _, first, last = min(loops)
        return first, last

    def shortest_way(self) -> list[Instruction]:
        """Of the main loop, from its head to the branch that goes back."""
        first, last = self.main_loop()
        before: dict[int, int | None] = {}
        reached: deque[tuple[int, int | None]] = deque([(first, None)])
        while reached:
            at, came_from = reached.popleft()
            if at in before:
                continue
            before[at] = came_from
            if at == last:
                break
            for to in self.following(at):
                if first <= to <= last:
                    reached.append((to, at))
        way, at = [], last
        while at is not None:
            way.append(self.instructions[at])
            at = before[at]
        return way[::-1]


def functions(listing: str) -> dict[str, str]:
    """Name -> listing of each function of nvdisasm's output."""
    parts = re.split(r"^\s*\.section\s+\.text\.([\w$]+)", listing, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def disassemble(image: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(image)
        command = [os.environ.get("NVDISASM", "nvdisasm"), "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
    import harness  # which needs torch

    for path in map(Path, sys.argv[1:]):
        for image in device_images(path.read_bytes()):
            for name, listing in functions(disassemble(image)).items():
                found = expected_of(Symbol.of(f".text.{name}"))
                if found is None or found[0] != "forward" or not found[1].startswith("bf16"):
                    continue
                numbers = [int(x) for x in found[1].split()[1:]]
                _, head_dim, _, block_m, block_n, *_ = numbers
                order = "".join(map(kind, Code.of(listing).shortest_way()))
                row = {"head_dim": head_dim, "tile": f"{block_m}x{block_n}", "order": order}
                print(json.dumps(row | {"commit": harness.commit()}))


if __name__ == "__main__":
    main()

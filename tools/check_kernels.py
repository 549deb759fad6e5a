# SPDX-License-Identifier: Apache-2.0
"""Compile gates for the Hopper kernels, read from machine code: needs no GPU and no CUDA tool.

    python3 tools/check_kernels.py OBJECT...

For every forward kernel in the objects (built with --compress-mode=none) this counts opcodes and
fails on
  - local memory traffic: registers were spilled, or an array was indexed at run time;
  - matrix products other than the two product sites of each kind ask for;
  - products the compiler serialised: more waits between them than the source has;
  - exponentials other than one for each score of a softmax site: the costliest scalar work;
  - a missing register reallocation.
"""

import re
import struct
import sys
from collections import Counter
from pathlib import Path

INSTRUCTION_BYTES = 16
OPCODE_MASK = 0xFFF
# Opcodes of sm_90, low 12 bits, as cuobjdump names them.
LOCAL = {0x983: "LDL", 0x387: "STL"}
HGMMA_SS, HGMMA_RS, WARPGROUP, SETMAXREG = 0x9F0, 0xDF0, 0x9C5, 0x9C8
# The mainloop's product sites. Q K^T: first block, step. P V: step, last block.
SITES = 2
# Fences: first block, step, last block. Waits: the same, and two in the step. A kernel that packs
# some weights early has the step's second wait in both softmax branches.
FENCES_AND_WAITS, EARLY_PACKING_DV = 7, 64
REALLOCATIONS = 2  # producer down, consumers up
# Special functions name themselves in the second word of the instruction.
MUFU, EX2 = 0x308, 2
# Softmax sites: first block; in the step guarded and ordinary; a block done again. Besides, factors
# of rows.
SOFTMAX_SITES, MOST_ROW_FACTORS = 4, 8

KERNEL = re.compile(
    rb"forward_kernelIXtlNS0_13ForwardConfigELNS_4cuda7ElementE(\d)"
    rb"ELi(\d+)ELi(\d+)ELi(\d+)ELi(\d+)ELi(\d+)ELi(\d+)ELb([01])"
)


def sections(elf: bytes):
    """(name, content) of every section of a 64-bit little-endian ELF image."""
    offset, entry_size, count, names = (
        struct.unpack_from("<Q", elf, 0x28)[0],
        *struct.unpack_from("<HHH", elf, 0x3A),
    )
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * entry_size) for i in range(count)
    ]
    strings = headers[names][4]
    for header in headers:
        start = strings + header[0]
        name = elf[start : elf.index(b"\0", start)]
        yield name, elf[header[4] : header[4] + header[5]]


def device_images(blob: bytes):
    """The CUDA ELF images inside an object file: machine number 190."""
    for match in re.finditer(rb"\x7fELF\x02\x01", blob):
        image = blob[match.start() :]
        if struct.unpack_from("<H", image, 18)[0] == 190:
            yield image


def opcodes(code: bytes) -> Counter:
    """How often each opcode occurs in a kernel's code."""
    words = (struct.unpack_from("<Q", code, i)[0] for i in range(0, len(code), INSTRUCTION_BYTES))
    return Counter(word & OPCODE_MASK for word in words)


def exponentials(code: bytes) -> int:
    words = struct.iter_unpack("<QQ", code[: len(code) // INSTRUCTION_BYTES * INSTRUCTION_BYTES])
    return sum(low & OPCODE_MASK == MUFU and high >> 10 & 15 == EX2 for low, high in words)


def complaints(name: bytes, code: bytes) -> list[str]:
    """What is wrong with a kernel, in sentences."""
    d, dv, _, block_n = (int(x) for x in KERNEL.search(name).groups()[1:5])
    count = opcodes(code)
    found = [f"{count[op]} {text}" for op, text in LOCAL.items() if count[op]]
    for kind, op, expected in (
        ("Q K^T", HGMMA_SS, SITES * d // 16),
        ("P V", HGMMA_RS, SITES * block_n // 16),
    ):
        if count[op] != expected:
            found.append(f"{count[op]} products of {kind}, expected {expected}")
    expected = FENCES_AND_WAITS + (dv <= EARLY_PACKING_DV)
    if count[WARPGROUP] != expected:
        found.append(f"{count[WARPGROUP]} fences and waits, expected {expected}: serialised")
    scores = SOFTMAX_SITES * block_n // 2
    if not scores <= exponentials(code) <= scores + MOST_ROW_FACTORS:
        found.append(f"{exponentials(code)} exponentials, expected {scores} and a few")
    if count[SETMAXREG] != REALLOCATIONS:
        found.append(f"{count[SETMAXREG]} register reallocations, expected {REALLOCATIONS}")
    return found


def main() -> int:
    """Checks every kernel; 0 if there are some and all are clean."""
    seen, bad = 0, 0
    for path in map(Path, sys.argv[1:]):
        for image in device_images(path.read_bytes()):
            for name, code in sections(image):
                if not name.startswith(b".text.") or not KERNEL.search(name):
                    continue
                seen += 1
                wrong = complaints(name, code)
                bad += bool(wrong)
                element, *shape = KERNEL.search(name).groups()
                label = f"{('fp16', 'bf16')[int(element)]} " + " ".join(x.decode() for x in shape)
                print(f"{label}: {'; '.join(wrong) or 'clean'}")
    print(f"kernels: {seen} checked, {bad} with complaints")
    return 1 if bad or not seen else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Compile gates for the GPU's kernels, read from machine code: needs no GPU and no CUDA tool.

    python3 tools/check_kernels.py OBJECT...

Machine code that nvcc compressed (--compress-mode=size) is unpacked by the command zstd. For every
attention kernel in the objects this counts opcodes and fails on
  - local memory traffic: registers were spilled, or an array was indexed at run time;
  - matrix products other than the product sites of each kind ask for;
  - products the compiler serialised: more waits between them than the source has;
  - exponentials other than one for each score of a softmax site: the costliest scalar work;
  - a missing register reallocation.
Of the ampere engine's and of latent caches: local memory traffic, and other than the products of
the source. A product in a branch that each warp takes for itself would be there twice.
"""

import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kernel_code import Element, Symbol, fields_of

INSTRUCTION_BYTES = 16
ZSTD_FRAME = rb"\x28\xb5\x2f\xfd"
OPCODE_MASK = 0xFFF
# Opcodes of sm_90, low 12 bits, as cuobjdump names them.
LOCAL = {0x983: "LDL", 0x387: "STL"}
SS, RS = (0x9F0, 0x9F3), (0xDF0, 0xDF3)  # products, HGMMA and QGMMA, by where A comes from
WARPGROUP, SETMAXREG = 0x9C5, 0x9C8
# Special functions name themselves in the second word of the instruction.
MUFU, EX2 = 0x308, 2
HMMA = 0x23C  # mma.sync


@dataclass
class Expected:
    """What the source of a kernel asks for."""

    ss: int  # products with both operands in shared memory
    rs: int  # with A in registers
    fences_and_waits: int
    exponentials: int
    more_exponentials: int = 0  # that are allowed: factors of rows
    spilled: int = 0  # loads or stores of spilled registers that are known
    reallocations: int = 2  # of registers: producer down, consumers up


@dataclass
class ExpectedLatent:
    """The same of a kernel of latent caches: products alone."""

    ss: int
    rs: int
    spilled: int = 0


@dataclass
class ExpectedMma:
    """What is expected of a kernel whose products are mma.sync."""

    products: int


# Loads of spilled registers by head dim, rows and keys: of producers, which have 32 to 88, and of
# consumers between tiles. The second are of quantized caches, whose producers also dequantize, by
# head dim and rows.
SPILLED = {
    (64, 192, 128): 3,
    (128, 128, 128): 22,
    (192, 128, 80): 1,
    (256, 64, 64): 2,
    (256, 128, 64): 6,
}
# Kernels without overlap have them where a block is done again; by head dim.
SERIAL_SPILLED = {64: 10}
# Loads of spilled registers in kernels that decode.
STREAM_K_SPILLED = {(128, 128, 128): 8, (256, 128, 64): 6}
CACHE_SPILLED = {(256, 64): 7, (256, 128): 13}
# Kernels with dropout for three warpgroups, by head dim.
DROPOUT_SPILLED = {64: 25}


# Loads of spilled registers of e4m3 kernels, by head dim, rows and keys: addresses of keys where
# lost scores are computed again, and up to two in the loop of steps within a tile. Without that
# rare code a kernel spills 0 to 5 registers.
E4M3_SPILLED = {
    (64, 192, 128): 37,
    (128, 128, 128): 7,
    (128, 128, 192): 51,
    (192, 128, 128): 47,
    (192, 128, 64): 6,
    (256, 128, 128): 96,
    (256, 128, 64): 27,
}


# Loads of spilled registers in kernels that transpose values: in the transposing warps and in the
# warp that loads.
TRANSPOSING_SPILLED = {128: 41, 256: 128}


# Loads of spilled registers in latent kernels of 64 rows of bytes, by head dim: most in their
# loaders, which have 88, and outside of their loops.
BYTES_SPILLED = {576: 50, 512: 33}


def forward_e4m3(d: int, block_m: int, block_n: int, variant: int, transposes: int) -> Expected:
    """As forward(). Two warpgroups issue in two places: where a part of O ends, and elsewhere.

    Beyond 128 columns the step that starts a tile is compiled apart, with ordinary softmax. Dense
    kernels have one step more, which follows peaked rows. The compiler may double one softmax
    site. Softcap has an exponential more in three places.
    """
    apart, under_scores, follows = d > 128, block_m <= 128, variant != CAPPED
    sites = 4 + apart + (1 if follows else 3)
    issues = 2 + under_scores + apart + follows * (1 + under_scores)
    ss, rs = issues * d // 32, issues * block_n // 32
    fences_and_waits = 7 + 2 * under_scores + 3 * apart + follows * (3 + 2 * under_scores)
    more = block_n // 2 + 32
    spilled = E4M3_SPILLED.get((d, block_m, block_n), 0)
    if transposes:
        spilled = TRANSPOSING_SPILLED[d]
    return Expected(ss, rs, fences_and_waits, sites * block_n // 2, more, spilled)


def forward_serial(d: int, dv: int, block_n: int) -> Expected:
    """Steps without overlap: each product in one place with a fence and a wait, and one softmax.

    While a block is done again, O waits in local memory, two numbers an access.
    """
    spilled = dv // 4 + SERIAL_SPILLED.get(d, 0)
    return Expected(d // 16, block_n // 16, 4, block_n // 2, 10, spilled)


def forward(
    e4m3: int,
    d: int,
    dv: int,
    block_m: int,
    block_n: int,
    overlaps: int,
    narrow: int,
    guarded: int,
    dropout: int,
    variant: int,
    transposes: int,
) -> Expected:
    """Sites: Q K^T in the first block and the step, P V in the step and the last block.

    Fences: first block, step, last block; waits: the same, and two in the step. A kernel that packs
    some weights early has the step's second wait in both softmax branches. Softmax: first block; in
    the step guarded and ordinary; a block done again. Softcap of large products has one more
    exponential in three places: first block, step, a block done again. Kernels without guarded
    steps (quantized caches) lack these and the block done again, and pack nothing early; those for
    few queries have each softmax twice, once for the first of a thread's two rows alone. The
    compiler may repeat one softmax for a warp that has diverged. While a block is
    done again, O waits in local memory, two numbers an access.
    """
    if e4m3:
        return forward_e4m3(d, block_m, block_n, variant, transposes)
    if not overlaps:
        return forward_serial(d, dv, block_n)
    sites = 2 + 2 * guarded + (2 + guarded if variant == CAPPED else 0)
    early = guarded and dv <= 64 and not dropout
    known = CACHE_SPILLED.get((d, block_m), 0) if narrow else SPILLED.get((d, block_m, block_n), 0)
    spilled = known if variant in (GENERAL, CAPPED) else 0
    if variant == STREAM_K:
        spilled = STREAM_K_SPILLED.get((d, block_m, block_n), 0)
    if dropout:
        spilled = DROPOUT_SPILLED.get(d, 0) if block_m == 192 else 0
    ss, rs, exponentials = 2 * d // 16, 2 * block_n // 16, sites * block_n // 2
    factors = 10  # two where rows go on from others
    if guarded:
        spilled += dv // 4
        factors += block_n // 2
        if variant in (GENERAL, CAPPED) or (variant == STREAM_K and d > 128):
            factors += block_n // 2 + 4
    if variant == STREAM_K:
        factors += MERGED if block_m == 64 else JOINED
    if narrow and block_m == 64:
        factors += 2 * block_n // 4
    return Expected(ss, rs, 7 + early, exponentials, factors, spilled)


# By head dim and rows of a tile: of kernels for one sequence, two of whose thread blocks share a
# multiprocessor's registers, or whose sixteen rows of 256 columns need them all.
DECODE_SPILLED = {(64, 8): 2, (128, 8): 2, (256, 16): 14}


def decode(
    *, d: int, block_m: int, block_n: int, narrow: int, variant: int, **others: int
) -> Expected:
    """No wgmma; a weight for each score of a slot and lane.

    The ring of slots is filled in two ways, whose loops are compiled apart, but for caches of
    several sequences and few rows.
    """
    rings = 1 if variant == DECODE and narrow and block_m == 8 else 2
    slot_scores = block_n // 8 * block_m // 32
    spilled = DECODE_SPILLED.get((d, block_m), 0) if variant == DECODE_SINGLE else 0
    return Expected(0, 0, 0, rings * slot_scores, 160, spilled, 0)


def backward(
    d: int,
    dv: int,
    block_m: int,
    block_n: int,
    helpers: int,
    variant: int,
    dropout: int,
    in_pairs: int,
) -> Expected:
    """Sites up to 128 columns: S in first block and step, dP and dV in the step, dK also last.

    Beyond, with 128 keys, dK's products find dS in shared memory. With 64, each side has two sites
    of its tile and two of its sum, in halves at 256. dQ's parts are unrolled where there are two.
    Softcap of large products has one more exponential wherever there are scores, and with helpers
    at 128 columns spilled registers. Helpers give up registers too. Of pairs dQ is half of the
    columns of two products, with a fence each. At 256 columns CTAs are pairs, and the halves of dO
    have a fence each and a wait where they are summed.
    """
    slab = 64 if d % 64 == 0 else 32
    ctas = 2 if d == 256 or in_pairs else 1
    parts = max(block_m // 64, 1) * (d // slab) // ctas
    dq_sites = parts if parts <= 2 else 1
    dq = ctas * dq_sites * block_n // 16
    exponentials = block_m * (2 if variant == CAPPED else 1)
    if block_n > 64 and d > 128:
        ss, rs = 2 * d // 16 + dv // 16 + 2 * block_m // 16 + dq, block_m // 16
        return Expected(ss, rs, 10 + 2 * dq_sites, exponentials, 0, 0, 2)
    if d <= 128:
        spilled = 38 if d == 128 and helpers and variant == CAPPED else 0
        ss, rs = 2 * d // 16 + dv // 16 + dq, 3 * block_m // 16
        return Expected(ss, rs, 10 + (1 + ctas) * dq_sites, exponentials, 0, spilled, 2 + helpers)
    ss, rs = 2 * (d + dv) // 16 + dq, 4 * block_m // 16 * (d // 256 + 1)
    of_pairs = dq_sites + 8 if ctas == 2 else 0
    spilled = 1 if ctas == 2 and variant == GENERAL else 0
    return Expected(ss, rs, 14 + 2 * dq_sites + of_pairs, exponentials, 0, spilled, 2 + helpers)


def latent(rows: int, head_dim: int, is_bytes: int) -> ExpectedLatent:
    """Q K^T of 64 keys, and P V of 512 channels as O^T.

    Of 64 rows: the consumer of even blocks has Q K^T, its own P V (from registers) and the other's
    in two, two and one places, that of odd blocks in one, one and two; each has half of O.
    """
    scores, values = head_dim // 16, 4
    if rows == 64:
        spilled = BYTES_SPILLED[head_dim] if is_bytes else int(head_dim > 512)
        return ExpectedLatent(3 * scores + 3 * values, 3 * values, spilled)
    products = scores + 512 // 64 * values
    return ExpectedLatent(0, products) if is_bytes else ExpectedLatent(products, 0)


def ampere_backward(
    d: int, dv: int, block_m: int, block_n: int, stages: int, smem_class: int, scored: int
) -> ExpectedMma:
    """S and dV of the values' side, dP and dK of the keys' side, each of a quarter of the keys.

    An eighth of dQ in four places: in the loop of each side, and behind it. With two stages also
    with copies between, in the values' side.
    """
    tiles, steps = block_n // 4 // 16, block_m // 16
    of_scores = tiles * (block_m // 8) * (d + dv) // 16
    of_sums = tiles * (d + dv) // 8 * steps
    of_dq = (4 + (stages > 1)) * steps * (d // 8) * (block_n // 16) // 8
    return ExpectedMma(of_scores + of_sums + of_dq)


def ampere_forward(d: int, dv: int, block_m: int, block_n: int, *rest: int) -> Expected:
    """No wgmma, and no spilled register.

    Softmax is there guarded and ordinary, and softcap of large products has one more exponential;
    the rest are factors of rows.
    """
    warps = 1 if block_m == 16 else 4
    scores = block_m // warps // 16 * block_n // 2
    return Expected(0, 0, 0, 3 * scores, 64, 0, 0)


# The first two as in config/sm90.h, the others as Tiles in config/kernel.h.
GENERAL, CAPPED, STREAM_K, DECODE, DECODE_SINGLE = 1, 2, 3, 4, 5
VARLEN, LISTED_VARLEN = 1, 7  # of Tiles
# Exponentials of the merge in a kernel that decodes: 16 pieces of a row, 4 of 4 rows, and of each
# of these five a factor and two for a sink.
MERGED = 16 + 4 * 4 + 5 * 3
# Factors where a split of the tile joins two rows: of their own part and of the split's.
JOINED = 2 * 2


def forward_arguments(k: dict) -> dict:
    """Of a forward or decode kernel, by the fields of Kernel (config/kernel.h)."""
    narrow, tiles = k["operands"] == 1, k["tiles"]
    decodes = tiles in (DECODE, DECODE_SINGLE)
    waits = tiles == STREAM_K and k["block_m"] == 64
    return {
        "e4m3": k["operands"] >= 2,
        "d": k["head_dim"],
        "dv": k["head_dim_v"],
        "block_m": k["block_m"],
        "block_n": k["block_n"],
        "overlaps": k["overlaps"],
        "narrow": narrow,
        "guarded": not (narrow or decodes or waits),
        "dropout": k["weights"] == 1,
        "variant": CAPPED if k["scores"] else (0, GENERAL, GENERAL, 3, 4, 5, 0, GENERAL)[tiles],
        "transposes": k["operands"] == 3,
    }


def backward_arguments(k: dict) -> dict:
    """Of a backward kernel, by the fields of BackwardConfig (config/backward_config.h)."""
    varlen = k["tiles"] in (VARLEN, LISTED_VARLEN)
    return {
        "d": k["head_dim"],
        "dv": k["head_dim_v"],
        **{name: k[name] for name in ("block_m", "block_n", "helpers")},
        "variant": CAPPED if k["scores"] else GENERAL if varlen else 0,
        "dropout": k["weights"] == 1,
        "in_pairs": k["sharing"] == 2,
    }


def latent_arguments(k: dict) -> dict:
    """Of a kernel of latent caches, by the fields of LatentShape."""
    return {name: k[name] for name in ("rows", "head_dim", "is_bytes")}


# By engine and function: the kind, what is expected, and its arguments by the fields.
KERNELS = {
    ("hopper", "forward_kernel"): ("forward", forward, forward_arguments),
    ("hopper", "decode_kernel"): ("decode", decode, forward_arguments),
    ("hopper", "backward_kernel"): ("backward", backward, backward_arguments),
    ("hopper", "latent_kernel"): ("latent", latent, latent_arguments),
    ("ampere", "forward_kernel"): ("ampere forward", ampere_forward, None),
    ("ampere", "backward_kernel"): ("ampere backward", ampere_backward, None),
}


def expected_of(
    symbol: Symbol,
) -> tuple[str, str, Expected | ExpectedLatent | ExpectedMma] | None:
    """The kind, the label and what is expected, of an attention kernel."""
    engine, function = (["", *symbol.names])[-2:]
    if (engine, function) not in KERNELS:
        return None
    kind, expect, arguments = KERNELS[engine, function]
    struct_name, values = symbol.arguments[0]
    fields = fields_of(f"{engine} {struct_name}", values)
    element = next(value for value in fields.values() if isinstance(value, Element))
    if arguments is None:  # of the ampere engine: in order, behind the element
        numbers = [*fields.values()][1:8]
        expected = expect(*numbers)
    else:
        given = arguments(fields)
        numbers, expected = [*given.values()], expect(**given)
    return kind, f"{('fp16', 'bf16')[element]} {' '.join(str(int(n)) for n in numbers)}", expected


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
    """The CUDA ELF images inside an object file, compressed or not: machine number 190."""
    frames = (blob[match.start() :] for match in re.finditer(ZSTD_FRAME, blob))
    for part in (blob, *map(unpacked, frames)):
        for match in re.finditer(rb"\x7fELF\x02\x01", part):
            image = part[match.start() :]
            if struct.unpack_from("<H", image, 18)[0] == 190:
                yield image


def unpacked(frame: bytes) -> bytes:
    """What a zstd frame holds; what follows the frame makes zstd fail at its end."""
    if shutil.which("zstd") is None:
        sys.exit("zstd: expected the command, which unpacks machine code; install the package zstd")
    return subprocess.run(["zstd", "-dcq"], input=frame, capture_output=True).stdout


def opcodes(code: bytes) -> Counter:
    """How often each opcode occurs in a kernel's code."""
    words = (struct.unpack_from("<Q", code, i)[0] for i in range(0, len(code), INSTRUCTION_BYTES))
    return Counter(word & OPCODE_MASK for word in words)


def exponentials(code: bytes) -> int:
    words = struct.iter_unpack("<QQ", code[: len(code) // INSTRUCTION_BYTES * INSTRUCTION_BYTES])
    return sum(low & OPCODE_MASK == MUFU and high >> 10 & 15 == EX2 for low, high in words)


def complaints(expected: Expected | ExpectedLatent | ExpectedMma, code: bytes) -> list[str]:
    """What is wrong with a kernel, in sentences."""
    count = opcodes(code)
    if isinstance(expected, ExpectedMma):
        found = [f"{count[op]} {text}" for op, text in LOCAL.items() if count[op]]
        if count[HMMA] != expected.products:
            found.append(f"{count[HMMA]} products, expected {expected.products}")
        return found
    found = [f"{count[op]} {text}" for op, text in LOCAL.items() if count[op] > expected.spilled]
    for kind, ops, sites in (("SS", SS, expected.ss), ("RS", RS, expected.rs)):
        products = sum(count[op] for op in ops)
        if products != sites:
            found.append(f"{products} {kind} products, expected {sites}")
    if isinstance(expected, ExpectedLatent):
        return found
    if count[WARPGROUP] != expected.fences_and_waits:
        found.append(
            f"{count[WARPGROUP]} fences and waits, expected {expected.fences_and_waits}: serialised"
        )
    most = expected.exponentials + expected.more_exponentials
    if not expected.exponentials <= exponentials(code) <= most:
        found.append(
            f"{exponentials(code)} exponentials, expected {expected.exponentials} to {most}"
        )
    if count[SETMAXREG] != expected.reallocations:
        found.append(
            f"{count[SETMAXREG]} register reallocations, expected {expected.reallocations}"
        )
    return found


def main() -> int:
    """Checks every kernel; 0 if there are some of each kind and all are clean."""
    seen, bad = Counter(), 0
    for path in map(Path, sys.argv[1:]):
        for image in device_images(path.read_bytes()):
            for name, code in sections(image):
                if not name.startswith(b".text._ZN"):
                    continue
                found = expected_of(Symbol.of(name.decode()))
                if found is None:
                    continue
                kind, label, expected = found
                seen[kind] += 1
                wrong = complaints(expected, code)
                bad += bool(wrong)
                print(f"{kind} {label}: {'; '.join(wrong) or 'clean'}")
    unseen = [kind for kind, *_ in KERNELS.values() if not seen[kind]]
    for kind in unseen:
        print(f"{kind}: no kernel of this kind; were their names' parts changed?")
    print(f"kernels: {seen.total()} checked, {bad} with complaints")
    return 1 if bad or unseen else 0


if __name__ == "__main__":
    sys.exit(main())

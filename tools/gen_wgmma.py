#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes wgmma_atoms.inc: one function per wgmma width and element type the kernels use.

A wgmma names every accumulator register in its text, so each width N needs its own asm statement.
Widths are told apart by overload on the accumulator array; the operands' majors are template
parameters, because the instruction takes them as immediates. Run: gen_wgmma.py OUTPUT
"""

import sys

# A from shared memory: as wide as a tile of keys or queries, or a slab of columns of dQ.
NARROW_SS_WIDTHS = (16,)
NARROW_RS_WIDTHS = (16,)
SS_WIDTHS = (32, *range(48, 257, 16))
# A from registers: as wide as the columns of O, dK or dV.
RS_WIDTHS = (64, 96, 128, 192, 256)
ELEMENTS = (("kFp16", "f16"), ("kBf16", "bf16"))
# e4m3: as wide as a tile of keys, and as the columns of O.
E4M3_SS_WIDTHS = (64, 128, 192)
E4M3_RS_WIDTHS = (64, 128, 192, 256)


def registers(first, count):
    return ", ".join(f"%{first + i}" for i in range(count))


def outputs(count):
    lines = []
    for start in range(0, count, 8):
        lines.append(", ".join(f'"+f"(d[{i}])' for i in range(start, start + 8)))
    return ",\n          ".join(lines)


def atom(kind, width, element, ptx_type):
    count = width // 2
    shape = f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{ptx_type}.{ptx_type}"
    if kind == "ss":
        name = "wgmma_m64k16_ss"
        majors = "Major A, Major B"
        arguments = "uint64_t a_desc, uint64_t b_desc, int accumulate"
        operands = f"%{count}, %{count + 1}"
        predicate = f"%{count + 2}"
        modifiers = f"p, 1, 1, %{count + 3}, %{count + 4}"  # scale-d, +A, +B, majors of A and B
        inputs = '"l"(a_desc), "l"(b_desc), "r"(accumulate), "n"(int(A)), "n"(int(B))'
    else:
        name = "wgmma_m64k16_rs"
        majors = "Major B"
        arguments = "const uint32_t (&a)[4], uint64_t b_desc, int accumulate"
        operands = "{" + registers(count, 4) + "}, %" + str(count + 4)
        predicate = f"%{count + 5}"
        modifiers = f"p, 1, 1, %{count + 6}"  # scale-d, +A, +B, major of B
        inputs = (
            '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc), "r"(accumulate), "n"(int(B))'
        )
    return f"""template <Element E, {majors}>
  requires(E == Element::{element})
__device__ __forceinline__ void {name}(float (&d)[{count}], {arguments}) {{
  asm volatile(
      "{{\\n.reg .pred p;\\nsetp.ne.b32 p, {predicate}, 0;\\n"
      "{shape} "
      "{{{registers(0, count)}}}, "
      "{operands}, {modifiers};\\n}}\\n"
      : {outputs(count)}
      : {inputs});
}}
"""


def e4m3_atom(kind, width):
    """Both operands have their sums along columns: the instruction knows no other e4m3."""
    count = width // 2
    shape = f"wgmma.mma_async.sync.aligned.m64n{width}k32.f32.e4m3.e4m3"
    if kind == "ss":
        arguments = "uint64_t a_desc, uint64_t b_desc, int accumulate"
        operands = f"%{count}, %{count + 1}"
        inputs = '"l"(a_desc), "l"(b_desc), "r"(accumulate)'
        predicate = f"%{count + 2}"
    else:
        arguments = "const uint32_t (&a)[4], uint64_t b_desc, int accumulate"
        operands = "{" + registers(count, 4) + "}, %" + str(count + 4)
        inputs = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc), "r"(accumulate)'
        predicate = f"%{count + 5}"
    name = f"wgmma_m64k32_{kind}"
    return f"""__device__ __forceinline__ void {name}(float (&d)[{count}], {arguments}) {{
  asm volatile(
      "{{\\n.reg .pred p;\\nsetp.ne.b32 p, {predicate}, 0;\\n"
      "{shape} "
      "{{{registers(0, count)}}}, "
      "{operands}, p, 1, 1;\\n}}\\n"
      : {outputs(count)}
      : {inputs});
}}
"""


def main():
    parts = [
        "// SPDX-License-Identifier: Apache-2.0\n// Written by tools/gen_wgmma.py; do not edit.\n"
    ]
    narrow = sys.argv[2:] == ["--narrow"]
    ss, rs = (NARROW_SS_WIDTHS, NARROW_RS_WIDTHS) if narrow else (SS_WIDTHS, RS_WIDTHS)
    for kind, widths in (("ss", ss), ("rs", rs)):
        for width in widths:
            for element, ptx_type in ELEMENTS:
                parts.append(atom(kind, width, element, ptx_type))
    if not narrow:
        parts += [e4m3_atom("ss", width) for width in E4M3_SS_WIDTHS]
        parts += [e4m3_atom("rs", width) for width in E4M3_RS_WIDTHS]
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write("\n".join(parts))


if __name__ == "__main__":
    main()

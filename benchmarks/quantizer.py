# SPDX-License-Identifier: Apache-2.0
"""The quantizer to e4m3, beside a copy of the same tensor, in turns.

    python3 benchmarks/quantizer.py --json docs/lab/results/x.jsonl

bf16; a call is replayed as a CUDA graph, timed as harness.py says. Bytes: x is read once, and once
more where means or shared scales are looked for; y is written once. The copy's bytes: as many read
as written.
"""

from itertools import product
from pathlib import Path

import torch
from harness import parser_of, progress, provenance, time_all, write_rows
from masks import Call, normal

import fa3

SHAPES = ((4, 16384, 32, 64), (4, 16384, 16, 128), (4, 16384, 8, 256))  # 256 MiB each
CASES = {
    "blocks": ({}, 1),
    "blocks, Hadamard": ({"hadamard": True}, 1),
    "blocks, Hadamard, rotary": ({"hadamard": True, "rotary": True}, 1),
    "blocks, centred": ({"center": True}, 2),
    "blocks, centred, Hadamard": ({"center": True, "hadamard": True}, 2),
    "a scale a head": ({"scaling": "head"}, 2),
}


def rotary_tables(rows, dim):
    angle = torch.arange(rows, device="cuda")[:, None] * 1e-4 ** (
        torch.arange(dim // 2, device="cuda") / (dim // 2)
    )
    return angle.cos(), angle.sin()


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    torch.set_default_device("cuda")
    for shape, (name, (options, reads)) in progress(list(product(SHAPES, CASES.items()))):
        x = normal(*shape)
        y = torch.empty_like(x)
        if "rotary" in options:
            options = options | {"rotary": rotary_tables(shape[1], shape[3])}
        copy = Call(lambda x=x, y=y: y.copy_(x), "cuda", "copy")
        ours = Call(lambda x=x, o=options: fa3.quantize(x, **o), "cuda", "fa3")
        timings = time_all([ours, copy], "cuda", arguments.rounds)
        moved = {"fa3": (2 * reads + 1) * x.numel(), "copy": 4 * x.numel()}
        rate = {who: moved[who] / timings[who]["median_ms"] / 1e6 for who in moved}
        told = (
            f"{rate['fa3']:6.0f} GB/s, copy {rate['copy']:6.0f}, {rate['fa3'] / rate['copy']:.3f}"
        )
        print(f"d{shape[3]:<4d} {name:26s} {told}", flush=True)
        row = {"engine": "fa3", "pass": "quantize", "case": name, "head_dim": shape[3]}
        row |= timings["fa3"] | {"gbytes_per_s": rate["fa3"], "copy_gbytes_per_s": rate["copy"]}
        write_rows(arguments.json, [row | provenance("cuda")])


if __name__ == "__main__":
    main()

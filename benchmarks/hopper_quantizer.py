# SPDX-License-Identifier: Apache-2.0
"""The quantizer to e4m3, beside a copy of the same tensor.

    python3 benchmarks/hopper_quantizer.py --json docs/results/x.jsonl

bf16; a call is replayed as a CUDA graph, with the L2 cache flushed before, and the median of the
rounds is taken. Bytes: x is read once, and once more where means or shared scales are looked for;
y is written once. The copy's bytes: as many read as written.
"""

import argparse
import json
from pathlib import Path

import torch
from hopper_masks import median_ms, normal

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


def gigabytes_per_second(call, count, rounds):
    return count / median_ms(call, rounds) / 1e6


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    for shape in SHAPES:
        x = normal(*shape)
        y = torch.empty_like(x)
        copy = gigabytes_per_second(lambda x=x, y=y: y.copy_(x), 4 * x.numel(), arguments.rounds)
        for name, (options, reads) in CASES.items():
            if "rotary" in options:
                options = options | {"rotary": rotary_tables(shape[1], shape[3])}
            rate = gigabytes_per_second(
                lambda x=x, o=options: fa3.quantize(x, **o),
                (2 * reads + 1) * x.numel(),
                arguments.rounds,
            )
            print(
                f"d{shape[3]:<4d} {name:26s} {rate:6.0f} GB/s, copy {copy:6.0f}, {rate / copy:.3f}"
            )
            row = {"case": name, "head_dim": shape[3], "gbytes_per_s": round(rate, 1)}
            row |= {"copy_gbytes_per_s": round(copy, 1), "rounds": arguments.rounds}
            row |= {"gpu": torch.cuda.get_device_name()}
            if arguments.json:
                with arguments.json.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

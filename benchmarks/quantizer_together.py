# SPDX-License-Identifier: Apache-2.0
"""q, k and v quantized by one call, beside a copy of as many bytes, in turns.

    python3 benchmarks/quantizer_together.py --json docs/lab/results/x.jsonl

bf16, Hadamard, k and v centred, V transposed; a call is replayed as a CUDA graph, timed as
harness.py says. Bytes: q, k and v are read once, y is written once. FA3_LIBRARY chooses the
library; --digests writes a hash of each output, which libraries of the same arithmetic share.
"""

import hashlib
import json
from pathlib import Path

import torch
from harness import parser_of, progress, provenance, time_all, write_rows
from masks import Call, normal

from fa3.quantization import quantize_together

# (sequences, rows, heads of q, key heads, head dim)
SHAPES = [
    *((batch, 16384 // batch, 2048 // dim, 2048 // dim, dim)
      for dim in (64, 128, 256) for batch in (16, 8, 4, 1)),
    *((batch, rows, 16, heads, 128)
      for batch, rows, heads in ((1, 1024, 16), (4, 1024, 16), (16, 4096, 16), (4, 4096, 2))),
    (4, 4096, 21, 21, 96), (4, 4096, 10, 10, 192),
]  # fmt: skip


def quantized(q, k, v, hadamard=True, center=True, transposed=True, **lengths):
    given = {"cu_seqlens": None, "seqused": None, "max_seqlen": 0} | lengths
    found = quantize_together(
        q, k, v, scaling="block", center=center, hadamard=hadamard, seed=5,
        lengths={"q": given, "k": given}, transposed=transposed,
    )  # fmt: skip
    return [x for one in found for x in (one.x.view(torch.uint8), one.descale, one.mean)]


def digest(x):
    if x is None:
        return None
    return hashlib.sha256(x.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:16]


def write_digests(path):
    """Small and large calls, whole blocks and others, of every head dim."""
    cu = torch.tensor([0, 100, 100, 733, 2000], dtype=torch.int32)
    used = torch.tensor([700, 1, 64], dtype=torch.int32)
    for dim in (64, 96, 128, 192, 256):
        for batch, rows, lengths in (
            *((1, 1000, {}), (3, 700, {}), (4, 4096, {}), (1, 16384, {})),
            (3, 700, {"seqused": used}), (0, 2000, {"cu_seqlens": cu, "max_seqlen": 1300}),
        ):  # fmt: skip
            for options in (
                *({}, {"hadamard": False}, {"center": False}),
                {"hadamard": False, "transposed": False}, {"transposed": False},
            ):  # fmt: skip
                if lengths and options.get("transposed", True):
                    continue
                torch.manual_seed(dim + rows)
                sizes = (batch, rows) if batch else (rows,)
                q, k, v = (normal(*sizes, heads, dim) + 1 for heads in (8, 4, 4))
                found = [digest(x) for x in quantized(q, k, v, **options, **lengths)]
                case = f"d{dim} {batch} x {rows} {sorted(lengths)} {options}"
                with path.open("a") as file:
                    file.write(json.dumps([case, *found]) + "\n")


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    parser.add_argument("--digests", type=Path, help="append hashes to this file, and time nothing")
    arguments = parser.parse_args()
    torch.set_default_device("cuda")
    if arguments.digests:
        return write_digests(arguments.digests)
    for batch, rows, heads_q, heads_k, dim in progress(SHAPES):
        q, k, v = (normal(batch, rows, heads, dim) for heads in (heads_q, heads_k, heads_k))
        numbers = q.numel() + k.numel() + v.numel()
        read = torch.empty(3 * numbers // 2, dtype=torch.uint8)
        write = torch.empty_like(read)
        copy = Call(lambda r=read, w=write: [w.copy_(r)], "cuda", "copy")
        ours = Call(lambda t=(q, k, v): [x for x in quantized(*t) if x is not None], "cuda", "fa3")
        timings = time_all([ours, copy], "cuda", arguments.rounds)
        us = {who: 1e3 * timings[who]["median_ms"] for who in ("fa3", "copy")}
        told = f"{us['fa3']:7.1f} us, copy {us['copy']:7.1f}, {3 * numbers / us['fa3'] / 1e3:6.0f}"
        print(
            f"d{dim:<4d} {batch:3d} x {rows:<6d} {heads_q:3d}/{heads_k:<3d} {told} GB/s", flush=True
        )
        row = {"engine": "fa3", "pass": "quantize together", "head_dim": dim, "batch": batch}
        row |= {"rows": rows, "heads_q": heads_q, "heads_k": heads_k} | timings["fa3"]
        write_rows(arguments.json, [row | {"copy_us": us["copy"]} | provenance("cuda")])
    return None


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Times forward configurations that are not in the table (hopper_sweep.cu, sweep_configs.h) beside
cuDNN and any rival library, by the method of rivals.py: for tuning tiles, stages and schedules.

    python3 benchmarks/hopper_sweep.py SWEEP.so OUT.jsonl --head-dim 64,128 --seqlen 512,4096
"""

import argparse
import ctypes
import json
import sys
from itertools import product
from pathlib import Path

import rivals
import torch
from torch.nn.attention import SDPBackend

TOKENS, HIDDEN = 16384, 2048
WORKSPACE_BYTES = 64 << 20


class Swept:
    """Configuration `index` of the sweep library."""

    def __init__(self, library, index, config, case, tensors):
        _, _, _, block_m, block_n, q_slots, kv_slots, turns = config
        self.name = f"{index}:{block_m}x{block_n}q{q_slots}k{kv_slots}p{turns}"
        self.library, self.index, self.case = library, index, case
        self.o = torch.empty_like(tensors.q)
        self.lse = torch.empty((case.batch, case.heads, case.seqlen), device="cuda")
        self.workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        operands = (tensors.q, tensors.k, tensors.v, self.o, self.lse, self.workspace)
        self.pointers = [ctypes.c_void_p(operand.data_ptr()) for operand in operands]

    def __call__(self):
        case = self.case
        sizes = (case.batch, case.heads, case.kv_heads, case.seqlen, case.seqlen)
        scale = ctypes.c_float(case.head_dim**-0.5)
        stream = ctypes.c_void_p(rivals.stream_of("cuda"))
        dims = (case.head_dim, case.head_dim, int(case.causal))
        error = self.library.sweep_forward(self.index, *self.pointers, *sizes, *dims, scale, stream)
        if error != 0:
            raise RuntimeError(f"{self.name}: CUDA error {error}")
        return self.o


def configurations(library) -> list:
    """(element, head dim, head dim of V, block_m, block_n, Q slots, KV slots, turns) of each."""
    found = []
    for index in range(library.sweep_count()):
        raw = (ctypes.c_int * 8)()
        library.sweep_config(index, raw)
        found.append(tuple(raw))
    return found


def contenders(library, case, tensors, rival_paths) -> list:
    """The right ones: what differs from cuDNN is reported and left out."""
    cudnn = rivals.Sdpa("cudnn", SDPBackend.CUDNN_ATTENTION, case, tensors)
    want = cudnn().float()
    others = [rivals.RivalLibrary(path, case, tensors) for path in rival_paths]
    others += [
        Swept(library, index, config, case, tensors)
        for index, config in enumerate(configurations(library))
        if config[0] == 1 and config[1] == config[2] == case.head_dim  # bfloat16
    ]
    right = [cudnn]
    for one in others:
        error = ((one().float() - want).norm() / want.norm()).item()
        if error < 0.01:
            right.append(one)
        else:
            print(f"  left out: {one.name} differs by {error:.1e}", file=sys.stderr)
    return right


def main():
    def numbers(text):
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", help="hopper_sweep.cu, built as a shared library")
    parser.add_argument("out", type=Path, help="JSON lines are appended to this file")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256], metavar="LIST")
    parser.add_argument("--seqlen", type=numbers, default=[512, 2048, 16384], metavar="LIST")
    parser.add_argument("--causal", type=numbers, default=[0, 1], metavar="LIST")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rival", action="append", default=[], metavar="LIB.so")
    arguments = parser.parse_args()
    library = ctypes.CDLL(arguments.library)
    for head_dim, causal, seqlen in product(arguments.head_dim, arguments.causal, arguments.seqlen):
        heads = HIDDEN // head_dim
        shape = {"batch": TOKENS // seqlen, "seqlen": seqlen, "heads": heads, "kv_heads": heads}
        case = rivals.Case(
            **shape, head_dim=head_dim, causal=bool(causal), dtype="bf16", device="cuda"
        )
        tensors = rivals.Tensors(case, "bshd")
        ready = contenders(library, case, tensors, arguments.rival)
        medians = rivals.time_all(ready, "cuda", arguments.rounds)
        cell = {"head_dim": head_dim, "causal": bool(causal), "seqlen": seqlen}
        tflops = {name: case.flops() / ms / 1e9 for name, ms in medians.items()}
        with arguments.out.open("a") as lines:
            lines.write(json.dumps(cell | {"tflops": tflops} | rivals.gpu_state()) + "\n")
        row = "  ".join(f"{name} {value:.0f}" for name, value in tflops.items())
        print(f"d{head_dim} causal {causal} s{seqlen} TFLOP/s: {row}", flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""What each idea of the forward kernel is worth: the paper's Table 2, and tiles and stages.

    python3 benchmarks/ablation.py --json rows.jsonl

Variants of the tutorial kernel (ablation/ablated_kernel.cuh in lib/libfa3_ablation.so, beside the
library) with one idea switched off or on at a time, and the library's kernel, on the shape of the
paper's Table 2: fp16, 4 sequences of 8448, 16 heads of 128, without a mask; tiles and stages at 64
and 256 columns as well. A variant whose output differs from the library's gets no time. Timed as
harness.py says.
"""

import ctypes
import os
from pathlib import Path

import torch
from contenders import Case, Tensors
from contenders.library import RivalProblem
from contenders.ours import Fa3, c_abi
from harness import parser_of, provenance, time_all, write_rows

MOST_APART = 0.02
NUMBERS = "head_dim block_n stages threads registers spilled_bytes".split()


class Variant:
    """A contender of harness.py."""

    def __init__(self, library, number: int):
        library.ablation_name.restype = ctypes.c_char_p
        values = (ctypes.c_int * len(NUMBERS))()
        if error := library.ablation_numbers(number, values):
            raise RuntimeError(f"variant {number}: error {error} of CUDA")
        self.columns = dict(zip(NUMBERS, values, strict=True))
        self.idea = library.ablation_name(number).decode()
        self.tile = f"128x{self.columns['block_n']}"
        self.name = f"{self.idea} d{self.columns['head_dim']} {self.tile} {self.columns['stages']}"
        self.library, self.number = library, number

    def prepare(self, case: Case, tensors: Tensors):
        self.o = torch.full_like(tensors.q, float("nan"))
        self.lse = torch.empty((case.batch, case.heads, case.seqlen), device=case.device)
        self.problem = RivalProblem(
            struct_size=ctypes.sizeof(RivalProblem), batch=case.batch, seqlen_q=case.seqlen,
            seqlen_k=case.keys, heads_q=case.heads, heads_k=case.heads, head_dim=case.head_dim,
            head_dim_v=case.head_dim, dtype=c_abi.DTYPES["float16"], scale=case.head_dim**-0.5,
            q=tensors.q.data_ptr(), k=tensors.k.data_ptr(), v=tensors.v.data_ptr(),
            o=self.o.data_ptr(), lse=self.lse.data_ptr(),
        )  # fmt: skip

    def __call__(self):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if error := self.library.ablation_run(self.number, ctypes.byref(self.problem), stream):
            raise RuntimeError(f"{self.name}: error {error} of CUDA")
        return self.o


def library_path() -> Path:
    beside = os.environ.get("FA3_LIBRARY", "build/lib/libfa3.so")
    return Path(beside).resolve().parent / "libfa3_ablation.so"


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--library", type=Path, default=library_path(), metavar="LIB.so")
    parser.add_argument("--seqlen", type=int, default=8448)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    library = ctypes.CDLL(str(arguments.library))
    variants = [Variant(library, number) for number in range(library.ablation_count())]
    for head_dim in dict.fromkeys(one.columns["head_dim"] for one in variants):
        shape = (4, arguments.seqlen, 2048 // head_dim, 2048 // head_dim, head_dim)
        case = Case(*shape, causal=False, dtype="fp16", device="cuda")
        tensors = Tensors(case, "bshd")
        ready, left_out = [Fa3(case, tensors, 1)], {}
        (expected,) = ready[0]()
        own = [one for one in variants if one.columns["head_dim"] == head_dim]
        for one in own:
            one.prepare(case, tensors)
            apart = float((one() - expected).float().norm() / expected.float().norm())
            if apart < MOST_APART:
                ready.append(one)
            else:
                left_out[one.name] = f"differs from the library's kernel by {apart:.1e}"
        times = time_all(ready, "cuda", arguments.rounds)
        for one in [ready[0], *own]:
            row = {"engine": "fa3", "variant": "the library's kernel"}
            if one is ready[0]:
                row["tile"] = one.kernel.split()[-1]
            else:
                row = {"engine": "tutorial", "variant": one.idea, "tile": one.tile, **one.columns}
            row |= {"pass": "fwd", "dtype": "fp16", "batch": 4, "heads": case.heads}
            row |= {"seqlen_q": case.seqlen, "head_dim": head_dim, "causal": False}
            if one.name in times:
                row |= times[one.name]
                row["tflops"] = case.flops() / row["median_ms"] / 1e9
            else:
                row["left_out"] = left_out[one.name]
            said = f"{row['tflops']:.0f} TFLOP/s" if "tflops" in row else row["left_out"]
            print(f"d{head_dim} {one.name}: {said}", flush=True)
            write_rows(arguments.json, [row | provenance("cuda")])


if __name__ == "__main__":
    main()

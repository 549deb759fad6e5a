# SPDX-License-Identifier: Apache-2.0
"""Peak memory of attention against length: of fa3, torch's own, and standard attention.

    python3 benchmarks/memory.py --seqlen 1024,4096,16384 --json docs/lab/results/x.jsonl

What a call adds at most to Q, K and V, outputs and gradients among it. CUDA: by torch's allocator;
CPU: by the process's resident memory. Where standard attention does not run, the size of its S and
P, 2 b h s^2 elements, stands instead, marked "computed".
"""

import ctypes
import gc
import sys
from itertools import product
from pathlib import Path

import torch
from contenders import DTYPES, attend_standard, keys_after
from harness import ROOT, numbers, parser_of, progress, provenance, write_rows

sys.path.insert(0, str(ROOT / "examples" / "gpt"))
import train


def attend_standard_causal(q, k, v, dropout_p=0.0):
    return attend_standard(q, k, v, keys_after(q.shape[1], k.shape[1], q.device), dropout_p)


ATTENTIONS = train.ATTENTIONS | {"standard": attend_standard_causal}


def resident_bytes(key: str) -> int:
    """VmRSS (now) or VmHWM (at most) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status: expected a line {key}")


def peak_bytes(call, device: str) -> int:
    """Memory in use at most during a call: of torch's allocator, or of the process."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is there now
    call()
    return resident_bytes("VmHWM")


def bytes_in_use(device: str) -> int:
    gc.collect()
    if device == "cuda":
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before goes back to the system
    return resident_bytes("VmRSS")


def added_bytes(attend, inputs, backward: bool, device: str) -> int:
    def call():
        leaves = [x.detach().requires_grad_(backward) for x in inputs]
        out = attend(*leaves)
        if backward:
            out.backward(inputs[0])

    before = bytes_in_use(device)
    return max(peak_bytes(call, device) - before, 0)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), default="fp16")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--seqlen", type=numbers, default=[1024, 4096, 16384], metavar="LIST")
    parser.add_argument("--pass", dest="directions", type=lambda x: x.split(","), default=["fwd"])
    parser.add_argument(
        "--room", type=float, default=0.8, help="share of the memory that standard may take"
    )
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    device, itemsize = arguments.device, DTYPES[arguments.dtype].itemsize
    for direction, seqlen in progress(list(product(arguments.directions, arguments.seqlen))):
        shape = (arguments.batch, seqlen, arguments.heads, arguments.head_dim)
        inputs = [torch.randn(shape, device=device).to(DTYPES[arguments.dtype]) for _ in range(3)]
        scores = 2 * arguments.batch * arguments.heads * seqlen**2 * itemsize
        for name, attend in ATTENTIONS.items():
            row = {
                "engine": name, "pass": direction, "dtype": arguments.dtype, "batch": shape[0],
                "heads": shape[2], "seqlen_q": seqlen, "head_dim": shape[3], "computed": False,
            }  # fmt: skip
            try:
                if name == "standard" and 2 * scores > arguments.room * free_bytes(device):
                    raise RuntimeError("S and P do not fit")
                row["peak_bytes"] = added_bytes(attend, inputs, direction == "bwd", device)
            except RuntimeError as error:
                row |= {"computed": name == "standard", "left_out": str(error).splitlines()[0]}
                if name == "standard":
                    row["peak_bytes"] = scores
            print(f"{direction} s{seqlen} {name}: {row.get('peak_bytes', row)}", flush=True)
            write_rows(arguments.json, [row | provenance(device)])


def free_bytes(device: str) -> int:
    if device == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo: expected a line MemAvailable")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""What sm_margin costs a call, and what it gives to a kernel beside it.

    python3 benchmarks/sm_margin.py --margin 0,8,16,32,66 --json rows.jsonl

median_ms is the call alone. other_ms is when a small kernel on another stream has ended, counted
from the call's start, which was queued before it: without room beside the call it waits for an SM.
"""

import statistics
from pathlib import Path

import torch
from harness import numbers, parser_of, provenance, time_all, write_rows

import fa3


class Call:
    """A contender of harness.py: a causal or full forward pass that leaves some SMs alone."""

    def __init__(self, qkv, causal, margin):
        self.name, self.qkv, self.causal, self.margin = str(margin), qkv, causal, margin

    def __call__(self):
        with torch.no_grad():
            fa3.attention(*self.qkv, causal=self.causal, sm_margin=self.margin)


def other_ms(call, rounds: int) -> float:
    """Median time from the start of a call to the end of a small kernel queued behind it."""
    beside, small = torch.cuda.Stream(), torch.zeros(1024, device="cuda")
    found = []
    for _ in range(rounds + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        with torch.cuda.stream(beside):
            small.add_(1)
            end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return statistics.median(found[1:])


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--margin", type=numbers, default=[0, 8, 16, 32, 66], metavar="LIST")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seqlen", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    shape = arguments.batch, arguments.seqlen, arguments.heads, arguments.head_dim
    qkv = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    for causal in (False, True):
        calls = [Call(qkv, causal, margin) for margin in arguments.margin]
        timings = time_all(calls, "cuda", arguments.rounds)
        rows = []
        for call in calls:
            row = {"engine": "fa3", "pass": "fwd", "causal": causal, "sm_margin": call.margin}
            row |= dict(zip(("batch", "seqlen_q", "heads", "head_dim"), shape, strict=True))
            row |= timings[call.name] | {"other_ms": other_ms(call, arguments.rounds)}
            print(
                f"causal {int(causal)} sm_margin {call.margin}: {row['median_ms']:.3f} ms, ", end=""
            )
            print(f"another kernel ends after {row['other_ms']:.3f} ms", flush=True)
            rows.append(row | provenance("cuda"))
        write_rows(arguments.json, rows)


if __name__ == "__main__":
    main()

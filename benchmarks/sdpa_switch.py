# SPDX-License-Identifier: Apache-2.0
"""Times torch's scaled_dot_product_attention as it is, and the same calls with fa3.torch.sdpa().

    python3 benchmarks/sdpa_switch.py --json rows.jsonl
    python3 benchmarks/sdpa_switch.py --device cpu --dtype fp32 --tokens 2048 --hidden 512 \
        --head-dim 64 --seqlen 512,2048 --calls 1

torch chooses its kernel by itself. Pass fwd is a call without gradients, fwd+bwd one with them, and
torch.autograd.grad. Rounds and rows are those of harness.py; a time is the mean of --calls passes
queued one behind the other, so that the host's part counts only where the GPU waits for it. Results
that differ from torch's end the run.
"""

import contextlib
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from contenders import DTYPES, Case
from harness import numbers, parser_of, progress, provenance, time_all, time_once, write_rows
from rivals import case_columns
from torch.nn.functional import scaled_dot_product_attention

import fa3.torch

SWITCHES = {"torch": contextlib.nullcontext, "fa3": fa3.torch.sdpa}


@dataclass
class Contender:
    """One pass over tensors of (b, h, s, d), with torch's kernels or under the switch."""

    name: str
    case: Case
    tensors: list

    def run(self, count: int):
        """Queues `count` passes and returns the results of the last."""
        *qkv, d_o = self.tensors
        with torch.set_grad_enabled(self.case.backward):
            for _ in range(count):
                out = scaled_dot_product_attention(*qkv, is_causal=self.case.causal)
                gradients = torch.autograd.grad(out, qkv, d_o) if self.case.backward else ()
        return out.detach(), *gradients

    def results(self):
        with SWITCHES[self.name]():
            return self.run(1)

    def time(self, count: int) -> tuple[float, dict]:
        """Milliseconds of one of so many passes, and the GPU's state under them."""
        with SWITCHES[self.name]():
            milliseconds, state = time_once(lambda: self.run(count), self.case.device)
        return milliseconds / count, state


def error_of(found, expected) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float((x.float() - y.float()).norm() / y.float().norm()) for x, y in pairs)


def rows_of(case: Case, arguments) -> list[dict]:
    torch.manual_seed(0)
    shape = (case.batch, case.heads, case.seqlen, case.head_dim)
    made = {"device": case.device, "dtype": DTYPES[case.dtype], "requires_grad": case.backward}
    tensors = [torch.randn(shape, **made) for _ in range(4)]
    torchs, ours = both = [Contender(name, case, tensors) for name in SWITCHES]
    if (error := error_of(ours.results(), torchs.results())) > 0.02:
        sys.exit(f"sdpa_switch.py: fa3's results differ from torch's by {error:.1e}")
    timings = time_all(
        both, case.device, arguments.rounds, lambda one, *_: one.time(arguments.calls)
    )
    columns = {**case_columns(case), "pass": "fwd+bwd" if case.backward else "fwd"}
    origin = provenance(case.device, torch.get_num_threads())
    return [
        {"engine": name, **columns, **measured, "torch": torch.__version__, **origin}
        for name, measured in timings.items()
    ]


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), default="bf16")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256], metavar="LIST")
    parser.add_argument("--seqlen", type=numbers, default=[1024, 4096, 16384], metavar="LIST")
    parser.add_argument("--tokens", type=int, default=16384, help="batch = tokens / seqlen")
    parser.add_argument("--hidden", type=int, default=2048, help="heads = hidden / head dim")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20, help="queued at once")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    cells = product(arguments.head_dim, arguments.seqlen, (False, True), (False, True))
    for head_dim, seqlen, causal, backward in progress(list(cells)):
        heads = arguments.hidden // head_dim
        case = Case(
            batch=max(1, arguments.tokens // seqlen),
            seqlen=seqlen,
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            causal=causal,
            dtype=arguments.dtype,
            device=arguments.device,
            backward=backward,
        )
        rows = rows_of(case, arguments)
        torchs, ours = (row["median_ms"] for row in rows)
        print(
            f"d{head_dim} s{seqlen} causal {int(causal)} {rows[0]['pass']}: torch {torchs:.3f} ms, "
            f"fa3 {ours:.3f} ms, {torchs / ours:.2f} times as fast",
            flush=True,
        )
        write_rows(arguments.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Times fa3 beside its rivals in one process, on the same tensors, and writes JSON lines.

    python3 benchmarks/rivals.py --device cpu --dtype fp32 --threads 2 --json x.jsonl
    python3 benchmarks/rivals.py --device cuda --dtype bf16 --tokens 16384 --hidden 2048
    python3 benchmarks/rivals.py --pass bwd --threads 2

Rivals: contenders/. How they are timed: harness.py.

Normal random inputs (--q-scale 4: peaked softmax, 0.02: flat). FLOPs: 2 (d + dv) b h sq sk, half if
causal, 2.5 times as many backward. Bytes: Q, K, V and O once. --deterministic: backward passes that
add to dQ in one order, of fa3 and of the libraries. --ceilings: a matrix product (8192 cubed; CPU:
2048) and a copy take their turn too. --sustained 2: two seconds of each contender without a break
instead of rounds, for what the power limit leaves of the speed.
Each contender's output is compared with the first one's; a wrong result gets no time, but, as what
cannot run at all, a row with the reason ("left_out").
"""

import os
import sys
from itertools import product
from pathlib import Path

import torch
from ceilings import Ceiling, ceilings
from contenders import DTYPES, TENSORS, Case, Tensors, contenders
from harness import numbers, parser_of, progress, provenance, sustained, time_all, write_rows


def case_columns(case: Case) -> dict:
    return {
        "pass": "bwd" if case.backward else "fwd",
        "dtype": case.dtype,
        "batch": case.batch,
        "heads": case.heads,
        "kv_heads": case.kv_heads,
        "seqlen_q": case.seqlen,
        "seqlen_k": case.keys,
        "head_dim": case.head_dim,
        "head_dim_v": case.value_dim,
        "causal": case.causal,
        **({"dropout": case.dropout} if case.dropout else {}),
    }


def record(case: Case, contender, measured: dict, arguments) -> dict:
    """The row of a contender: `measured` is its timing, or its errors."""
    found = {"engine": contender.name, **case_columns(case), **measured}
    seconds = measured.get("median_ms", 0) / 1e3
    if isinstance(contender, Ceiling):
        found |= {"pass": "ceiling"}
        found |= {unit: amount / seconds for unit, amount in contender.per_call.items()}
    else:
        found |= {"engine": contender.engine, "kernel": contender.kernel}
        if contender.name.endswith("-no-dropout"):
            found["dropout"] = 0.0
        found["dtype"] = getattr(contender, "dtype", TENSORS.get(case.dtype, case.dtype))
        if seconds:
            found["tflops"] = case.flops() / seconds / 1e12
            found["gbytes_per_s"] = case.bytes() / seconds / 1e9
    if "seconds" in measured and "tflops" in found:  # of rounds with pauses, watts say nothing
        found["tflops_per_watt"] = found["tflops"] / measured["watts"]
    return found | {
        "variant": "deterministic" if case.deterministic else "default",
        "layout": arguments.layout,
        "q_scale": arguments.q_scale,
        **provenance(case.device, arguments.threads),
    }


def refusal(case: Case, name: str, sentence: str, arguments) -> dict:
    """The row of a contender that cannot run the case."""
    found = {"engine": name, **case_columns(case), "left_out": sentence}
    return found | provenance(case.device, arguments.threads)


def head_dims(text: str) -> list[tuple[int, int]]:
    """An option's LIST: "128,192:128" of q and k, and of v where it differs."""
    parts = [numbers(part.replace(":", ",")) for part in text.split(",")]
    return [(dims[0], dims[-1]) for dims in parts]


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pass", dest="direction", choices=("fwd", "bwd"), default="fwd")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument(
        "--head-dim", type=head_dims, default=head_dims("64,128"), metavar="LIST",
        help="192:128 for values of 128",
    )  # fmt: skip
    parser.add_argument("--seqlen", type=numbers, default=[4096], metavar="LIST")
    parser.add_argument("--causal", type=numbers, default=[0, 1], metavar="LIST")
    parser.add_argument("--seqlen-k", type=numbers, default=[None], help="keys; like --seqlen")
    parser.add_argument("--tokens", type=int, help="batch = tokens / seqlen; without it --batch")
    parser.add_argument("--hidden", type=int, help="heads = hidden / head dim; without it --heads")
    parser.add_argument("--batch", type=numbers, default=[1], metavar="LIST")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, help="default: heads")
    parser.add_argument("--dropout", type=float, default=0.0, help="beside it fa3 without")
    parser.add_argument("--deterministic", action="store_true", help="the backward's variant")
    parser.add_argument(
        "--layout", choices=("bshd", "bhsd"), default="bshd", help="order of Q, K, V in memory"
    )
    parser.add_argument(
        "--q-scale", type=float, default=1.0, help="multiplies Q: 4 peaked, 0.02 flat"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--standard", action="store_true", help="attention that stores its scores")
    parser.add_argument("--triton", action="store_true", help="FlexAttention, compiled")
    parser.add_argument("--ceilings", action="store_true", help="a matrix product and a copy too")
    parser.add_argument("--sustained", type=float, metavar="SECONDS", help="of each; CUDA only")
    parser.add_argument("--rival", action="append", default=[], metavar="LIB.so")
    parser.add_argument("--without", default="", metavar="LIST", help="contenders to leave out")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    grid = [getattr(arguments, x) for x in "head_dim causal seqlen seqlen_k batch".split()]
    for (head_dim, value_dim), causal, seqlen, seqlen_k, batch in progress(list(product(*grid))):
        heads = arguments.hidden // head_dim if arguments.hidden else arguments.heads
        case = Case(
            batch=max(1, arguments.tokens // seqlen) if arguments.tokens else batch,
            seqlen=seqlen,
            seqlen_k=seqlen_k,
            heads=heads,
            kv_heads=arguments.kv_heads or heads,
            head_dim=head_dim,
            head_dim_v=value_dim,
            causal=bool(causal),
            dtype=arguments.dtype,
            device=arguments.device,
            backward=arguments.direction == "bwd",
            deterministic=arguments.deterministic,
            dropout=arguments.dropout,
        )
        tensors = Tensors(case, arguments.layout, arguments.q_scale)
        ready, left_out = contenders(case, tensors, arguments)
        ready += ceilings(case) if arguments.ceilings else []
        if arguments.sustained:
            timings = {one.name: sustained(one, arguments.sustained) for one in ready}
        else:
            timings = time_all(ready, case.device, arguments.rounds)
        rows = [record(case, one, timings[one.name], arguments) for one in ready]
        cells = "  ".join(f"{r['engine']} {1e3 * r['tflops']:.1f}" for r in rows if "tflops" in r)
        where = f"d{head_dim}:{value_dim} causal {causal} s{seqlen}x{case.keys} b{case.batch}"
        print(f"{where} GFLOP/s: {cells}", flush=True)
        rows += [refusal(case, *of, arguments) for of in left_out.items()]
        write_rows(arguments.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

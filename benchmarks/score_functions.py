# SPDX-License-Identifier: Apache-2.0
"""Score functions of fa3.flex_attention beside attention without one, and beside FlexAttention.

    python3 benchmarks/score_functions.py --seqlen 4096,16384 --json docs/lab/results/x.jsonl

Causal, bf16 on a GPU and float32 on a CPU, 2048 / head dim heads, as many sequences as make 8,192
rows, one at least. ALiBi with slopes in memory, the same by abs(q - k), a table of relative
positions, a bias of keys, and the built-in softcap; of the backward those that learn have the
gradient of what they capture. FlexAttention is compiled, with a BlockMask. Times as harness.py
says.
"""

import itertools
from pathlib import Path

import torch
from harness import numbers, parser_of, progress, provenance, time_all, write_rows
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fa3

ROWS, WIDTH = 8192, 2048
PRODUCTS = {"fwd": 2, "bwd": 5}


class Call:
    def __init__(self, name, call):
        self.name, self.call = name, call
        call()

    def __call__(self):
        self.call()


def functions(heads, rows, device):
    """(score_mod, the tensor that it captures) by name."""
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=device) / heads)
    table = torch.randn(heads, 2 * rows - 1, device=device) / 2
    keys = torch.randn(heads, rows, device=device) / 2
    return {
        "ALiBi": (lambda s, b, h, q, k: s + slopes[h] * (k - q), slopes),
        "ALiBi by abs": (lambda s, b, h, q, k: s - slopes[h] * (q - k).abs(), slopes),
        "table": (lambda s, b, h, q, k: s + table[h, q - k + (rows - 1)], table),
        "keys": (lambda s, b, h, q, k: s + keys[h, k], keys),
    }


def timed(name, call, which, leaves):
    """The contender of a pass, whose forward is call(); leaves: what has a gradient."""
    if which == "fwd":
        return Call(name, call)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    out = call()
    upstream = torch.randn_like(out)
    return Call(name, lambda: torch.autograd.grad(out, leaves, upstream, retain_graph=True))


def contenders(device, dim, rows, which, with_flex):
    heads, dtype = WIDTH // dim, torch.bfloat16 if device == "cuda" else torch.float32
    shape = max(1, ROWS // rows), rows, heads, dim
    qkv = [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]
    found = [
        timed("none", lambda: fa3.attention(*qkv, causal=True), which, qkv),
        timed("softcap", lambda: fa3.attention(*qkv, causal=True, softcap=20.0), which, qkv),
    ]
    compiled = torch.compile(flex_attention, dynamic=False)
    causal = create_block_mask(lambda b, h, q, k: q >= k, None, None, rows, rows, device=device)
    heads_first = [x.transpose(1, 2).contiguous() for x in qkv]
    captured = functions(heads, rows, device)
    for name, (score_mod, _) in captured.items():
        call = lambda f=score_mod: fa3.flex_attention(*qkv, score_mod=f, causal=True)  # noqa: E731
        found.append(timed(name, call, which, qkv))
        if with_flex:
            theirs = lambda f=score_mod: compiled(*heads_first, score_mod=f, block_mask=causal)  # noqa: E731
            try:
                found.append(timed(f"FlexAttention, {name}", theirs, which, heads_first))
            except Exception as error:  # a kernel that Triton has no configuration for
                print(f"FlexAttention, {name} left out: {str(error).splitlines()[0]}", flush=True)
    if which == "bwd":  # behind the others, which are recorded without a gradient of these
        for name, (score_mod, tensor) in captured.items():
            call = lambda f=score_mod: fa3.flex_attention(*qkv, score_mod=f, causal=True)  # noqa: E731
            found.append(timed(f"{name}, learns", call, which, [*qkv, tensor]))
    return found, PRODUCTS[which] * shape[0] * heads * dim * rows**2


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seqlen", type=numbers, default=[4096, 16384], metavar="LIST")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128], metavar="LIST")
    parser.add_argument("--pass", dest="passes", default="fwd,bwd", metavar="LIST")
    parser.add_argument("--without-flex", action="store_true", help="fa3 alone")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    torch._dynamo.config.recompile_limit = 1000  # a kernel for each shape and function
    cells = itertools.product(arguments.head_dim, arguments.seqlen, arguments.passes.split(","))
    for dim, rows, which in progress(list(cells)):
        calls, flops = contenders(arguments.device, dim, rows, which, not arguments.without_flex)
        times = time_all(calls, arguments.device, arguments.rounds)
        for name, once in times.items():
            tflops = flops / once["median_ms"] / 1e9
            print(f"d{dim} {which} {rows} {name:28s} {tflops:7.1f} TFLOP/s", flush=True)
            row = {"engine": name, "pass": which, "seqlen": rows, "head_dim": dim}
            row |= once | {"tflops": tflops} | provenance(arguments.device)
            write_rows(arguments.json, [row])


if __name__ == "__main__":
    main()

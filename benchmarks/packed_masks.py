# SPDX-License-Identifier: Apache-2.0
"""Block masks of packed sequences on the Hopper engine, beside the ampere engine, both passes.

    python3 benchmarks/packed_masks.py --json docs/lab/results/x.jsonl

Sequences of LENGTHS rows lie beside each other, each under a rule as a map of its own (CASES), 16
heads of 128 columns or 32 of 64. Contenders are fa3 on either engine, the dense causal kernel of
packed sequences, and torch's FlexAttention, whose one sequence has the documents in its BlockMask;
it gets no time where its results are not fa3's. TFLOP/s count visible pairs; of_dense is the rate
over that of the dense causal kernel. Timed as harness.py says.
"""

import itertools
from pathlib import Path

import torch
from block_masks import PRODUCTS, Call, flex_contender, sort_out, write_cell
from harness import numbers, parser_of, progress
from torch.nn.attention.flex_attention import create_block_mask

import fa3
from fa3 import masks

LENGTHS = {
    "three": [3000, 6000, 7384],
    "documents": [1024, 3100, 700, 5000, 260, 1900, 2400, 2000],
}


def prefix(b, h, q, k):
    """All see the first keys, 500 in the first sequence and 700 more in each next one."""
    return (k < 500 + 700 * b) | (q >= k)


def chunks(b, h, q, k):
    """Block-causal: chunks of 700 see themselves and those before."""
    return q // 700 >= k // 700


def causal(b, h, q, k):
    return q >= k


CASES = {rule.__name__: rule for rule in (causal, chunks, prefix)}


class Packed:
    """The sequences of a cell, their operands, and the mask in fa3's and in torch's form."""

    def __init__(self, lengths, rule, heads, dim):
        self.longest, total = max(lengths), sum(lengths)
        on = {"device": "cuda"}
        ends = torch.tensor(lengths, **on).cumsum(0)
        self.starts = torch.cat([ends.new_zeros(1), ends]).int()
        shape = (1, total, heads, dim)
        self.batched = [torch.randn(shape, dtype=torch.bfloat16, **on) for _ in range(4)]
        self.mine = masks.from_rule(
            rule, len(lengths), 1, self.longest, self.longest, device="cuda", compact=True
        )
        of_row = torch.searchsorted(ends, torch.arange(total, **on), right=True)
        at = torch.arange(total, **on) - self.starts[of_row]

        def in_one(b, h, q, k):
            return (of_row[q] == of_row[k]) & rule(of_row[q], h, at[q], at[k])

        self.theirs = create_block_mask(in_one, None, None, total, total, device="cuda")
        self.seen = self.seen_causally = 0
        for b, n in enumerate(lengths):
            row = torch.arange(n, **on)
            self.seen += int(rule(b, 0, row[:, None], row).sum())
            self.seen_causally += n * (n + 1) // 2

    def options(self, **more):
        return {
            "cu_seqlens_q": self.starts,
            "cu_seqlens_k": self.starts,
            "max_seqlen_q": self.longest,
            "max_seqlen_k": self.longest,
        } | more

    def contender(self, name, which, **more):
        q, k, v, d_o = (x[0] for x in self.batched)
        options = self.options(**more)
        out, lse = fa3.attention(q, k, v, return_lse=True, **options)
        if which == "fwd":
            return Call(name, lambda: (fa3.attention(q, k, v, **options),))
        return Call(name, lambda: fa3.attention_backward(d_o, q, k, v, out, lse, **options)[:3])


def contenders(packed, which, with_flex):
    found = [
        packed.contender("dense", which, causal=True),
        packed.contender("fa3", which, block_mask=packed.mine, engine="hopper"),
        packed.contender("ampere", which, block_mask=packed.mine, engine="ampere"),
    ]
    if not with_flex:
        return found, {"FlexAttention": "--no-flex"}
    agreeing, why = sort_out([flex_contender(packed.batched, packed.theirs, which)], found[1])
    return found + agreeing, why


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--head-dim", type=numbers, default=[64, 128], metavar="LIST")
    parser.add_argument("--pass", dest="passes", default="fwd,bwd", metavar="LIST")
    parser.add_argument("--lengths", default=",".join(LENGTHS), metavar="LIST")
    parser.add_argument("--cases", default=",".join(CASES), metavar="LIST")
    parser.add_argument("--no-flex", action="store_true", help="without FlexAttention")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    torch._dynamo.config.recompile_limit = 1000  # a kernel for each shape
    passes, cases = arguments.passes.split(","), arguments.cases.split(",")
    cells = itertools.product(arguments.head_dim, arguments.lengths.split(","), cases, passes)
    for dim, lengths, case, which in progress(list(cells)):
        heads = 2048 // dim
        packed = Packed(LENGTHS[lengths], CASES[case], heads, dim)
        row = {"pass": which, "case": case, "lengths": lengths, "heads": heads, "head_dim": dim}
        timed, why = contenders(packed, which, not arguments.no_flex)
        per_pair = 2 * PRODUCTS[which] * heads * dim
        label = f"d{dim} {which} {lengths} {case:7s}"
        flops, of_dense = per_pair * packed.seen, per_pair * packed.seen_causally
        write_cell(arguments, row, label, timed, flops, of_dense, why)


if __name__ == "__main__":
    main()

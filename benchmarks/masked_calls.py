# SPDX-License-Identifier: Apache-2.0
"""Masks as programs write them: attn_mask of scaled_dot_product_attention, mask_mod of
flex_attention, with fa3 and with torch.

    python3 benchmarks/masked_calls.py --json docs/lab/results/x.jsonl

Documents of 1,024 tokens in one row, or causal ones; as booleans, as numbers that are added, and as
a function, which fa3 walks lists for; forward, and forward with backward. The same mask in every
call, as in a model's layers: fa3's map of it is made by the first. torch's own attention is what
SDPA takes without fa3, and FlexAttention, compiled, with its BlockMask. Times as harness.py says,
but one contender after the other: the switch for SDPA is the process's.
"""

import contextlib
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import numbers, parser_of, provenance, time_all, write_rows
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fa3
import fa3.torch

DOCUMENT = 1024
NOTHING = contextlib.nullcontext()


class Call:
    def __init__(self, name, call):
        self.name, self.call = name, call

    def __call__(self):
        self.call()


def with_backward(call, leaves):
    def both():
        out = call()
        torch.autograd.grad(out, leaves, out.detach())

    return both


def masks_of(seqlen):
    owner = torch.arange(seqlen, device="cuda") // DOCUMENT

    def documents(b, h, q, k):
        return (owner[q] == owner[k]) & (q >= k)

    place = torch.arange(seqlen, device="cuda")
    seen = documents(0, 0, place[:, None], place)
    return documents, seen, torch.randn(seqlen, seqlen, device="cuda", dtype=torch.bfloat16)


def squashed(score, b, h, q, k):
    return 20 * torch.tanh(score / 20)


def contenders(seqlen, heads, dim):
    """(what, [contender]) with and without a backward."""
    leaves = [
        torch.randn(1, heads, seqlen, dim, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for _ in range(3)
    ]
    rows = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in leaves]
    documents, seen, bias = masks_of(seqlen)
    block_mask = create_block_mask(documents, None, None, seqlen, seqlen, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def sdpa(mask):
        call = lambda: F.scaled_dot_product_attention(*leaves, attn_mask=mask)  # noqa: E731
        return {"fa3": (call, leaves), "torch": (call, leaves)}

    def flex(score_mod):
        options = {"score_mod": score_mod, "mask_mod": documents}
        theirs = {"score_mod": score_mod, "block_mask": block_mask}
        return {
            "fa3": (lambda: fa3.flex_attention(*rows, **options), rows),
            "torch": (lambda: compiled(*leaves, **theirs), leaves),
        }

    calls = {
        "SDPA, booleans": sdpa(seen),
        "SDPA, numbers that learn": sdpa(bias.requires_grad_()),
        "flex, mask_mod": flex(None),
        "flex, mask_mod and softcap": flex(squashed),
    }
    for what, both in calls.items():
        yield what, "fwd", [Call(name, call) for name, (call, _) in both.items()]
        yield what, "both", [Call(name, with_backward(*given)) for name, given in both.items()]


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--seqlen", type=numbers, default=[8192], metavar="LIST")
    parser.add_argument("--head-dim", type=numbers, default=[128], metavar="LIST")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    for seqlen in arguments.seqlen:
        for dim in arguments.head_dim:
            heads = 2048 // dim
            for what, which, timed in contenders(seqlen, heads, dim):
                times = {}
                for contender in timed:
                    switch = fa3.torch.sdpa() if contender.name == "fa3" else NOTHING
                    with switch:
                        times |= time_all([contender], "cuda", arguments.rounds)
                for engine, once in times.items():
                    print(f"d{dim} {seqlen} {what:28s} {which:4s} {engine:6s}", end=" ")
                    print(f"{once['median_ms']:8.3f} ms", flush=True)
                    row = {"engine": engine, "case": what, "pass": which, "seqlen": seqlen}
                    row |= {"heads": heads, "head_dim": dim} | once | provenance("cuda")
                    write_rows(arguments.json, [row])


if __name__ == "__main__":
    main()

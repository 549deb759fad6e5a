# SPDX-License-Identifier: Apache-2.0
"""How the forward's time depends on what the scores do: every kind of data below, beside rivals.

    python3 benchmarks/hopper_data.py --rival LIB.so --json docs/results/x.jsonl

Rivals are those of rivals.py --rival; a build of fa3 whose kernels know the ordinary softmax step
alone (ForwardConfig::guarded = false) tells what data costs at most. bf16, method of rivals.py.
"""

import argparse
import json
import sys
from itertools import product
from pathlib import Path

import rivals
import torch

SEQLEN, TOKENS, HIDDEN = 4096, 16384, 2048
# Keys are visited from the last to the first: scores that rise towards key 0, by so many natural
# units over all keys, and scores of which only key 0's, visited last, is so much higher.
RISES = (40, 400, 4000)
JUMPS = (100, 1000)
# Factors of Q: flat, normal and peaked scores.
FACTORS = (0.02, 1, 4, 16)


def add_to_scores(tensors, amounts):
    """Adds amounts[j] natural units to the scores of key j: column 0 of Q and K is theirs."""
    head_dim = tensors.q.shape[-1]
    tensors.q[..., 0] = head_dim**0.5
    tensors.k[..., 0] = amounts.to(tensors.k)[None, :, None]


def kinds():
    """Name -> what it does to normal random tensors."""
    down = 1 - torch.arange(SEQLEN, device="cuda") / SEQLEN
    first = torch.arange(SEQLEN, device="cuda") == 0
    found = {f"q*{factor:g}": lambda t, f=factor: t.q.mul_(f) for factor in FACTORS}
    found |= {f"rise {r}": lambda t, r=r: add_to_scores(t, r * down) for r in RISES}
    found |= {f"jump {j}": lambda t, j=j: add_to_scores(t, j * first) for j in JUMPS}
    return found


def main():
    def numbers(text):
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256], metavar="LIST")
    parser.add_argument("--causal", type=numbers, default=[0, 1], metavar="LIST")
    parser.add_argument("--kinds", type=lambda text: text.split(","), metavar="LIST")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--rival", action="append", default=[], metavar="LIB.so")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    # What contenders() and record() of rivals.py ask for.
    arguments.threads, arguments.layout, arguments.q_scale = 0, "bshd", 1.0
    for head_dim, causal, (kind, change) in product(
        arguments.head_dim, arguments.causal, kinds().items()
    ):
        if arguments.kinds and kind not in arguments.kinds:
            continue
        heads = HIDDEN // head_dim
        case = rivals.Case(
            TOKENS // SEQLEN, SEQLEN, heads, heads, head_dim, bool(causal), "bf16", "cuda"
        )
        tensors = rivals.Tensors(case, "bshd")
        change(tensors)
        ready = rivals.contenders(case, tensors, arguments)
        medians = rivals.time_all(ready, "cuda", arguments.rounds)
        if arguments.json:
            with arguments.json.open("a") as lines:
                for one in ready:
                    row = rivals.record(case, one, medians[one.name], arguments)
                    lines.write(json.dumps(row | {"data": kind}) + "\n")
        ours = medians[ready[0].name]
        ratios = "  ".join(f"{one.name} {medians[one.name] / ours:.3f}" for one in ready[1:])
        print(f"d{head_dim} causal {causal} {kind}: {ours:.3f} ms; times over it: {ratios}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

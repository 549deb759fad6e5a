# SPDX-License-Identifier: Apache-2.0
"""How the forward's time depends on what the scores do: every kind of data below, beside rivals.

    python3 benchmarks/hopper_data.py --rival LIB.so --json docs/results/x.jsonl
    python3 benchmarks/hopper_data.py --errors --kinds "q*16,lead 50 at 2048" --rival LIB.so

With --errors, how far O is from float64 instead: RMSE and largest error, over some heads.

Rivals are those of rivals.py --rival; a build of fa3 whose kernels know the ordinary softmax step
alone (ForwardConfig::guarded = false) tells what data costs at most. bf16, method of rivals.py.
"""

import argparse
import json
import sys
from itertools import product
from pathlib import Path

import contenders
import rivals
import torch

SEQLEN, TOKENS, HIDDEN = 4096, 16384, 2048
# Keys are visited from the last to the first: scores that rise towards key 0, by so many natural
# units over all keys, and scores of which only key 0's, visited last, is so much higher.
RISES = (40, 400, 4000)
JUMPS = (100, 1000)
# One key anywhere that rules all rows which see it: the others weigh less than e^-40 together.
LEAD, LEADERS = 50, (SEQLEN - 1, SEQLEN // 2, 0)
# Factors of Q: flat, normal and peaked scores.
FACTORS = (0.02, 1, 4, 16)
ERROR_HEADS = 4  # whose scores float64 has room for


def add_to_scores(tensors, amounts):
    """Adds amounts[j] natural units to the scores of key j: column 0 of Q and K is theirs."""
    head_dim = tensors.q.shape[-1]
    tensors.q[..., 0] = head_dim**0.5
    tensors.k[..., 0] = amounts.to(tensors.k)[None, :, None]


def kinds():
    """Name -> what it does to normal random tensors."""
    down = 1 - torch.arange(SEQLEN, device="cuda") / SEQLEN
    keys = torch.arange(SEQLEN, device="cuda")
    found = {f"q*{factor:g}": lambda t, f=factor: t.q.mul_(f) for factor in FACTORS}
    found |= {f"rise {r}": lambda t, r=r: add_to_scores(t, r * down) for r in RISES}
    found |= {f"jump {j}": lambda t, j=j: add_to_scores(t, j * (keys == 0)) for j in JUMPS}
    found |= {
        f"lead {LEAD} at {k}": lambda t, k=k: add_to_scores(t, LEAD * (keys == k)) for k in LEADERS
    }
    return found


def errors(case, tensors, ready) -> dict:
    """By contender: RMSE and largest error of O in the first heads of the first batch entry."""
    q, k, v = (x[0, :, :ERROR_HEADS].double() for x in (tensors.q, tensors.k, tensors.v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * case.head_dim**-0.5
    if case.causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(hidden, float("-inf"))
    truth = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    found = {}
    for one in ready:
        off = one()[0][0, :, :ERROR_HEADS].double() - truth
        found[one.name] = {
            "rmse": off.square().mean().sqrt().item(),
            "max_error": off.abs().max().item(),
        }
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
    parser.add_argument("--errors", action="store_true", help="compare with float64; time nothing")
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
        case = contenders.Case(
            TOKENS // SEQLEN, SEQLEN, heads, heads, head_dim, bool(causal), "bf16", "cuda"
        )
        tensors = contenders.Tensors(case, "bshd")
        change(tensors)
        ready = contenders.contenders(case, tensors, arguments)
        if arguments.errors:
            rows = errors(case, tensors, ready)
            told = [
                f"{name} {row['rmse']:.2e} {row['max_error']:.2e}" for name, row in rows.items()
            ]
            print(f"d{head_dim} causal {causal} {kind}: RMSE, largest: {'; '.join(told)}")
        else:
            medians = rivals.time_all(ready, "cuda", arguments.rounds)
            rows = {x.name: rivals.record(case, x, medians[x.name], arguments) for x in ready}
            ours = medians[ready[0].name]
            ratios = "  ".join(f"{one.name} {medians[one.name] / ours:.3f}" for one in ready[1:])
            print(f"d{head_dim} causal {causal} {kind}: {ours:.3f} ms; times over it: {ratios}")
        if arguments.json:
            with arguments.json.open("a") as lines:
                for one in ready:
                    cell = {"engine": one.engine, "head_dim": head_dim, "causal": bool(causal)}
                    lines.write(json.dumps(cell | rows[one.name] | {"data": kind}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

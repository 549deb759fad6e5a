# SPDX-License-Identifier: Apache-2.0
"""How the forward's time and error depend on the data: every kind of it below, beside rivals.

    python3 benchmarks/data.py --rival LIB.so --json docs/lab/results/x.jsonl
    python3 benchmarks/data.py --errors --kinds "q*16,lead 50 at 2048" --rival LIB.so

With --errors, how far O is from float64 instead: RMSE and largest error, over some heads, and
RMSE over that of O itself (of use where V has a mean, as "v+2" gives it).

Rivals are those of rivals.py --rival; a build of fa3 whose kernels know the ordinary softmax step
alone (Kernel::guarded() false) tells what data costs at most. Timed as harness.py says.
"""

from itertools import product
from pathlib import Path

import contenders
import torch
from harness import numbers, parser_of, progress, time_all, write_rows
from rivals import record, refusal

# Keys are visited from the last to the first: scores that rise towards key 0, by so many natural
# units over all keys, and scores of which only key 0's, visited last, is so much higher.
RISES = (40, 400, 4000)
JUMPS = (100, 1000)
# One key anywhere that rules all rows which see it: the others weigh less than e^-40 together.
LEAD = 50
# Factors of Q: flat, normal and peaked scores.
FACTORS = (0.02, 1, 4, 16)
ERROR_HEADS = 4  # whose scores float64 has room for


def add_to_scores(tensors, amounts):
    """Adds amounts[j] natural units to the scores of key j: column 0 of Q and K is theirs."""
    head_dim = tensors.q.shape[-1]
    tensors.q[..., 0] = head_dim**0.5
    tensors.k[..., 0] = amounts.to(tensors.k)[None, :, None]


def kinds(seqlen: int, device: str):
    """Name -> what it does to normal random tensors."""
    keys = torch.arange(seqlen, device=device)
    down = 1 - keys / seqlen
    found = {f"q*{factor:g}": lambda t, f=factor: t.q.mul_(f) for factor in FACTORS}
    found |= {f"rise {r}": lambda t, r=r: add_to_scores(t, r * down) for r in RISES}
    found |= {f"jump {j}": lambda t, j=j: add_to_scores(t, j * (keys == 0)) for j in JUMPS}
    for k in (seqlen - 1, seqlen // 2, 0):
        found[f"lead {LEAD} at {k}"] = lambda t, k=k: add_to_scores(t, LEAD * (keys == k))
    found["v+2"] = lambda t: t.v.add_(2)
    found["outliers"] = add_outliers
    return found


def add_outliers(tensors):
    """N(0, 1) + N(0, 100) Bernoulli(0.001), the data of the paper's Table 3."""
    for x in (tensors.q, tensors.k, tensors.v):
        x += 10 * torch.randn_like(x) * (torch.rand_like(x.float()) < 0.001)


def errors(case, tensors, ready) -> dict:
    """By contender: how far O is off in the first heads of the first batch entry."""
    q, k, v = (x[0, :, :ERROR_HEADS].double() for x in (tensors.q, tensors.k, tensors.v))
    truth = []
    for head in range(q.shape[1]):  # one at a time: their scores are large
        scores = q[:, head] @ k[:, head].T * case.head_dim**-0.5
        if case.causal:
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), float("-inf"))
        truth.append(scores.softmax(-1) @ v[:, head])
    truth = torch.stack(truth, 1)
    found = {}
    for one in ready:
        off = one()[0][0, :, :ERROR_HEADS].double() - truth
        rmse = off.square().mean().sqrt().item()
        found[one.name] = {
            "rmse": rmse,
            "relative": rmse / truth.square().mean().sqrt().item(),
            "max_error": off.abs().max().item(),
        }
    return found


def main():
    def words(text):
        return text.split(",")

    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", type=words, default=["bf16"], metavar="LIST")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256], metavar="LIST")
    parser.add_argument("--causal", type=numbers, default=[0, 1], metavar="LIST")
    parser.add_argument("--seqlen", type=numbers, default=[4096], metavar="LIST")
    parser.add_argument("--tokens", type=int, default=16384, help="batch = tokens / seqlen")
    parser.add_argument("--hidden", type=int, default=2048, help="heads = hidden / head dim")
    parser.add_argument("--kinds", type=words, metavar="LIST")
    parser.add_argument("--errors", action="store_true", help="compare with float64; time nothing")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=0, help="of fa3 on the CPU; 0 = all cores")
    parser.add_argument("--standard", action="store_true", help="attention that stores its scores")
    parser.add_argument("--rival", action="append", default=[], metavar="LIB.so")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    # What contenders() and record() of rivals.py ask for.
    arguments.layout, arguments.q_scale = "bshd", 1.0
    grid = product(arguments.dtype, arguments.head_dim, arguments.causal, arguments.seqlen)
    cells = [
        (*cell, kind)
        for cell in grid
        for kind in kinds(cell[-1], arguments.device)
        if not arguments.kinds or kind in arguments.kinds
    ]
    for dtype, head_dim, causal, seqlen, kind in progress(cells):
        heads, batch = arguments.hidden // head_dim, max(1, arguments.tokens // seqlen)
        shape = (batch, seqlen, heads, heads, head_dim)
        case = contenders.Case(*shape, bool(causal), dtype, arguments.device)
        tensors = contenders.Tensors(case, "bshd")
        kinds(seqlen, arguments.device)[kind](tensors)
        ready, left_out = contenders.contenders(case, tensors, arguments)
        if arguments.errors:
            found = errors(case, tensors, ready)
            told = [f"{x} {row['rmse']:.2e} {row['max_error']:.2e}" for x, row in found.items()]
            told = "RMSE, largest: " + "; ".join(told)
        else:
            found = time_all(ready, case.device, arguments.rounds)
            ours = found[ready[0].name]["median_ms"]
            told = [f"{one.name} {found[one.name]['median_ms'] / ours:.3f}" for one in ready[1:]]
            told = f"{ours:.3f} ms; times over it: {'  '.join(told)}"
        print(f"{dtype} d{head_dim} causal {causal} s{seqlen} {kind}: {told}", flush=True)
        rows = [record(case, one, found[one.name], arguments) for one in ready]
        rows += [refusal(case, *of, arguments) for of in left_out.items()]
        write_rows(arguments.json, [row | {"data": kind} for row in rows])


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Host time of warm calls under a block mask: lists that stay with it beside lists of each call.

    python3 benchmarks/warm_masks.py

Microseconds of the wall clock for each of a batch of calls that are queued one behind the other,
short enough that the host is slower than the GPU; medians over rounds, in which calls with lists
that are kept and calls that make their own take turns (fa3.masks.keep_lists). `less` is what the
first save. bf16, (2, 256, 4, 64); steps: forward and backward. A call without a mask, causal, is
there to compare with.
"""

import statistics
import time

import torch
from harness import parser_of

import fa3
from fa3 import masks

ROWS, WARM = 256, 4


def cells():
    """Calls by name."""
    shape = 2, ROWS, 4, 64
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    owner = torch.arange(ROWS, device="cuda") // 100

    def documents(b, h, i, j):
        return owner[i] == owner[j]

    def softcap(score, b, h, i, j):
        return 20 * torch.tanh(score / 20)

    blocks = masks.from_rule(documents, 1, 1, ROWS, ROWS, device="cuda")
    seen = owner[:, None] == owner
    attend, flex = fa3.attention, fa3.flex_attention
    upstream = torch.randn_like(q)

    def step(**mask):
        torch.autograd.grad(attend(*leaves, **mask), leaves, upstream)

    return {
        "no mask": lambda: attend(q, k, v, causal=True),
        "fa3.attention": lambda: attend(q, k, v, block_mask=blocks),
        "fa3.attention, causal": lambda: attend(q, k, v, block_mask=blocks, causal=True),
        "flex_attention": lambda: flex(q, k, v, block_mask=blocks),
        "flex_attention, mask_mod": lambda: flex(q, k, v, mask_mod=documents),
        "flex_attention, mask_mod, softcap": lambda: flex(
            q, k, v, mask_mod=documents, score_mod=softcap
        ),
        "a bias of booleans": lambda: attend(q, k, v, bias=seen),
        "no mask, a step": lambda: step(causal=True),
        "fa3.attention, a step": lambda: step(block_mask=blocks),
    }


def microseconds(call, calls, keep):
    masks.keep_lists(keep)
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    took = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e6 * took / calls


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=60, help="of a batch")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':36s}{'kept':>8s}{'own':>8s}{'less':>8s}")
    for name, call in cells().items():
        times = {True: [], False: []}
        for number in range(arguments.rounds):
            for keep in (True, False) if number % 2 else (False, True):
                times[keep].append(microseconds(call, arguments.calls, keep))
        kept, own = (statistics.median(times[keep]) for keep in (True, False))
        print(f"{name:36s}{kept:8.2f}{own:8.2f}{own - kept:8.2f}", flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""How the Hopper forward's time depends on data and lengths: flat, normal and peaked scores;
lengths that are no multiple of the tile; grouped query heads. Through the C ABI.

    FA3_LIBRARY=libfa3.so python3 benchmarks/hopper_data.py
"""

import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "cuda"))
from api_check import Call, normal


def milliseconds(calls, rounds=15):
    """Medians, the calls taking turns, each with a cold L2 cache."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times = [[] for _ in calls]
    for r in range(rounds + 2):
        for i, call in enumerate(calls):
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            if r > 1:
                times[i].append(begin.elapsed_time(end))
    return [statistics.median(t) for t in times]


def main():
    for d in (64, 128, 256):
        h = 2048 // d
        q, k, v = (normal(4, 4096, h, d, seed=i) for i in range(3))
        factors = (1, 0.02, 4, 16)
        base, *others = milliseconds([Call(q * f, k, v) for f in factors])
        print(f"d{d} 4096, time over normal data's:", end="")
        print("".join(f"  Q*{f} {t / base:.3f}" for f, t in zip(factors[1:], others, strict=True)))
        for causal in (False, True):
            padded, ragged, one = milliseconds(
                [Call(q[:, :n], k[:, :n], v[:, :n], causal) for n in (4032, 3970, 3905)]
            )
            ratios = f"3970 over 4032 {ragged / padded:.3f}, 3905 {one / padded:.3f}"
            print(f"d{d} causal {int(causal)}: {ratios}")
        mha, gqa = milliseconds(
            [Call(q, k, v), Call(q, k[:, :, : h // 8].contiguous(), v[:, :, : h // 8].contiguous())]
        )
        print(f"d{d} GQA 8:1 over MHA {gqa / mha:.3f}")


if __name__ == "__main__":
    main()

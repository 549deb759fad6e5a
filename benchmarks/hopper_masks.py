# SPDX-License-Identifier: Apache-2.0
"""The forward with windows, softcap, sinks and packed sequences, beside the plain causal one.

    python3 benchmarks/hopper_masks.py --json docs/results/x.jsonl

One JSON object a line. bf16; TFLOP/s count visible pairs of a query and a key; a call is replayed
as a CUDA graph, with the L2 cache flushed before, and the median of the rounds is taken.
"""

import argparse
import json
import math
import random
from pathlib import Path
from statistics import median

import torch

import fa3

DENSE_HEADS = ((16, 16, 128), (32, 4, 128), (64, 8, 64))
PACKED_HEADS = ((16, 16, 128), (32, 4, 128), (32, 32, 64))
WINDOWS = (128, 1024, 4096)
TOKENS = 65536


def log_uniform_lengths():
    """From 16 to 16k, until there are enough tokens."""
    source, lengths = random.Random(1), []
    while (left := TOKENS - sum(lengths)) > 0:
        lengths.append(min(int(math.exp(source.uniform(math.log(16), math.log(16384)))), left))
    return lengths


def many_lengths(count, least, most):
    source = random.Random(2)
    return [source.randint(least, most) for _ in range(count)]


def pairs(seqlen, causal, window):
    """Visible pairs of a query and a key, of one head."""
    if not causal:
        return seqlen * seqlen
    reach = seqlen if window is None else min(window + 1, seqlen)
    return reach * (reach + 1) // 2 + (seqlen - reach) * reach


def median_ms(call, rounds):
    flushed = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(rounds):
        flushed.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return median(times)


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def dense(batch, seqlen, heads, window=None, **options):
    """A causal call on sequences of one length: the call, and its visible pairs."""
    num_q, num_k, dim = heads
    q, k, v = (normal(batch, seqlen, n, dim) for n in (num_q, num_k, num_k))
    if window is not None:
        options["window"] = (window, 0)

    def call():
        return fa3.attention(q, k, v, causal=True, engine="hopper", **options)

    return call, batch * num_q * pairs(seqlen, True, window)


def packed(lengths, heads, causal=True):
    num_q, num_k, dim = heads
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    q, k, v = (normal(sum(lengths), n, dim) for n in (num_q, num_k, num_k))
    longest = {f"max_seqlen_{side}": max(lengths) for side in "qk"}
    starts_of = {f"cu_seqlens_{side}": starts for side in "qk"}

    def call():
        return fa3.attention(q, k, v, causal=causal, engine="hopper", **starts_of, **longest)

    return call, num_q * sum(pairs(n, causal, None) for n in lengths)


def cases():
    """Name, heads, and what makes the call."""
    for heads in DENSE_HEADS:
        sink = torch.randn(heads[0], device="cuda")
        yield "causal 16k", heads, lambda h: dense(1, 16384, h)
        for window in WINDOWS:
            yield f"window {window} causal 16k", heads, lambda h, w=window: dense(1, 16384, h, w)
        yield "causal 4x4k", heads, lambda h: dense(4, 4096, h)
        yield "softcap 30 causal 4x4k", heads, lambda h: dense(4, 4096, h, softcap=30.0)
        yield "sink causal 4x4k", heads, lambda h, s=sink: dense(4, 4096, h, sink=s)
    ragged = log_uniform_lengths()
    for heads in PACKED_HEADS:
        yield "causal 16x4k", heads, lambda h: dense(16, 4096, h)
        yield "packed causal 16x4k", heads, lambda h: packed([4096] * 16, h)
        yield "packed full 16x4k", heads, lambda h: packed([4096] * 16, h, causal=False)
        name = f"packed causal log-uniform 64k, {len(ragged)} sequences"
        yield name, heads, lambda h: packed(ragged, h)
        for count, least, most in ((8192, 1, 32), (2048, 16, 64)):
            lengths = many_lengths(count, least, most)
            yield (
                f"packed causal {count} x {least}..{most}",
                heads,
                lambda h, x=lengths: packed(x, h),
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    for name, heads, make in cases():
        call, visible = make(heads)
        ms = median_ms(call, arguments.rounds)
        row = dict(zip(("heads", "kv_heads", "head_dim"), heads, strict=True))
        row |= {"ms": round(ms, 5), "tflops": round(4 * visible * heads[2] / ms / 1e9, 1)}
        row |= {"rounds": arguments.rounds, "gpu": torch.cuda.get_device_name()}
        print(f"{name:48s} {heads} {ms:8.4f} ms {row['tflops']:7.1f} TFLOP/s", flush=True)
        if arguments.json:
            with arguments.json.open("a") as lines:
                lines.write(json.dumps({"case": name} | row) + "\n")


if __name__ == "__main__":
    main()

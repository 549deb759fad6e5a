# SPDX-License-Identifier: Apache-2.0
"""Windows, chunks, softcap, sinks and packed sequences beside the plain causal mask, both passes.

    python3 benchmarks/masks.py [--pass bwd] --json docs/results/x.jsonl

TFLOP/s count visible pairs of a query and a key; a call on the GPU is replayed as a CUDA graph.
Timed as harness.py says.
"""

import argparse
import math
import random
from pathlib import Path

import torch
from harness import progress, provenance, time_all, write_rows

import fa3

DENSE_HEADS = ((16, 16, 128), (32, 4, 128), (64, 8, 64))
PACKED_HEADS = ((16, 16, 128), (32, 4, 128), (32, 32, 64))
WINDOWS = (128, 1024, 4096)
PRODUCTS = {"fwd": 2, "bwd": 5}  # of matrices, for each visible pair


def log_uniform_lengths(longest):
    """From 16 to the longest, until there are four times as many tokens."""
    source, lengths = random.Random(1), []
    while (left := 4 * longest - sum(lengths)) > 0:
        lengths.append(min(int(math.exp(source.uniform(math.log(16), math.log(longest)))), left))
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


class Call:
    """A contender of harness.py: the call itself, or a CUDA graph of it."""

    def __init__(self, call, device, name="fa3"):
        self.name, self.call = name, call
        call()
        if device == "cuda":
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            self.call = graph.replay

    def __call__(self):
        self.call()


def normal(*shape):
    return torch.randn(*shape).to(torch.bfloat16)


def dense(batch, seqlen, heads, window=None, **options):
    """A causal call on sequences of one length: tensors, options, and visible pairs."""
    num_q, num_k, dim = heads
    q, k, v = (normal(batch, seqlen, n, dim) for n in (num_q, num_k, num_k))
    if window is not None:
        options["window"] = (window, 0)
    return (q, k, v), {"causal": True, **options}, batch * num_q * pairs(seqlen, True, window)


def chunked(seqlen, chunk, heads):
    tensors, options, _ = dense(1, seqlen, heads, attention_chunk=chunk)
    return tensors, options, heads[0] * (seqlen // chunk) * pairs(chunk, True, None)


def packed(lengths, heads, causal=True):
    num_q, num_k, dim = heads
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    q, k, v = (normal(sum(lengths), n, dim) for n in (num_q, num_k, num_k))
    longest = {f"max_seqlen_{side}": max(lengths) for side in "qk"}
    starts_of = {f"cu_seqlens_{side}": starts for side in "qk"}
    options = {"causal": causal, **starts_of, **longest}
    return (q, k, v), options, num_q * sum(pairs(n, causal, None) for n in lengths)


def call_of(tensors, options, which, deterministic):
    """What is timed."""
    if which == "fwd":
        return lambda: fa3.attention(*tensors, **options)
    out, lse = fa3.attention(*tensors, return_lse=True, **options)
    do = torch.randn_like(out)
    options = options | {"deterministic": deterministic}
    return lambda: fa3.attention_backward(do, *tensors, out, lse, **options)


def cases(longest):
    """Name, heads, and what makes the operands; on 4 * longest tokens where packed."""
    short, tokens = longest // 4, 4 * longest
    for heads in DENSE_HEADS:
        sink = torch.randn(heads[0])
        yield f"causal {longest}", heads, lambda h: dense(1, longest, h)
        for window in (w for w in WINDOWS if w < longest):
            name = f"window {window} causal {longest}"
            yield name, heads, lambda h, w=window: dense(1, longest, h, w)
        name = f"chunk {short} causal {longest}"
        yield name, heads, lambda h: chunked(longest, short, h)
        yield f"causal 4x{short}", heads, lambda h: dense(4, short, h)
        yield f"softcap 30 causal 4x{short}", heads, lambda h: dense(4, short, h, softcap=30.0)
        yield f"sink causal 4x{short}", heads, lambda h, s=sink: dense(4, short, h, sink=s)
    ragged = log_uniform_lengths(longest)
    for heads in PACKED_HEADS:
        yield f"causal 16x{short}", heads, lambda h: dense(16, short, h)
        yield f"packed causal 16x{short}", heads, lambda h: packed([short] * 16, h)
        yield f"packed full 16x{short}", heads, lambda h: packed([short] * 16, h, causal=False)
        name = f"packed causal log-uniform, {len(ragged)} sequences"
        yield name, heads, lambda h: packed(ragged, h)
        for count, least, most in ((tokens // 8, 1, 32), (tokens // 32, 16, 64)):
            lengths = many_lengths(count, least, most)
            name = f"packed causal {count} x {least}..{most}"
            yield name, heads, lambda h, x=lengths: packed(x, h)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seqlen", type=int, default=16384, help="of the longest sequence")
    parser.add_argument("--heads", help="only these, as 32:4:128 (heads, key heads, head dim)")
    parser.add_argument("--pass", dest="which", choices=PRODUCTS, default="fwd")
    parser.add_argument("--deterministic", action="store_true", help="gradients")
    parser.add_argument("--batch-invariant", action="store_true", help="what that costs")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    torch.set_default_device(arguments.device)
    told = [
        x for x in cases(arguments.seqlen) if arguments.heads in (None, ":".join(map(str, x[1])))
    ]
    for name, heads, make in progress(told):
        row = {"engine": "fa3", "pass": arguments.which, "dtype": "bf16", "case": name}
        modes = ("deterministic", "batch_invariant")
        if variant := " ".join(mode for mode in modes if getattr(arguments, mode)):
            row["variant"] = variant
        row |= dict(zip(("heads", "kv_heads", "head_dim"), heads, strict=True))
        try:
            tensors, options, visible = make(heads)
            options["batch_invariant"] = arguments.batch_invariant
            call = call_of(tensors, options, arguments.which, arguments.deterministic)
            row |= time_all([Call(call, arguments.device)], arguments.device, arguments.rounds)[
                "fa3"
            ]
            flops = 2 * PRODUCTS[arguments.which] * visible * heads[2]
            row["tflops"] = flops / row["median_ms"] / 1e9
            said = f"{row['median_ms']:8.4f} ms {row['tflops']:7.1f} TFLOP/s"
        except fa3.Unsupported as refused:
            row["left_out"] = said = str(refused)
        print(f"{name:48s} {heads} {said}", flush=True)
        write_rows(arguments.json, [row | provenance(arguments.device)])


if __name__ == "__main__":
    main()

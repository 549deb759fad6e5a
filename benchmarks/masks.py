# SPDX-License-Identifier: Apache-2.0
"""Windows, chunks, softcap, sinks and packed sequences beside plain calls, both passes.

    python3 benchmarks/masks.py [--pass bwd] --json docs/lab/results/x.jsonl

TFLOP/s count visible pairs of a query and a key; a call on the GPU is replayed as a CUDA graph.
Where Python finds FlashAttention-4 (flash_attn.cute), it is timed in turns with fa3: rows of engine
fa4-sm90. --rival LIB.so: a library with the C entry of contenders/masked_library.py. --fp8:
fa3.attention_fp8 of the same tensors, quantization included. One whose output differs from fa3's
gets no time. Timed as harness.py says.
"""

import argparse
import math
import random
from importlib.util import find_spec
from pathlib import Path

import torch
from contenders.masked_library import MaskedRival
from harness import numbers, progress, provenance, time_all, write_rows

import fa3

DENSE_HEADS = ((16, 16, 128), (32, 4, 128), (64, 8, 64))
PACKED_HEADS = ((16, 16, 128), (32, 4, 128), (32, 32, 64))
WINDOWS = (128, 1024, 4096)
PRODUCTS = {"fwd": 2, "bwd": 5}  # of matrices, for each visible pair
SAID = "{median_ms:8.4f} ms {tflops:7.1f} TFLOP/s"
MOST_APART = 0.02  # outputs of two contenders, relative to their size
MOST_APART_FP8 = 0.1


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
        self.kept = call  # a replayed graph reads and writes the tensors that the call holds
        self.first = torch.cat([x.float().flatten() for x in call()])
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


def shapes(heads):
    """(heads, head dim) of q, k and v; heads: (of q, of k, head dim[, that of v])."""
    num_q, num_k, dim, *other = heads
    return (num_q, dim), (num_k, dim), (num_k, *(other or [dim]))


def dense(batch, seqlen, heads, window=None, causal=True, **options):
    """A call on sequences of one length: tensors, options, and visible pairs."""
    num_q = heads[0]
    q, k, v = (normal(batch, seqlen, *shape) for shape in shapes(heads))
    if window is not None:
        options["window"] = (window, 0)
    options["causal"] = causal
    return (q, k, v), options, batch * num_q * pairs(seqlen, causal, window)


def chunked(seqlen, chunk, heads):
    tensors, options, _ = dense(1, seqlen, heads, attention_chunk=chunk)
    return tensors, options, heads[0] * (seqlen // chunk) * pairs(chunk, True, None)


def packed(lengths, heads, causal=True):
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    q, k, v = (normal(sum(lengths), *shape) for shape in shapes(heads))
    longest = {f"max_seqlen_{side}": max(lengths) for side in "qk"}
    starts_of = {f"cu_seqlens_{side}": starts for side in "qk"}
    options = {"causal": causal, **starts_of, **longest}
    return (q, k, v), options, heads[0] * sum(pairs(n, causal, None) for n in lengths)


def call_of(tensors, d_o, options, which, deterministic):
    """What is timed; it returns O, or dQ, dK and dV."""
    if which == "fwd":
        return lambda: (fa3.attention(*tensors, **options),)
    out, lse = fa3.attention(*tensors, return_lse=True, **options)
    options = options | {"deterministic": deterministic}
    return lambda: fa3.attention_backward(d_o, *tensors, out, lse, **options)[:3]


def fa4_call_of(tensors, d_o, options, which, deterministic):
    """The call by FlashAttention-4."""
    from flash_attn.cute import interface

    words = dict(options)
    words.pop("batch_invariant")
    if "attention_chunk" in words:
        raise RuntimeError("FlashAttention-4 has no chunks")
    if "window" in words:
        words["window_size_left"], words["window_size_right"] = words.pop("window")
    if "sink" in words:
        words["learnable_sink"] = words.pop("sink").to(torch.bfloat16)
    out, lse = interface._flash_attn_fwd(*tensors, return_lse=True, **words)[:2]
    if which == "fwd":
        given = {"out": out, "lse": lse, "return_lse": True}
        return lambda: interface._flash_attn_fwd(*tensors, **words, **given)[:1]
    words["deterministic"] = deterministic
    return lambda: interface._flash_attn_bwd(*tensors, out, d_o, lse, **words)[:3]


def rival_call_of(path, tensors, d_o, options, which, deterministic):
    """The call by a rival library."""
    out, lse = fa3.attention(*tensors, return_lse=True, **options)
    return MaskedRival(path, tensors, d_o, options, which, deterministic, out, lse)


def fp8_call_of(tensors, options):
    words = {name: x for name, x in options.items() if name != "batch_invariant"}
    return lambda: (fa3.attention_fp8(*tensors, **words),)


def contenders(tensors, options, which, deterministic, device, rivals, with_fp8):
    """fa3, and those rivals that are found and agree with it; why others do not: by name."""
    q, _, v = tensors
    d_o = torch.randn(*q.shape[:-1], v.shape[-1]).to(q.dtype)
    given = (tensors, d_o, options, which, deterministic)
    makers, found, why = {}, [Call(call_of(*given), device)], {}
    if device == "cuda" and find_spec("flash_attn") and find_spec("flash_attn.cute"):
        makers["fa4-sm90"] = lambda: fa4_call_of(*given)
    if with_fp8:
        makers["fa3-fp8"] = lambda: fp8_call_of(tensors, options)
    for path in rivals:
        makers["fa3-official"] = lambda path=path: rival_call_of(path, *given)
    for name, make in makers.items():
        try:
            rival = Call(make(), device, name)
            error = (rival.first - found[0].first).norm() / found[0].first.norm()
            if error < (MOST_APART_FP8 if name == "fa3-fp8" else MOST_APART):
                found.append(rival)
            else:
                why[name] = f"differs from fa3 by {error:.1e}"
        except (RuntimeError, AssertionError, ValueError) as refused:
            why[name] = str(refused).splitlines()[0]
    return found, why


def cases(longest, given):
    """Name, heads, and what makes the operands; on 4 * longest tokens where packed."""
    short, tokens = longest // 4, 4 * longest
    for heads in given or DENSE_HEADS:
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
    for heads in given or PACKED_HEADS:
        yield f"causal 16x{short}", heads, lambda h: dense(16, short, h)
        yield f"full 16x{short}", heads, lambda h: dense(16, short, h, causal=False)
        yield f"packed causal 16x{short}", heads, lambda h: packed([short] * 16, h)
        yield f"packed full 16x{short}", heads, lambda h: packed([short] * 16, h, causal=False)
        name = f"packed causal log-uniform to {longest}, {len(ragged)} sequences"
        yield name, heads, lambda h: packed(ragged, h)
        for count, least, most in ((tokens // 8, 1, 32), (tokens // 32, 16, 64)):
            lengths = many_lengths(count, least, most)
            name = f"packed causal {count} x {least}..{most}"
            yield name, heads, lambda h, x=lengths: packed(x, h)


def heads_of(text):
    return [tuple(numbers(part.replace(":", ","))) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seqlen", type=numbers, default=[16384], help="of the longest sequence")
    parser.add_argument(
        "--heads", type=heads_of, default=(), metavar="LIST",
        help="only these, as 32:4:128 (heads, key heads, head dim) or 16:16:192:128 (that of v)"
    )  # fmt: skip
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), default=[""], metavar="LIST",
        help="only those with one of these in their names"
    )  # fmt: skip
    parser.add_argument("--rival", action="append", default=[], metavar="LIB.so")
    parser.add_argument("--pass", dest="which", choices=PRODUCTS, default="fwd")
    parser.add_argument("--deterministic", action="store_true", help="gradients")
    parser.add_argument("--fp8", action="store_true", help="forward alone")
    parser.add_argument("--batch-invariant", action="store_true", help="what that costs")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    torch.set_default_device(arguments.device)
    told = [
        (name, heads, make)
        for seqlen in arguments.seqlen
        for name, heads, make in cases(seqlen, arguments.heads)
        if any(part in name for part in arguments.cases)
    ]
    for name, heads, make in progress(told):
        row = {"pass": arguments.which, "dtype": "bf16", "case": name}
        variants = ("deterministic", "batch_invariant")
        if variant := " ".join(mode for mode in variants if getattr(arguments, mode)):
            row["variant"] = variant
        row |= dict(zip(("heads", "kv_heads", "head_dim", "head_dim_v"), heads, strict=False))
        try:
            tensors, options, visible = make(heads)
            options["batch_invariant"] = arguments.batch_invariant
            modes = arguments.which, arguments.deterministic, arguments.device
            with_fp8 = arguments.fp8 and arguments.which == "fwd"
            timed, why = contenders(tensors, options, *modes, arguments.rival, with_fp8)
            times = time_all(timed, arguments.device, arguments.rounds)
            flops = PRODUCTS[arguments.which] * visible * (heads[2] + heads[-1])
            rows = {
                engine: once | {"tflops": flops / once["median_ms"] / 1e9}
                for engine, once in times.items()
            }
            rows |= {engine: {"left_out": sentence} for engine, sentence in why.items()}
        except fa3.Unsupported as refused:
            rows = {"fa3": {"left_out": str(refused)}}
        for engine, found in rows.items():
            said = found.get("left_out") or SAID.format(**found)
            print(f"{name:48s} {heads} {engine:8s} {said}", flush=True)
            one = {"engine": engine} | row | found | provenance(arguments.device)
            write_rows(arguments.json, [one])


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Decoding on a GPU: how fast keys and values are read, beside cuDNN where it can.

    python3 benchmarks/decoding.py --json docs/lab/results/x.jsonl

bf16, over caches of bf16 or e4m3. A CUDA graph holds many calls, each on another cache, so that
none finds its keys in the L2 cache; a row has the time of one call. TB/s count keys and values once
a call, TFLOP/s visible pairs of a query and a key. --rival LIB.so: another build of fa3, in the
same rounds. Timed as harness.py says.
"""

import argparse
import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from contenders import Fa3Cache
from harness import progress, provenance, time_all, write_rows
from torch.nn.attention import SDPBackend, sdpa_kernel

import fa3

COLD_BYTES = 400 << 20  # of the caches that a graph goes through
MOST_BYTES = 70 << 30  # of one call's
GROUPS_OF_8, SMALL, WIDE = (64, 8, 128), (16, 2, 128), (32, 2, 256)  # heads, key heads, head dim


class Shape:
    """A call: heads, lengths, query tokens, rows of a page (0: no pages), the cache's type."""

    def __init__(self, name, heads, lengths, queries=1, page=16, cache=torch.bfloat16):
        self.name, self.heads, self.lengths = name, heads, lengths
        self.queries, self.page, self.cache = queries, page, cache

    def bytes(self):
        _, kv_heads, dim = self.heads
        return sum(self.lengths) * kv_heads * dim * 2 * self.cache.itemsize

    def flops(self):
        heads, _, dim = self.heads
        hidden = self.queries * (self.queries - 1) // 2
        return 4 * heads * dim * sum(self.queries * n - hidden for n in self.lengths)

    def columns(self):
        names = ("heads", "kv_heads", "head_dim")
        return dict(zip(names, self.heads, strict=True)) | {
            "batch": len(self.lengths),
            "keys": sum(self.lengths) // len(self.lengths),
            "queries": self.queries,
            "page": self.page,
            "cache": "e4m3" if self.cache.itemsize == 1 else "bf16",
        }


def log_uniform(count, least=1024, most=131072):
    source = random.Random(3)
    return [int(math.exp(source.uniform(math.log(least), math.log(most)))) for _ in range(count)]


def shapes():
    for batch in (1, 8, 128):
        for keys in (2048, 8192, 32768, 131072):
            yield Shape("batches", GROUPS_OF_8, [keys] * batch)
    for keys in (2048, 8192, 32768, 131072):
        yield Shape("small", SMALL, [keys])
    for batch, keys in ((1, 131072), (32, 8192), (128, 8192)):
        yield Shape("wide", WIDE, [keys] * batch)
    for page in (1, 16, 64, 256, 0):
        yield Shape("pages", GROUPS_OF_8, [8192] * 32, page=page)
    for queries in (1, 2, 4, 8, 16, 32):
        yield Shape("queries", GROUPS_OF_8, [8192] * 32, queries=queries)
    uneven = log_uniform(32)
    yield Shape("uneven", GROUPS_OF_8, uneven)
    yield Shape("uneven", GROUPS_OF_8, [sum(uneven) // 32] * 32)
    for queries, batch, keys in (
        (16, 8, 2048),
        (16, 16, 4096),
        (16, 32, 2048),
        (16, 32, 8192),
        (32, 8, 2048),
    ):
        for lengths in ([keys] * batch, log_uniform(batch, keys // 8, keys)):
            yield Shape("tokens", GROUPS_OF_8, lengths, queries=queries)
    for batch in (8, 16, 32):
        for lengths in ([2048] * batch, log_uniform(batch, 256, 2048)):
            yield Shape("tokens", WIDE, lengths, queries=8)
            yield Shape("tokens", (64, 8, 64), lengths, queries=16)
    for heads in ((16, 16, 128), SMALL, GROUPS_OF_8):
        for page in (16, 256, 0):
            yield Shape("chunk", heads, [65536], queries=512, page=page)
    for cache in (torch.bfloat16, torch.float8_e4m3fn):
        for heads in (GROUPS_OF_8, WIDE):
            for batch, keys in ((1, 8192), (8, 8192), (64, 8192), (8, 131072)):
                yield Shape("quantized", heads, [keys] * batch, cache=cache)
        yield Shape("quantized", (16, 16, 128), [65536], queries=512, cache=cache)


class Cache:
    """Keys and values of one call, in pages or not, and the call's other arguments."""

    def __init__(self, shape):
        heads, kv_heads, dim = shape.heads
        batch, self.table = len(shape.lengths), None
        rows = (batch, max(shape.lengths))
        if shape.page:
            counts = [-(-n // shape.page) for n in shape.lengths]
            table = torch.zeros(batch, max(counts), dtype=torch.int32)
            numbers = torch.randperm(sum(counts), dtype=torch.int32).split(counts)
            for row, own in zip(table, numbers, strict=True):
                row[: len(own)] = own
            self.table, rows = table.cuda(), (sum(counts), shape.page)

        def normal(*extents):
            return torch.empty(extents, dtype=torch.bfloat16, device="cuda").normal_()

        self.q = normal(batch, shape.queries, heads, dim)
        self.k, self.v = (normal(*rows, kv_heads, dim).to(shape.cache) for _ in range(2))
        self.used = torch.tensor(shape.lengths, dtype=torch.int32, device="cuda")


class Replayed:
    """A contender: one call on each cache, as a CUDA graph."""

    def __init__(self, name, call, caches):
        self.name, self.calls = name, max(4, len(caches))
        self.call = call  # has the memory that the graph knows by its addresses
        self.graph = torch.cuda.CUDAGraph()
        call(caches[0])
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            for i in range(self.calls):
                call(caches[i % len(caches)])

    def __call__(self):
        self.graph.replay()


def attend(cache, **options):
    if cache.table is not None:
        options["page_table"] = cache.table
    options |= {"seqused_k": cache.used, "causal": True, "engine": "hopper"}
    return fa3.attention(cache.q, cache.k, cache.v, **options)


def invariant(num_splits):
    """Bits of a sequence that do not follow the batch."""
    return lambda cache: attend(cache, batch_invariant=True, num_splits=num_splits)


def attend_cudnn(cache):
    q, k, v = (x.transpose(1, 2) for x in (cache.q, cache.k, cache.v))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def contenders(shape, caches, parts, rivals=()):
    yield Replayed("fa3", attend, caches)
    for path in rivals:
        calls = {id(cache): Fa3Cache(cache, path) for cache in caches}
        yield Replayed(
            f"fa3:{Path(path).stem}", lambda cache, calls=calls: calls[id(cache)](), caches
        )
    for n in parts:
        yield Replayed(f"invariant {n}", invariant(n), caches)
    if shape.page == 0 and shape.queries == 1 and len(set(shape.lengths)) == 1:
        yield Replayed("cudnn", attend_cudnn, caches)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    parser.add_argument(
        "--invariant",
        type=int,
        nargs="*",
        default=[],
        metavar="PARTS",
        help="also batch-invariant calls, keys cut into so many parts",
    )
    parser.add_argument("--rival", action="append", default=[], metavar="LIB.so")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    chosen = [x for x in shapes() if arguments.cases in x.name and x.bytes() <= MOST_BYTES]
    for shape in progress(chosen):
        copies = min(64, -(-COLD_BYTES // shape.bytes()))
        caches = [Cache(shape) for _ in range(copies)]
        found = list(contenders(shape, caches, arguments.invariant, arguments.rival))
        for name, times in time_all(found, "cuda", arguments.rounds).items():
            calls = next(x.calls for x in found if x.name == name)
            us = times["median_ms"] * 1000 / calls
            row = {"engine": name, "pass": "fwd", "dtype": "bf16", "case": shape.name}
            row |= shape.columns() | times | {"calls": calls, "us": us}
            row |= {"tb_s": shape.bytes() / us / 1e6, "tflops": shape.flops() / us / 1e6}
            where = " ".join(f"{key} {value}" for key, value in shape.columns().items())
            print(f"{shape.name:8s} {where} {name:12s} {us:9.2f} us {row['tb_s']:6.3f} TB/s")
            write_rows(arguments.json, [row | provenance("cuda")])
        del found, caches
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

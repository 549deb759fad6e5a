# SPDX-License-Identifier: Apache-2.0
"""What each of two GPUs runs in test_distributed_gpus.py. Expected is what one GPU gives."""

import datetime
import itertools
import json
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist

import fa3
from fa3 import distributed
from fa3.distributed.transport import device_memory

WORLD, TIMEOUT = 2, 6.0
LENGTHS = [1000, 1, 4096, (700, 0, 3, 1345)]
MASKS = [{"causal": True}, {}, {"causal": True, "window": (200, 0)}, {"window": (3, 150)}]
METHODS = ["ring", "all_gather", "ulysses"]
SHAPES = [(torch.bfloat16, 8, 2, 128), (torch.float16, 2, 2, 64), (torch.bfloat16, 4, 4, 20)]
NOTHING = 1e-4  # where one key is all that a row sees, its gradients are 0
MOST_APART = 8e-3  # of the norm: both round P and gradients of keys to 16 bits, at other places


def join(rank, store, timeout=60.0):
    torch.cuda.set_device(rank)
    limit = datetime.timedelta(seconds=timeout)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=limit
    )


def both_passes(attend, q, k, v, do):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out, lse = attend(*leaves)
    return [out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, do)]


def documents(lengths):
    starts = list(itertools.accumulate(lengths, initial=0))
    on_device = torch.tensor(starts, dtype=torch.int32, device="cuda")
    whole = {"cu_seqlens_q": on_device, "cu_seqlens_k": on_device}
    return {"cu_seqlens": starts}, whole | {f"max_seqlen_{x}": max(lengths) for x in "qk"}


def compare(dtype, heads, heads_k, dim, lengths, mask, method):
    packed = not isinstance(lengths, int)
    here, whole = documents(lengths) if packed else ({"seqlen": lengths}, {})
    rows = (sum(lengths),) if packed else (2, lengths)
    made = torch.Generator("cuda").manual_seed(7)
    q, k, v, do = (
        torch.randn((*rows, n, dim), generator=made, device="cuda").to(dtype)
        for n in (heads, heads_k, heads_k, heads)
    )
    of = {"dim": 0, **here} if packed else {}
    parts = [distributed.shard(x, **of) for x in (q, k, v, do)]
    got = both_passes(
        lambda *x: distributed.attention(*x, method=method, return_lse=True, **mask, **here), *parts
    )
    expected = both_passes(
        lambda *x: fa3.attention(*x, return_lse=True, **mask, **whole), q, k, v, do
    )
    expected[1] = distributed.shard(expected[1].transpose(-1, -2), **of).transpose(-1, -2)
    for i in (0, 2, 3, 4):
        expected[i] = distributed.shard(expected[i], **of)
    torch.testing.assert_close(got[1], expected[1], rtol=1e-4, atol=1e-4)
    for name, i in (("out", 0), ("dq", 2), ("dk", 3), ("dv", 4)):
        apart = (got[i].float() - expected[i].float()).norm()
        assert apart <= MOST_APART * expected[i].float().norm() + NOTHING, f"{name}: {apart}"


def parts_of_a_sequence(method, lengths=4096, seed=7):
    """A call over a causal sequence, or documents, that takes these parts, which are new."""
    here = documents(lengths)[0] if not isinstance(lengths, int) else {}
    rows = (1, lengths) if not here else (sum(lengths),)
    made = torch.Generator("cuda").manual_seed(seed)
    whole = (torch.randn((*rows, 4, 128), generator=made, device="cuda") for _ in range(4))
    parts = [distributed.shard(x.bfloat16(), dim=len(rows) - 1, **here) for x in whole]
    options = {"method": method, "causal": True, "return_lse": True, "deterministic": True, **here}
    return parts, lambda *x: distributed.attention(*x, **options)


def call_waits_for_nothing(method, lengths):
    """But the first of its kind: torch refuses to wait for the device here."""
    parts, attend = parts_of_a_sequence(method, lengths)
    expected = both_passes(attend, *parts)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = both_passes(attend, *parts)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for x, y in zip(got, expected, strict=True):
        assert torch.equal(x, y)


def graph_replays_with_other_numbers(method, lengths):
    """Captured once, by NCCL; no copies between peers are in a graph."""
    parts, attend = parts_of_a_sequence(method, lengths)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            both_passes(attend, *parts)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        got = both_passes(attend, *parts)
    others, _ = parts_of_a_sequence(method, lengths, seed=8)
    for x, y in zip(parts, others, strict=True):
        x.copy_(y)
    for x in got:
        x.zero_()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    for x, y in zip(got, both_passes(attend, *others), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-2)


LENGTHS_OF_A_CALL = [8192, (700, 0, 3, 3393)]
CHECKS = {
    "peers": lambda: itertools.product([compare_all], SHAPES, LENGTHS, MASKS, METHODS),
    "queued": lambda: itertools.product([call_waits_for_nothing], METHODS, LENGTHS_OF_A_CALL),
    "graphs": lambda: itertools.product(
        [graph_replays_with_other_numbers], METHODS, LENGTHS_OF_A_CALL
    ),
}
CHECKS["messages"] = CHECKS["peers"]


def compare_all(shape, lengths, mask, method):
    compare(*shape, lengths, mask, method)


def run_rank(rank, world, store, what):
    if what in ("killed", "late"):
        lose_a_rank(rank, store, what)
        return
    join(rank, store)
    if what in ("messages", "graphs"):
        os.environ[device_memory.SWITCH] = "0"
    failures = []
    for check, *arguments in CHECKS[what]():
        try:
            check(*arguments)
        except Exception:
            failures.append(f"{arguments}: {traceback.format_exc()}")
    of_group = device_memory.found.get(dist.group.WORLD, {})
    print(json.dumps([failures[:3], len(failures), any(x is not None for x in of_group.values())]))
    sys.stdout.flush()
    if what == "graphs":
        os._exit(0)  # NCCL's communicators wait for graphs that use them
    dist.destroy_process_group()


def lose_a_rank(rank, store, what):
    """The other one ends within the timeout, by itself."""
    join(rank, store, TIMEOUT)
    q = torch.randn(1, 512, 2, 64, device="cuda", dtype=torch.bfloat16)
    distributed.attention(q, q, q, causal=True, method="ring")
    torch.cuda.synchronize()
    print(json.dumps(["together", time.time()]), flush=True)
    if rank == 1 and what == "killed":
        os._exit(1)
    if rank == 1:
        time.sleep(4 * TIMEOUT)
        os._exit(1)
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    distributed.attention(q, q, q, causal=True, method="ring")
    torch.cuda.synchronize()
    print(json.dumps(["went on", time.time()]), flush=True)

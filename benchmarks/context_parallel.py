# SPDX-License-Identifier: Apache-2.0
"""Times fa3.distributed.attention on the ranks of a group, beside rivals and the ideal.

    torchrun --nproc-per-node 8 benchmarks/context_parallel.py --json rows.jsonl
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --device cpu --dtype fp32 \
        --tokens 256 --heads 4:2 --head-dim 32 --rounds 2
    python3 benchmarks/context_parallel.py --predict 2,4,8,16,64

A time is that of the slowest rank; rounds and rows are those of harness.py, but each GPU sleeps for
8 ms before (24 for torch's own), so that Python's time is hidden as it is where a training step is
queued; `host_us` has it. GPUs then meet, by a message, so that none waits in its time for one that
began later. "in order" computes all own rows of a backward first. "ideal" is fa3.attention without
communication over the whole sequence with its part of the heads: a rank's share of the work as one
GPU does it. `of_ideal` is the ideal's time over a contender's. `error` is the RMSE of some rows of
O and dQ from float64, over that of O and dQ themselves; more than 0.02 of fa3's ends the run, and
leaves a rival out. `peak_mib` is what a pass adds to the memory in use. What cannot run has
`left_out`, the reason.

--timeline FILE writes what the GPUs did in one call instead: rows of kernels and copies with their
begin and end.

--predict prints what the model behind method="auto" expects instead, for so many GPUs.
"""

import contextlib
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from contenders import DTYPES
from context_parallel_cases import Case, Contender
from context_parallel_model import print_predictions
from context_parallel_rivals import rivals
from context_parallel_timeline import timeline
from harness import FLUSH_BYTES, numbers, parser_of, progress, provenance, summary, time_once
from harness import write_rows as write

import fa3
from fa3 import distributed
from fa3.distributed import schedule, stages

SAMPLED_ROWS = 32
CYCLES_A_MS = 2_000_000
MOST_ERROR = 0.02


def ours(case: Case) -> list[Contender]:
    def call(method, layout, degree=None, sizes=None):
        of = {"cu_seqlens": case.cu_seqlens()} if case.packed else {}
        options = {
            "method": method,
            "layout": layout,
            "ulysses_degree": degree,
            "stages": sizes,
            "sm_margin": case.sm_margin,
            **of,
        }
        return lambda q, k, v: distributed.attention(q, k, v, causal=True, **options)

    world, kv_heads = dist.get_world_size(), case.heads[1]
    found = [
        Contender("fa3 ring", "zigzag", call("ring", "zigzag")),
        Contender("fa3 all_gather", "zigzag", call("all_gather", "zigzag")),
        Contender("fa3 auto", "zigzag", call("auto", "zigzag")),
    ]
    if case.backward and not case.packed:
        one = call("ring", "zigzag")
        found.append(Contender("fa3 ring, in order", "zigzag", one, in_order))
    if world > 2:
        one = call("ring", "zigzag", None, stages.growing(world))
        found.append(Contender("fa3 ring, growing", "zigzag", one))
    if case.packed:
        packed = ("all_gather", "contiguous"), ("ring", "balanced"), ("all_gather", "balanced")
        for method, layout in packed:
            found.append(Contender(f"fa3 {method}, {layout}", layout, call(method, layout)))
    if kv_heads % world == 0:
        found.append(Contender("fa3 ulysses", "contiguous", call("ulysses", "contiguous")))
    for degree in range(2, world):
        if world % degree == 0 and kv_heads % degree == 0:
            one = call("hybrid", "zigzag", degree)
            found.append(Contender(f"fa3 hybrid {world // degree}x{degree}", "zigzag", one))
    return found


@contextlib.contextmanager
def in_order():
    """No rows of a rank's own wait until the last gradients of keys are on their way."""
    before, schedule.WORTH_HIDING = schedule.WORTH_HIDING, sys.maxsize
    try:
        yield
    finally:
        schedule.WORTH_HIDING = before


def ideal(case: Case) -> Contender:
    options = {}
    if case.packed:
        cu = torch.tensor(case.cu_seqlens(), dtype=torch.int32, device=case.device)
        options = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        options |= {"max_seqlen_q": max(case.lengths()), "max_seqlen_k": max(case.lengths())}
    attend = lambda q, k, v: fa3.attention(q, k, v, causal=True, **options)  # noqa: E731
    return Contender("ideal", "heads", attend, whole=True)


class Tensors:
    """q, k, v and do of the whole, the same on every rank; a contender's parts of them."""

    def __init__(self, case: Case) -> None:
        made = torch.Generator(case.device).manual_seed(0)
        of = {"generator": made, "device": case.device, "dtype": DTYPES[case.dtype]}
        rows = (case.total,) if case.packed else (1, case.total)
        queries, keys = case.heads
        shapes = ((*rows, heads, case.head_dim) for heads in (queries, keys, keys, queries))
        self.case, self.whole = case, [torch.randn(shape, **of) for shape in shapes]

    def of(self, contender: Contender) -> list[torch.Tensor]:
        if contender.whole:
            world, rank = dist.get_world_size(), dist.get_rank()
            parts = [x.tensor_split(world, -2)[rank] for x in self.whole]
        else:
            of = {"cu_seqlens": self.case.cu_seqlens()} if self.case.packed else {}
            dim = 0 if self.case.packed else 1
            layout = contender.layout
            parts = [distributed.shard(x, layout=layout, dim=dim, **of) for x in self.whole]
        return [x.contiguous().requires_grad_(self.case.backward) for x in parts]

    def error(self, contender: Contender, out: torch.Tensor, dq: torch.Tensor | None) -> float:
        """Error of some rows of this rank's last head from float64: the larger of O's and dQ's."""
        of = {"seqlen": self.case.total}
        if self.case.packed:
            of = {"cu_seqlens": self.case.cu_seqlens()}
        at = distributed.positions(layout=contender.layout, device=self.case.device, **of)
        rows = torch.linspace(0, len(at) - 1, SAMPLED_ROWS, device=at.device).long()
        row = torch.arange(self.case.total, device=at.device)
        row = distributed.shard(
            row, layout=contender.layout, dim=0, **({} if "seqlen" in of else of)
        )[rows]
        q, k, v, do = (x.reshape(-1, *x.shape[-2:])[:, -1].double() for x in self.whole)
        begin = (row - at[rows])[:, None]
        key = torch.arange(self.case.total, device=at.device)[None]
        scale = self.case.head_dim**-0.5
        scores = q[row] @ k.T * scale
        seen = (key >= begin) & (key <= row[:, None])
        p = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        dp = do[row] @ v.T
        expected = {"o": p @ v, "dq": scale * (p * (dp - (p * dp).sum(-1, keepdim=True))) @ k}
        found = [(out, expected["o"]), *([] if dq is None else [(dq, expected["dq"])])]
        return max(off_by(x.detach().reshape(-1, *x.shape[-2:])[rows, -1], y) for x, y in found)


def off_by(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


def one_pass(contender: Contender, tensors: list[torch.Tensor], backward: bool):
    *qkv, do = tensors
    with contender.around(), torch.set_grad_enabled(backward):
        out = contender.attend(*qkv)
        return out, torch.autograd.grad(out, qkv, do)[0] if backward else None


@contextlib.contextmanager
def peak(device: str, into: dict):
    """Puts into it what a pass adds at most to what was allocated before."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    yield
    if device == "cuda":
        into["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20


def slowest(value: float, device: str) -> float:
    """The largest of all ranks."""
    time = torch.tensor([value], device=device)
    dist.all_reduce(time, dist.ReduceOp.MAX)
    return float(time)


def timed(call: Callable, microseconds: list[float]) -> Callable:
    """The call, which notes how long the host takes to give it."""

    def noting():
        begin = time.perf_counter()
        call()
        microseconds.append(1e6 * (time.perf_counter() - begin))

    return noting


def meeting(device: str) -> Callable | None:
    """Queues what ends on all GPUs at the same time."""
    if device == "cpu":
        return None
    token = torch.zeros(1, device=device)
    return lambda: dist.all_reduce(token)


def timings(case: Case, tensors: Tensors, contenders: list[Contender], rounds: int) -> dict:
    """By name: the columns of a row."""
    device, found = case.device, {one.name: [] for one in contenders}
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device) if device == "cuda" else None
    meet = meeting(device)
    parts, host = {one.name: tensors.of(one) for one in contenders}, []
    for index in range(rounds + 1):
        for one in contenders if index % 2 else reversed(contenders):
            dist.barrier()
            call = lambda of=one: one_pass(of, parts[of.name], case.backward)  # noqa: E731
            sleep = one.host_ms * CYCLES_A_MS
            milliseconds, state = time_once(timed(call, host), device, flush, sleep, meet)
            state["host_us"] = host[-1]
            if index > 0:
                found[one.name].append((slowest(milliseconds, device), state))
    return {name: summary(once) for name, once in found.items()}


def chosen(case: Case, names: list[str] | None) -> list:
    """All contenders, or those of these names."""
    found = [*ours(case), *([] if names and all(map(is_ours, names)) else rivals(case))]
    name = lambda one: one[0] if isinstance(one, tuple) else one.name  # noqa: E731
    return [one for one in found if names is None or name(one) in names]


def is_ours(name: str) -> bool:
    return name.startswith("fa3 ")


def rows_of(case: Case, rounds: int, names: list[str] | None) -> list[dict]:
    tensors, contenders, rows, seen = Tensors(case), [ideal(case)], [], {}
    columns = {**dataclasses.asdict(case), "ranks": dist.get_world_size()}
    columns |= {"pass": "fwd+bwd" if case.backward else "fwd", "documents": len(case.lengths())}
    for one in chosen(case, names):
        if isinstance(one, tuple):
            rows.append({"engine": one[0], **columns, "left_out": one[1]})
            continue
        try:  # what the ranks do alike fails alike
            parts, seen[one.name] = tensors.of(one), {}
            with peak(case.device, seen[one.name]):
                results = one_pass(one, parts, case.backward)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            rows.append({"engine": one.name, **columns, "left_out": str(error).split("\n")[0]})
            continue
        error = slowest(tensors.error(one, *results), case.device)
        if not error <= MOST_ERROR:
            if is_ours(one.name):
                sys.exit(f"context_parallel.py: {one.name} is off by {error:.1e}")
            rows.append({"engine": one.name, **columns, "left_out": f"is off by {error:.1e}"})
            continue
        seen[one.name]["error"] = error
        contenders.append(one)
    measured = timings(case, tensors, contenders, rounds)
    best = measured["ideal"]["median_ms"]
    for name, times in measured.items():
        row = {"engine": name, **columns, **times, **seen.get(name, {})}
        row["tflops"] = case.flops() / times["median_ms"] / 1e9
        row["of_ideal"] = best / times["median_ms"]
        rows.append(row | provenance(case.device, torch.get_num_threads()))
    return rows


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), default="bf16")
    parser.add_argument(
        "--tokens",
        type=numbers,
        default=[4096, 8192, 16384, 32768],
        metavar="LIST",
        help="of a rank",
    )
    parser.add_argument("--heads", default="16:16,64:8", metavar="LIST", help="queries:keys")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engines", metavar="LIST", help="names, with ; between; all")
    parser.add_argument("--cells", metavar="LIST", default="dense,packed", help="dense, packed")
    parser.add_argument("--timeline", type=Path, help="write what the GPUs do in a call")
    parser.add_argument("--sm-margin", type=int, default=0, help="SMs left to NCCL")
    parser.add_argument("--predict", type=numbers, metavar="LIST", help="for so many GPUs, no run")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    heads = [tuple(map(int, pair.split(":"))) for pair in arguments.heads.split(",")]
    if arguments.predict:
        print_predictions(arguments.predict, arguments.tokens, heads, arguments.head_dim)
        return 0
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        urgent = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        dist.init_process_group("nccl", pg_options=urgent)
    else:
        dist.init_process_group("gloo")
    names = arguments.engines and arguments.engines.split(";")
    kinds = [name == "packed" for name in arguments.cells.split(",")]
    cells = itertools.product(heads, arguments.tokens, kinds, (False, True))
    first = dist.get_rank() == 0
    for of, tokens, packed, backward in progress(list(cells)) if first else list(cells):
        case = Case(
            tokens,
            of,
            arguments.head_dim,
            packed,
            backward,
            arguments.dtype,
            arguments.device,
            arguments.sm_margin,
        )
        if arguments.timeline:
            if backward:
                for one in chosen(case, names):
                    parts = Tensors(case).of(one)
                    call = lambda of=one, x=parts: one_pass(of, x, True)  # noqa: E731
                    rows = timeline(call, meeting(case.device), one.host_ms * CYCLES_A_MS)
                    columns = {"engine": one.name, **dataclasses.asdict(case)}
                    of_run = columns | provenance(case.device, None)
                    if first:
                        write(arguments.timeline, [of_run | row for row in rows])
            continue
        rows = rows_of(case, arguments.rounds, names)
        if first:
            show(case, rows)
            write(arguments.json, rows)
    dist.destroy_process_group()
    return 0


def show(case: Case, rows: list[dict]) -> None:
    what = f"{case.tokens} tokens a rank, heads {case.heads[0]}:{case.heads[1]}"
    print(f"\n{what}{', packed' * case.packed}, {rows[0]['pass']}")
    for row in rows:
        if "left_out" in row:
            print(f"  {row['engine']:<28} left out: {row['left_out']}")
        else:
            print(
                f"  {row['engine']:<28} {row['median_ms']:9.3f} ms {row['tflops']:7.1f} TFLOP/s, "
                f"{row['of_ideal']:5.2f} of the ideal",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())

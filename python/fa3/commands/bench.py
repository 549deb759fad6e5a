# SPDX-License-Identifier: Apache-2.0
"""Times fa3.attention beside torch's scaled_dot_product_attention on the same tensors.

End to end, as a model calls it: Python, dispatch and kernel. Every round times each contender once,
in an order that reverses from round to round, so that heat and clocks fall on all alike; on CUDA
the L2 cache is flushed first. The median over the rounds counts. FLOPs: 4 b h sq sk d forward,
2.5 times that backward, half if causal. Results are compared; a wrong one gets no time.
"""

import datetime
import json
import os
import platform
import statistics
import sys
import time
from itertools import product
from pathlib import Path

import fa3

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
FLUSH_BYTES = 256 << 20  # several times the L2 cache of an H200
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2}


def add_arguments(parser):
    def numbers(text):
        return [int(part) for part in text.split(",")]

    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128], metavar="LIST")
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048], metavar="LIST")
    parser.add_argument("--causal", type=numbers, default=[0, 1], metavar="LIST")
    parser.add_argument("--pass", dest="passes", default="fwd", metavar="LIST", help="fwd,bwd")
    parser.add_argument("--tokens", type=int, default=2048, help="batch = tokens / seqlen")
    parser.add_argument("--hidden", type=int, default=512, help="heads = hidden / head dim")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")


def run(arguments):
    try:
        import torch
    except ModuleNotFoundError:
        print("bench: the rivals are torch's; install torch, or use the command fa3 bench")
        return 2
    torch.set_num_threads(arguments.threads)
    grid = product(arguments.passes.split(","), arguments.head_dim, arguments.causal)
    for (direction, head_dim, causal), seqlen in product(grid, arguments.seqlen):
        case = {
            "pass": direction,
            "dtype": arguments.dtype,
            "batch": max(1, arguments.tokens // seqlen),
            "heads": max(1, arguments.hidden // head_dim),
            "kv_heads": max(1, arguments.hidden // head_dim),
            "seqlen_q": seqlen,
            "seqlen_k": seqlen,
            "head_dim": head_dim,
            "head_dim_v": head_dim,
            "causal": bool(causal),
        }
        contenders = ready(case, arguments)
        times = time_all(contenders, arguments)
        records = [record(case, name, times[name], arguments) for name in contenders]
        cells = "  ".join(f"{r['engine']} {1e3 * r['tflops']:.1f}" for r in records)
        print(f"{direction} d{head_dim} causal {causal} s{seqlen} GFLOP/s: {cells}", flush=True)
        if arguments.json:
            with arguments.json.open("a") as lines:
                lines.writelines(json.dumps(one) + "\n" for one in records)
    return 0


def ready(case, arguments):
    """name -> a call without arguments, for every contender that runs the case and agrees."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    shape = case["batch"], case["seqlen_q"], case["heads"], case["head_dim"]
    dtype = getattr(torch, DTYPES[arguments.dtype])
    q, k, v, do = (torch.randn(shape, device=arguments.device).to(dtype) for _ in range(4))
    backward = case["pass"] == "bwd"
    leaves = [a.requires_grad_(backward) for a in (q, k, v)]

    def contender(forward):
        out = forward()
        if not backward:
            return forward, out
        gradient = lambda: torch.autograd.grad(out, leaves, do, retain_graph=True)  # noqa: E731
        return gradient, gradient()[0]

    def sdpa(backend):
        swapped = [a.transpose(1, 2) for a in leaves]

        def forward():
            with sdpa_kernel(backend):
                out = scaled_dot_product_attention(*swapped, is_causal=case["causal"])
            return out.transpose(1, 2)

        return forward

    on_gpu = arguments.device == "cuda"
    candidates = {
        "fa3": lambda: fa3.attention(*leaves, causal=case["causal"], num_threads=arguments.threads),
        "sdpa flash" if on_gpu else "sdpa flash cpu": sdpa(SDPBackend.FLASH_ATTENTION),
        "sdpa math": sdpa(SDPBackend.MATH),
    }
    if on_gpu:
        candidates["sdpa cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION)
    found, first = {}, None
    for name, forward in candidates.items():
        try:
            call, result = contender(forward)
        except (fa3.Unsupported, RuntimeError) as error:
            print(f"  left out: {name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        first = result if first is None else first
        off = (result - first).abs().max().item()
        if off > TOLERANCE[arguments.dtype]:
            print(f"  left out: {name} differs by {off:.1e}", file=sys.stderr)
        else:
            found[name] = call
    return found


def time_all(contenders, arguments):
    """name -> seconds of one call, a list over the rounds."""
    import torch

    on_gpu = arguments.device == "cuda"
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda") if on_gpu else None
    times = {name: [] for name in contenders}
    for index in range(arguments.rounds + 1):
        order = list(contenders) if index % 2 else list(contenders)[::-1]
        for name in order:
            elapsed = time_once(contenders[name], flush)
            if index > 0:  # the first round warms up
                times[name].append(elapsed)
    return times


def time_once(call, flush):
    if flush is None:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    import torch

    flush.zero_()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def record(case, name, times, arguments):
    median = statistics.median(times)
    pairs = case["batch"] * case["heads"] * case["seqlen_q"] * case["seqlen_k"]
    flops = 4 * pairs * case["head_dim"] * (2.5 if case["pass"] == "bwd" else 1)
    return {
        "engine": name,
        **case,
        "median_ms": 1e3 * median,
        "min_ms": 1e3 * min(times),
        "max_ms": 1e3 * max(times),
        "repeats": len(times),
        "tflops": (flops / 2 if case["causal"] else flops) / median / 1e12,
        "machine": machine(arguments.device),
        "threads": arguments.threads if arguments.device == "cpu" else None,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "version": fa3.__version__,
    }


def machine(device):
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())

# SPDX-License-Identifier: Apache-2.0
"""Times fa3.jax.attention beside jax.nn.dot_product_attention in one process, on the same arrays.

    python3 benchmarks/jax_attention.py --device cuda --tokens 16384 --hidden 2048 --json x.jsonl
    python3 benchmarks/jax_attention.py --device cuda --pass bwd --tokens 16384 --hidden 2048
    python3 benchmarks/jax_attention.py --device cpu --dtype fp32 --seqlen 1024

Rivals: on CUDA JAX's call of cuDNN ("jax-cudnn") and, where Python finds it, tokamax's Mosaic GPU
kernel with the configuration that it takes of itself ("tokamax"); on the CPU, or with --standard,
what XLA makes of the formula ("jax-xla"). Cases, FLOPs, rows and the comparison of results are
those of rivals.py, the order of rounds that of harness.py. A timing is the host's, of calls that
are queued one behind the other until they take --queued milliseconds, from the first to the result
of the last: XLA's streams are its own. The L2 cache is left as the call before left it. A backward
is the pull-back of jax.vjp alone, compiled, with what the forward saved as its operands.
"""

import os
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch has a part of the memory

import jax
import jax.numpy as jnp
import numpy as np
from contenders import Case
from harness import gpu_state, numbers, parser_of, progress, time_all, write_rows
from rivals import record, refusal

import fa3.jax

DTYPES = {"fp32": jnp.float32, "fp16": jnp.float16, "bf16": jnp.bfloat16}


class Contender:
    """attend(q, k, v) -> out as a compiled program, or its pull-back."""

    def __init__(self, name: str, kernel: str, attend, case: Case, arrays: list):
        self.name = self.engine = name
        self.kernel = kernel
        *qkv, d_o = arrays
        if case.backward:
            _, pull_back = jax.vjp(jax.jit(attend), *qkv)
            program = jax.jit(lambda pull_back, d_o: pull_back(d_o))
            self.call = lambda: program(pull_back, d_o)
        else:
            program = jax.jit(lambda *qkv: (attend(*qkv),))
            self.call = lambda: program(*qkv)

    def __call__(self):
        return self.call()


def arrays_of(case: Case) -> list:
    """Q, K, V and dO: (b, s, h, d), normal random."""
    keys = jax.random.split(jax.random.key(0), 4)
    heads = (case.heads, case.kv_heads, case.kv_heads, case.heads)
    shapes = [(case.batch, case.seqlen, h, case.head_dim) for h in heads]
    return [
        jax.random.normal(key, shape, DTYPES[case.dtype])
        for key, shape in zip(keys, shapes, strict=True)
    ]


def contenders(case: Case, arrays: list, arguments) -> tuple[list, dict]:
    """Everything that can run the case, and why the rest cannot: sentences by name."""

    def rival(implementation, attend=jax.nn.dot_product_attention):
        return lambda q, k, v: attend(q, k, v, is_causal=case.causal, implementation=implementation)

    kernels = {}
    attends = {"fa3": lambda q, k, v: fa3.jax.attention(q, k, v, causal=case.causal)}
    if case.device == "cuda":
        attends["jax-cudnn"] = rival("cudnn")
        if find_spec("tokamax"):
            import tokamax

            attends["tokamax"] = rival("mosaic", tokamax.dot_product_attention)
            kernels["tokamax"] = f"tokamax {version('tokamax')} Mosaic GPU"
    if case.device == "cpu" or arguments.standard:
        attends["jax-xla"] = rival("xla")
    ready, left_out, truth = [], {}, None
    for name, attend in attends.items():
        try:
            kernel = kernels.get(name, f"JAX {jax.__version__}")
            contender = Contender(name, kernel, attend, case, arrays)
            output = np.concatenate([np.asarray(x, np.float32).ravel() for x in contender()])
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            left_out[name] = str(error).splitlines()[0]
            continue
        truth = output if truth is None else truth
        error = np.linalg.norm(output - truth) / np.linalg.norm(truth)
        if error < 0.02:
            ready.append(contender)
        else:
            left_out[name] = f"differs from {ready[0].name} by {error:.1e}"
    for name, sentence in left_out.items():
        print(f"  left out: {name}: {sentence}", file=sys.stderr)
    return ready, left_out


def time_queued(contender, device: str, queued_ms: float) -> tuple[float, dict]:
    """Milliseconds of a call, and the GPU's state under it."""

    def milliseconds(calls):
        start = time.perf_counter()
        for _ in range(calls):
            result = contender()
        state = gpu_state() if device == "cuda" else {}
        jax.block_until_ready(result)
        return 1e3 * (time.perf_counter() - start) / calls, state

    alone, _ = milliseconds(1)
    return milliseconds(max(1, round(queued_ms / alone)))


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--pass", dest="direction", choices=("fwd", "bwd"), default="fwd")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--head-dim", type=numbers, default=[128], metavar="LIST")
    parser.add_argument("--seqlen", type=numbers, default=[4096, 8192, 16384], metavar="LIST")
    parser.add_argument("--causal", type=numbers, default=[0, 1], metavar="LIST")
    parser.add_argument("--tokens", type=int, help="batch = tokens / seqlen; without it 1")
    parser.add_argument("--hidden", type=int, help="heads = hidden / head dim; without it --heads")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, help="default: heads")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--queued", type=float, default=30, metavar="MS")
    parser.add_argument("--standard", action="store_true", help="attention that stores its scores")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    parser.set_defaults(layout="bshd", q_scale=1.0, threads=os.cpu_count())
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    jax.config.update("jax_default_device", jax.devices(arguments.device)[0])
    grid = [getattr(arguments, x) for x in "head_dim causal seqlen".split()]
    for head_dim, causal, seqlen in progress(list(product(*grid))):
        heads = arguments.hidden // head_dim if arguments.hidden else arguments.heads
        case = Case(
            batch=max(1, arguments.tokens // seqlen) if arguments.tokens else 1,
            seqlen=seqlen,
            heads=heads,
            kv_heads=arguments.kv_heads or heads,
            head_dim=head_dim,
            causal=bool(causal),
            dtype=arguments.dtype,
            device=arguments.device,
            backward=arguments.direction == "bwd",
        )
        ready, left_out = contenders(case, arrays_of(case), arguments)

        def time_one(contender, device, _):
            return time_queued(contender, device, arguments.queued)

        timings = time_all(ready, case.device, arguments.rounds, time_one)
        rows = [record(case, one, timings[one.name], arguments) for one in ready]
        cells = "  ".join(f"{row['engine']} {1e3 * row['tflops']:.1f}" for row in rows)
        print(f"d{head_dim} causal {causal} s{seqlen} b{case.batch} GFLOP/s: {cells}", flush=True)
        rows += [refusal(case, *of, arguments) for of in left_out.items()]
        write_rows(arguments.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Times fa3 beside its rivals in one process, on the same tensors, and writes JSON lines.

    python3 benchmarks/rivals.py --device cpu --dtype fp32 --threads 2 --json docs/results/x.jsonl
    python3 benchmarks/rivals.py --device cuda --dtype bf16 --tokens 16384 --hidden 2048
    python3 benchmarks/rivals.py --pass bwd --threads 2

Rivals: the backends of torch.nn.functional.scaled_dot_product_attention (CPU: its flash kernel;
CUDA: cudnn and fa2), and any library given by --rival LIB.so: another build of fa3, or one that has
this C entry:

    struct { int64_t struct_size, batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, head_dim_v;
             int32_t dtype /* fa3_dtype */, causal; float scale; int32_t reserved;
             const void *q, *k, *v; void *o; float* lse; void* workspace; };   (b, s, h, d) tensors
    const char* rival_name(void);
    int64_t rival_workspace(const struct*);                                    bytes on the device
    int rival_forward(const struct*, void* stream);                            0 = done or queued
    int64_t rival_backward_workspace(int64_t batch, seqlen, heads, head_dim);
    int rival_backward(int64_t batch, seqlen, heads, head_dim, int causal, const void *q, *k, *v,
                       const void* o, const float* lse, const void* d_o, void *dq, *dk, *dv,
                       *workspace, int deterministic, void* stream);

Method: normal random inputs (--q-scale 4: peaked softmax, 0.02: flat); every round times each
contender once, in an order that reverses from round to round, so that heat and clocks fall on all
alike; on CUDA the L2 cache is flushed before each timing; the median over the rounds counts. FLOPs:
2 (d + dv) b h sq sk, half if causal, 2.5 times as many backward. --deterministic: backward passes
that add to dQ in one order, of fa3 and of the libraries.
Each contender's output is compared with the first one's; a wrong result gets no time.
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))
import c_abi  # noqa: E402  (the C header in ctypes)

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FA3_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
FLUSH_BYTES = 256 << 20  # several times the L2 cache of an H200
WORKSPACE_ALIGNMENT = 256


@dataclass(frozen=True)
class Case:
    """One cell: a pass over (batch, seqlen, heads, head_dim) tensors."""

    batch: int
    seqlen: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    dtype: str
    device: str
    backward: bool = False
    deterministic: bool = False

    def flops(self) -> float:
        full = 4.0 * self.batch * self.heads * self.seqlen**2 * self.head_dim
        return full * (0.5 if self.causal else 1) * (2.5 if self.backward else 1)


class Tensors:
    """Q, K, V, dO of a case, (b, s, h, d) whatever the order in memory, normal random, Q scaled."""

    def __init__(self, case: Case, layout: str, q_scale: float = 1.0):
        torch.manual_seed(0)

        def normal(heads):
            shape = (case.batch, case.seqlen, heads, case.head_dim)
            values = torch.randn(shape, device=case.device).to(DTYPES[case.dtype])
            if layout == "bshd":
                return values
            return values.transpose(1, 2).contiguous().transpose(1, 2)

        self.q, self.k, self.v = normal(case.heads), normal(case.kv_heads), normal(case.kv_heads)
        self.q *= q_scale
        self.d_o = normal(case.heads) if case.backward else None


class Fa3:
    """The library under test, or another build of fa3 at `path`, through its C ABI."""

    def __init__(self, case: Case, tensors: Tensors, threads: int, path: str | None = None):
        self.name = f"fa3:{Path(path).stem}" if path else "fa3"
        self.library = c_abi.library(path)
        self.o = torch.empty_like(tensors.q)
        self.outputs = (self.o,)
        lse_shape = (case.batch, case.heads, case.seqlen)
        self.lse = torch.empty(lse_shape, device=case.device, dtype=torch.float32)
        fields = {name: self.view(getattr(tensors, name), case.dtype) for name in "qkv"}
        fields |= {"o": self.view(self.o, case.dtype), "lse": self.view(self.lse, "fp32")}
        options = {"causal": int(case.causal), "num_threads": threads}
        self.params = c_abi.params_for(c_abi.ForwardParams, options, {})
        for name, view in fields.items():
            setattr(self.params, name, view)
        self.kernel = self.plan_line("kernel")
        self.engine = self.plan_line("engine") + self.name.removeprefix("fa3")
        self.prepare("fa3_forward", case.device)
        if case.backward:
            self()
            grads = {"d" + name: torch.empty_like(getattr(tensors, name)) for name in "qkv"}
            self.outputs = tuple(grads.values())
            fields |= {name: self.view(x, case.dtype) for name, x in grads.items()}
            fields["d_o"] = self.view(tensors.d_o, case.dtype)
            options["deterministic"] = int(case.deterministic)
            self.params = c_abi.params_for(c_abi.BackwardParams, options, {})
            for name, view in fields.items():
                setattr(self.params, name, view)
            self.prepare("fa3_backward", case.device)

    def prepare(self, function: str, device: str):
        """Sets up calls of fa3_forward or fa3_backward with self.params."""
        size = ctypes.c_size_t()
        by_reference = ctypes.byref(self.params)
        size_of = getattr(self.library, function + "_workspace_size")
        self.check(size_of(by_reference, ctypes.byref(size)))
        self.workspace = torch.empty(
            size.value + WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=device
        )
        offset = -self.workspace.data_ptr() % WORKSPACE_ALIGNMENT
        self.function = getattr(self.library, function)
        self.arguments = (
            by_reference,
            ctypes.c_void_p(self.workspace.data_ptr() + offset),
            ctypes.c_size_t(size.value),
            ctypes.c_void_p(stream_of(device)),
        )

    @staticmethod
    def view(tensor, dtype):
        view = c_abi.Tensor()
        view.data, view.rank = tensor.data_ptr(), tensor.dim()
        view.dtype = c_abi.DTYPES[FA3_DTYPES[dtype]]
        view.device_type = c_abi.CUDA if tensor.is_cuda else c_abi.CPU
        view.device_index = tensor.device.index or 0
        view.shape[: tensor.dim()] = tensor.shape
        view.stride[: tensor.dim()] = tensor.stride()
        return view

    def plan_line(self, key):
        text, capacity = ctypes.create_string_buffer(4096), ctypes.c_size_t(4096)
        plan_text = self.library.fa3_forward_plan_text
        self.check(plan_text(ctypes.byref(self.params), text, capacity, None))
        lines = text.value.decode().splitlines()
        return next(line.split(" ", 1)[1] for line in lines if line.startswith(key + " "))

    def check(self, status):
        c_abi.check(status, self.library)

    def __call__(self):
        self.check(self.function(*self.arguments))
        return self.outputs


class Sdpa:
    """One backend of torch's scaled_dot_product_attention."""

    def __init__(self, name: str, backend: SDPBackend, case: Case, tensors: Tensors):
        self.name = self.engine = name
        self.kernel = f"torch {torch.__version__} SDPA {backend.name}"
        self.backend = backend
        self.inputs = [x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v)]
        self.options = {"is_causal": case.causal, "enable_gqa": case.kv_heads != case.heads}
        # With gradients on, as in training: the backends then write the LSE, as fa3 does.
        if case.device == "cuda" or case.backward:
            self.inputs = [x.requires_grad_() for x in self.inputs]
        if case.backward:
            self.o, self.d_o = self.forward(), tensors.d_o.transpose(1, 2)

    def forward(self):
        with sdpa_kernel(self.backend):
            return scaled_dot_product_attention(*self.inputs, **self.options)

    def backward(self):
        return torch.autograd.grad(self.o, self.inputs, self.d_o, retain_graph=True)

    def __call__(self):
        outputs = self.backward() if hasattr(self, "d_o") else (self.forward(),)
        return tuple(x.transpose(1, 2) for x in outputs)


class RivalProblem(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                "struct_size batch seqlen_q seqlen_k heads_q heads_k head_dim head_dim_v".split()
            )
        ),
        ("dtype", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("reserved", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in "q k v o lse workspace".split()),
    ]


class RivalLibrary:
    """A library with the C entry of this file's docstring."""

    def __init__(self, path: str, case: Case, tensors: Tensors):
        if not tensors.q.is_contiguous():
            raise RuntimeError(f"{path}: rivals take --layout bshd only")
        self.library = ctypes.CDLL(path)
        self.library.rival_name.restype = ctypes.c_char_p
        self.library.rival_workspace.restype = ctypes.c_int64
        self.name = self.engine = self.library.rival_name().decode()
        self.kernel = Path(path).name
        self.o = torch.empty_like(tensors.q)
        self.lse = torch.empty((case.batch, case.heads, case.seqlen), device=case.device)
        self.problem = RivalProblem(
            struct_size=ctypes.sizeof(RivalProblem), batch=case.batch, seqlen_q=case.seqlen,
            seqlen_k=case.seqlen, heads_q=case.heads, heads_k=case.kv_heads,
            head_dim=case.head_dim, head_dim_v=case.head_dim,
            dtype=c_abi.DTYPES[FA3_DTYPES[case.dtype]], causal=int(case.causal),
            scale=case.head_dim**-0.5, q=tensors.q.data_ptr(), k=tensors.k.data_ptr(),
            v=tensors.v.data_ptr(), o=self.o.data_ptr(), lse=self.lse.data_ptr(),
        )  # fmt: skip
        size = self.library.rival_workspace(ctypes.byref(self.problem))
        self.workspace = torch.empty(max(size, 1), dtype=torch.uint8, device=case.device)
        self.problem.workspace = self.workspace.data_ptr()
        self.stream = ctypes.c_void_p(stream_of(case.device))
        self.outputs = (self.o,)
        self.call = lambda: self.library.rival_forward(ctypes.byref(self.problem), self.stream)
        if case.backward:
            self()
            self.prepare_backward(case, tensors)

    def prepare_backward(self, case: Case, tensors: Tensors):
        if case.heads != case.kv_heads:
            raise RuntimeError(f"{self.name}: the backward entry has no grouped heads")
        sizes = [ctypes.c_int64(x) for x in (case.batch, case.seqlen, case.heads, case.head_dim)]
        workspace_size = self.library.rival_backward_workspace
        workspace_size.restype = ctypes.c_int64
        scratch = torch.empty(workspace_size(*sizes), dtype=torch.uint8, device=case.device)
        self.outputs = tuple(torch.empty_like(x) for x in (tensors.q, tensors.k, tensors.v))
        given = (tensors.q, tensors.k, tensors.v, self.o, self.lse, tensors.d_o)
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (*given, *self.outputs, scratch)]
        self.kept = scratch
        self.call = lambda: self.library.rival_backward(
            *sizes, int(case.causal), *pointers, int(case.deterministic), self.stream
        )

    def __call__(self):
        if self.call() != 0:
            raise RuntimeError(f"{self.name} refused the case")
        return self.outputs


def stream_of(device: str) -> int:
    return torch.cuda.current_stream().cuda_stream if device == "cuda" else 0


def rival(path: str, case: Case, tensors: Tensors, arguments):
    """A library with the C entry of this file's docstring, or another build of fa3."""
    if hasattr(ctypes.CDLL(path), "rival_forward"):
        return RivalLibrary(path, case, tensors)
    return Fa3(case, tensors, arguments.threads, path)


def contenders(case: Case, tensors: Tensors, arguments) -> list:
    """Everything that can run the case; says why for what cannot."""
    makers = [lambda: Fa3(case, tensors, arguments.threads)]
    if case.deterministic:
        pass  # torch's backends promise no order
    elif case.device == "cuda":
        makers.append(lambda: Sdpa("cudnn", SDPBackend.CUDNN_ATTENTION, case, tensors))
        makers.append(lambda: Sdpa("fa2", SDPBackend.FLASH_ATTENTION, case, tensors))
    else:
        makers.append(lambda: Sdpa("torch-cpu", SDPBackend.FLASH_ATTENTION, case, tensors))
    makers += [lambda path=path: rival(path, case, tensors, arguments) for path in arguments.rival]
    ready, truth = [], None
    for make in makers:
        try:
            contender = make()
            output = torch.cat([x.float().flatten() for x in contender()])
        except (RuntimeError, c_abi.CallFailed) as error:
            print(f"  left out: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        truth = output if truth is None else truth
        error = ((output - truth).norm() / truth.norm()).item()
        if not error < 0.02:
            print(f"  left out: {contender.name} differs by {error:.1e}", file=sys.stderr)
            continue
        ready.append(contender)
    return ready


def time_once(contender, device: str, flush) -> float:
    """Milliseconds of one call."""
    if device == "cpu":
        start = time.perf_counter()
        contender()
        return 1e3 * (time.perf_counter() - start)
    flush.zero_()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    contender()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def time_all(ready: list, device: str, rounds: int) -> dict:
    """Median milliseconds by contender, rounds interleaved in alternating order."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device) if device == "cuda" else None
    times = {contender.name: [] for contender in ready}
    for index in range(rounds + 1):
        for contender in ready if index % 2 else reversed(ready):
            elapsed = time_once(contender, device, flush)
            if index > 0:  # the first round warms up
                times[contender.name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def gpu_state() -> dict:
    query = "--query-gpu=clocks.sm,power.draw,temperature.gpu"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "--id=0"]
    try:
        clock, watts, celsius = subprocess.check_output(command, text=True).split(",")
    except (OSError, subprocess.CalledProcessError, ValueError):
        return {}
    return {"sm_clock_mhz": float(clock), "watts": float(watts), "celsius": float(celsius)}


def machine_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def commit() -> str:
    """FA3_COMMIT, or what git says; 'unknown' where the tree has no history."""
    if "FA3_COMMIT" in os.environ:
        return os.environ["FA3_COMMIT"]
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def record(case: Case, contender, median_ms: float, arguments) -> dict:
    return {
        "engine": contender.engine,
        "kernel": contender.kernel,
        "pass": "bwd" if case.backward else "fwd",
        "dtype": case.dtype,
        "batch": case.batch,
        "heads": case.heads,
        "kv_heads": case.kv_heads,
        "seqlen_q": case.seqlen,
        "seqlen_k": case.seqlen,
        "head_dim": case.head_dim,
        "head_dim_v": case.head_dim,
        "causal": case.causal,
        "median_ms": median_ms,
        "tflops": case.flops() / median_ms / 1e9,
        "variant": "deterministic" if case.deterministic else "default",
        "layout": arguments.layout,
        "q_scale": arguments.q_scale,
        "machine": machine_name(case.device),
        "threads": arguments.threads if case.device == "cpu" else None,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        **(gpu_state() if case.device == "cuda" else {}),
    }


def parse_arguments():
    def numbers(text):
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pass", dest="direction", choices=("fwd", "bwd"), default="fwd")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128], metavar="LIST")
    parser.add_argument("--seqlen", type=numbers, default=[4096], metavar="LIST")
    parser.add_argument("--causal", type=numbers, default=[0, 1], metavar="LIST")
    parser.add_argument("--tokens", type=int, help="batch = tokens / seqlen; without it --batch")
    parser.add_argument("--hidden", type=int, help="heads = hidden / head dim; without it --heads")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, help="default: heads")
    parser.add_argument("--deterministic", action="store_true", help="the backward's variant")
    parser.add_argument(
        "--layout", choices=("bshd", "bhsd"), default="bshd", help="order of Q, K, V in memory"
    )
    parser.add_argument(
        "--q-scale", type=float, default=1.0, help="multiplies Q: 4 peaked, 0.02 flat"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rival", action="append", default=[], metavar="LIB.so")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    grid = product(arguments.head_dim, arguments.causal, arguments.seqlen)
    for head_dim, causal, seqlen in grid:
        heads = arguments.hidden // head_dim if arguments.hidden else arguments.heads
        case = Case(
            batch=max(1, arguments.tokens // seqlen) if arguments.tokens else arguments.batch,
            seqlen=seqlen,
            heads=heads,
            kv_heads=arguments.kv_heads or heads,
            head_dim=head_dim,
            causal=bool(causal),
            dtype=arguments.dtype,
            device=arguments.device,
            backward=arguments.direction == "bwd",
            deterministic=arguments.deterministic,
        )
        tensors = Tensors(case, arguments.layout, arguments.q_scale)
        ready = contenders(case, tensors, arguments)
        medians = time_all(ready, case.device, arguments.rounds)
        records = [record(case, one, medians[one.name], arguments) for one in ready]
        cells = "  ".join(f"{r['engine']} {1e3 * r['tflops']:.1f}" for r in records)
        print(f"d{head_dim} causal {causal} s{seqlen} GFLOP/s: {cells}", flush=True)
        if arguments.json:
            with arguments.json.open("a") as lines:
                lines.writelines(json.dumps(one) + "\n" for one in records)
    return 0


if __name__ == "__main__":
    sys.exit(main())

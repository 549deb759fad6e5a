# SPDX-License-Identifier: Apache-2.0
"""Who is timed on a case: fa3, and its rivals, on the same tensors.

Rivals: the backends of torch.nn.functional.scaled_dot_product_attention (CPU: its flash kernel;
CUDA: cudnn and fa2), FlashAttention-4 where Python finds its flash_attn.cute (engine fa4-sm90),
with --standard textbook attention, which stores its scores, with --triton what torch.compile makes
of FlexAttention, and any library given by --rival LIB.so: another build of fa3, or one that has
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
"""

import ctypes
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import dropout, scaled_dot_product_attention

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))
import c_abi  # noqa: E402  (the C header in ctypes)

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TENSORS = {"e4m3": "bf16"}  # what the tensors are before anything is quantized
DTYPES |= {small: DTYPES[wide] for small, wide in TENSORS.items()}
FA3_DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3",
    "int32": "int32",
}
WORKSPACE_ALIGNMENT = 256


@dataclass(frozen=True)
class Case:
    """One cell: a pass over (batch, seqlen, heads, head_dim) tensors, or other lengths of keys."""

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
    seqlen_k: int | None = None
    dropout: float = 0.0

    @property
    def keys(self) -> int:
        return self.seqlen_k or self.seqlen

    def flops(self) -> float:
        full = 4.0 * self.batch * self.heads * self.seqlen * self.keys * self.head_dim
        return full * (0.5 if self.causal else 1) * (2.5 if self.backward else 1)

    def bytes(self) -> int:
        """Of Q, K, V and O, each once: the least that a forward moves."""
        rows = 2 * self.heads * self.seqlen + 2 * self.kv_heads * self.keys
        return self.batch * rows * self.head_dim * DTYPES[self.dtype].itemsize


class Tensors:
    """Q, K, V, dO of a case, (b, s, h, d) whatever the order in memory, normal random, Q scaled."""

    def __init__(self, case: Case, layout: str, q_scale: float = 1.0):
        torch.manual_seed(0)

        def normal(heads, rows):
            shape = (case.batch, rows, heads, case.head_dim)
            values = torch.randn(shape, device=case.device).to(DTYPES[case.dtype])
            if layout == "bshd":
                return values
            return values.transpose(1, 2).contiguous().transpose(1, 2)

        self.q = normal(case.heads, case.seqlen) * q_scale
        self.k, self.v = (normal(case.kv_heads, case.keys) for _ in range(2))
        self.d_o = normal(case.heads, case.seqlen) if case.backward else None


def words_of_plan(text: str) -> dict:
    return dict(line.split(" ", 1) for line in text.splitlines())


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
        if case.dropout:
            options["dropout_p"] = case.dropout
        self.params = c_abi.params_for(c_abi.ForwardParams, options, {})
        for name, view in fields.items():
            setattr(self.params, name, view)
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
        plan = self.plan(function)
        self.kernel = plan["kernel"]
        self.engine = plan["engine"] + self.name.removeprefix("fa3")
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

    def plan(self, function: str) -> dict:
        text, capacity = ctypes.create_string_buffer(4096), ctypes.c_size_t(4096)
        plan_text = getattr(self.library, function + "_plan_text")
        self.check(plan_text(ctypes.byref(self.params), text, capacity, None))
        return words_of_plan(text.value.decode())

    def check(self, status):
        c_abi.check(status, self.library)

    def __call__(self):
        self.check(self.function(*self.arguments))
        return self.outputs


class Fa3Cache(Fa3):
    """Another build of fa3 on a cache of decoding.py, causal, with lengths on the device."""

    def __init__(self, cache, path: str):
        self.name, self.library = f"fa3:{Path(path).stem}", c_abi.library(path)
        batch, queries, heads, _ = cache.q.shape
        self.o = torch.empty_like(cache.q)
        self.lse = torch.empty((batch, heads, queries), device="cuda", dtype=torch.float32)
        self.outputs = (self.o,)
        self.params = c_abi.params_for(c_abi.ForwardParams, {"causal": 1}, {})
        stored = "e4m3" if cache.k.dtype.itemsize == 1 else "bf16"
        for name, dtype in {"q": "bf16", "k": stored, "v": stored}.items():
            setattr(self.params, name, self.view(getattr(cache, name), dtype))
        self.params.o, self.params.lse = self.view(self.o, "bf16"), self.view(self.lse, "fp32")
        if cache.table is not None:
            self.params.page_table = self.view(cache.table, "int32")
        self.params.options.seqused_k = self.view(cache.used, "int32")
        self.prepare("fa3_forward", "cuda")

    def __call__(self):
        stream = ctypes.c_void_p(stream_of("cuda"))  # that of a capture, too
        self.check(self.function(*self.arguments[:3], stream))
        return self.outputs


class Fa3Float8:
    """fa3 on e4m3 numbers with block scales, and a Hadamard matrix in Q and K as in the paper;
    quantized before the clock runs. centred: without the means of K and V, which come back."""

    dtype = "e4m3"

    def __init__(self, case: Case, tensors: Tensors, threads: int, name: str):
        import fa3

        self.name = name
        q = fa3.quantize(tensors.q, hadamard=True, num_threads=threads)
        with_mean = {"center": name.endswith("centred"), "num_threads": threads}
        k = fa3.quantize(tensors.k, hadamard=True, **with_mean)
        v = fa3.quantize(tensors.v, **with_mean)
        options = {"q_descale": q.descale, "k_descale": k.descale, "v_descale": v.descale}
        options |= {"k_mean": k.mean, "v_mean": v.mean}
        options |= {"causal": case.causal, "num_threads": threads}
        self.call = lambda: (fa3.attention(q.x, k.x, v.x, **options),)
        plan = words_of_plan(fa3.plan(q.x, k.x, v.x, **options))
        self.engine, self.kernel = plan["engine"] + name.removeprefix("fa3"), plan["kernel"]

    def __call__(self):
        return self.call()


def keys_after(seqlen: int, keys: int, device):
    """(query, key): whether a causal mask hides it."""
    return torch.ones(seqlen, keys, dtype=torch.bool, device=device).triu_(1 + keys - seqlen)


def attend_standard(q, k, v, hidden=None, dropout_p=0.0):
    """Textbook attention on (b, s, h, d) tensors: S and P are stored, in the type of Q."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if q.shape[1] > k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if hidden is not None:
        scores = scores.masked_fill_(hidden, float("-inf"))
    return (dropout(scores.softmax(-1), dropout_p) @ v).transpose(1, 2)


class Standard:
    """The same as a contender; the mask is made before the clock runs."""

    name = engine = "standard"

    def __init__(self, case: Case, tensors: Tensors):
        self.kernel = f"torch {torch.__version__}, scores stored"
        self.inputs = [tensors.q, tensors.k, tensors.v]
        self.hidden = keys_after(case.seqlen, case.keys, case.device) if case.causal else None
        if case.backward:
            self.inputs = [x.detach().requires_grad_() for x in self.inputs]
            self.o, self.d_o = self.forward(), tensors.d_o

    def forward(self):
        return attend_standard(*self.inputs, self.hidden)

    def __call__(self):
        if hasattr(self, "d_o"):
            return torch.autograd.grad(self.o, self.inputs, self.d_o, retain_graph=True)
        with torch.no_grad():
            return (self.forward(),)


class Sdpa:
    """One backend of torch's scaled_dot_product_attention."""

    def __init__(self, name: str, backend: SDPBackend, case: Case, tensors: Tensors):
        self.name = self.engine = name
        self.kernel = f"torch {torch.__version__} SDPA {backend.name}"
        self.backend = backend
        self.inputs = [x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v)]
        self.options = {
            "is_causal": case.causal,
            "enable_gqa": case.kv_heads != case.heads,
            "dropout_p": case.dropout,
        }
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


class Triton:
    """torch's FlexAttention, which torch.compile turns into a Triton kernel of each shape."""

    name = engine = "triton"

    def __init__(self, case: Case, tensors: Tensors):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if find_spec("triton") is None:
            raise RuntimeError("torch finds no Triton to compile FlexAttention with")
        self.kernel = f"torch {torch.__version__} FlexAttention, compiled"
        inputs = [x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v)]
        options = {"enable_gqa": case.heads != case.kv_heads}
        if case.causal:
            options["block_mask"] = create_block_mask(
                lambda b, h, q, k: q >= k, None, None, case.seqlen, case.keys, case.device
            )
        if case.backward:
            inputs = [x.detach().requires_grad_() for x in inputs]
        torch._dynamo.reset()  # which gives up after some shapes, and would not fuse
        compiled = torch.compile(flex_attention, dynamic=False)
        self.call = lambda: (compiled(*inputs, **options),)
        if case.backward:
            (o,), d_o = self.call(), tensors.d_o.transpose(1, 2)
            self.call = lambda: torch.autograd.grad(o, inputs, d_o, retain_graph=True)

    def __call__(self):
        return tuple(x.transpose(1, 2) for x in self.call())


class Fa4:
    """FlashAttention-4, compiled by the CuTe DSL for the GPU at its first call."""

    name = engine = "fa4-sm90"

    def __init__(self, case: Case, tensors: Tensors):
        from flash_attn.cute import interface

        self.kernel = f"CuTe DSL {version('nvidia-cutlass-dsl')}"
        inputs, mask = (tensors.q, tensors.k, tensors.v), {"causal": case.causal}
        o, lse = interface._flash_attn_fwd(*inputs, return_lse=True, **mask)[:2]
        if case.backward:
            given, options = (*inputs, o, tensors.d_o, lse), {"deterministic": case.deterministic}
            self.call = lambda: interface._flash_attn_bwd(*given, **mask, **options)[:3]
        else:
            outputs = {"out": o, "lse": lse, "return_lse": True}
            self.call = lambda: interface._flash_attn_fwd(*inputs, **mask, **outputs)[:1]

    def __call__(self):
        return self.call()


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
            seqlen_k=case.keys, heads_q=case.heads, heads_k=case.kv_heads,
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
        self.workspace = torch.empty(workspace_size(*sizes), dtype=torch.uint8, device=case.device)
        self.outputs = tuple(torch.empty_like(x) for x in (tensors.q, tensors.k, tensors.v))
        given = (tensors.q, tensors.k, tensors.v, self.o, self.lse, tensors.d_o)
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (*given, *self.outputs, self.workspace)]
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


def with_dropout(case: Case, tensors: Tensors, threads: int) -> tuple[list, dict]:
    """Those that drop weights, and fa3 without. Masks differ, so what they give is not compared."""
    backend = SDPBackend.FLASH_ATTENTION
    ready = [
        Fa3(case, tensors, threads),
        Fa3(replace(case, dropout=0.0), tensors, threads),
        Sdpa("fa2" if case.device == "cuda" else "torch-cpu", backend, case, tensors),
    ]
    ready[1].name += "-no-dropout"
    return ready, {}


def contenders(case: Case, tensors: Tensors, arguments) -> tuple[list, dict]:
    """Everything that can run the case, and why the rest cannot: sentences by name."""
    threads = arguments.threads
    plain = replace(case, dtype=TENSORS.get(case.dtype, case.dtype))
    if case.dropout:
        return with_dropout(plain, tensors, threads)
    makers = {"fa3": lambda: Fa3(plain, tensors, threads)}
    for small in ("fa3-e4m3", "fa3-e4m3-centred") if case.dtype == "e4m3" else ():
        makers[small] = lambda name=small: Fa3Float8(case, tensors, threads, name)
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
    if case.device == "cpu":
        backends = {"torch-cpu": SDPBackend.FLASH_ATTENTION}
    if not case.deterministic:  # torch's promise no order
        makers |= {x: lambda x=x: Sdpa(x, backends[x], plain, tensors) for x in backends}
    if case.device == "cuda" and find_spec("flash_attn") and find_spec("flash_attn.cute"):
        makers["fa4-sm90"] = lambda: Fa4(plain, tensors)
    if getattr(arguments, "standard", False):
        makers["standard"] = lambda: Standard(plain, tensors)
    if getattr(arguments, "triton", False):
        makers["triton"] = lambda: Triton(plain, tensors)
    for path in arguments.rival:
        makers[path] = lambda path=path: rival(path, plain, tensors, arguments)
    ready, left_out, truth = [], {}, None
    for name, make in makers.items():
        try:
            contender = make()
            output = torch.cat([x.float().flatten() for x in contender()])
        except (RuntimeError, OSError, c_abi.CallFailed) as error:
            left_out[name] = str(error).splitlines()[0]
            continue
        truth = output if truth is None else truth
        error = ((output - truth).norm() / truth.norm()).item()
        allowed = 0.1 if "e4m3" in name else 0.02
        if error < allowed:
            ready.append(contender)
        else:
            left_out[name] = f"differs from {ready[0].name if ready else name} by {error:.1e}"
    for name, sentence in left_out.items():
        print(f"  left out: {name}: {sentence}", file=sys.stderr)
    return ready, left_out

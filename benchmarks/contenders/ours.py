# SPDX-License-Identifier: Apache-2.0
"""fa3 as a contender: this build and others of it through the C ABI, e4m3 through Python."""

import ctypes
import sys
from pathlib import Path

import torch

from .case import Case, Tensors, stream_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))
import c_abi  # noqa: E402  (the C header in ctypes)

FA3_DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3",
    "int32": "int32",
}
WORKSPACE_ALIGNMENT = 256


def words_of_plan(text: str) -> dict:
    return dict(line.split(" ", 1) for line in text.splitlines())


class Fa3:
    """The library under test, or another build of fa3 at `path`, through its C ABI."""

    def __init__(self, case: Case, tensors: Tensors, threads: int, path: str | None = None):
        self.name = f"fa3:{Path(path).stem}" if path else "fa3"
        self.library = c_abi.library(path)
        self.o = tensors.q.new_empty(*tensors.q.shape[:3], case.value_dim)
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

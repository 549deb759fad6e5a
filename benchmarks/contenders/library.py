# SPDX-License-Identifier: Apache-2.0
"""A rival in a library that has this C entry:

struct { int64_t struct_size, batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, head_dim_v;
         int32_t dtype /* fa3_dtype */, causal; float scale; int32_t reserved;
         const void *q, *k, *v; void *o; float* lse; void* workspace; };   (b, s, h, d) tensors
const char* rival_name(void);
int64_t rival_workspace(const struct*);                                    bytes on the device
int rival_forward(const struct*, void* stream);                            0 = done or queued
int64_t rival_backward_workspace(const struct*);
int rival_backward(const struct*, const void* d_o, void *dq, *dk, *dv, int deterministic,
                   void* stream);                                          reads o and lse
"""

import ctypes
from dataclasses import replace
from pathlib import Path

import torch

from .case import Case, Tensors, stream_of
from .ours import FA3_DTYPES, Fa3, c_abi


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
        self.o = tensors.q.new_empty(*tensors.q.shape[:3], case.value_dim)
        self.lse = torch.empty((case.batch, case.heads, case.seqlen), device=case.device)
        self.problem = RivalProblem(
            struct_size=ctypes.sizeof(RivalProblem), batch=case.batch, seqlen_q=case.seqlen,
            seqlen_k=case.keys, heads_q=case.heads, heads_k=case.kv_heads,
            head_dim=case.head_dim, head_dim_v=case.value_dim,
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
            forward = Fa3(replace(case, backward=False), tensors, torch.get_num_threads())
            forward()  # a library may have the backward alone
            self.o, self.lse = forward.o, forward.lse
            self.prepare_backward(case, tensors)
        for x in self.outputs:  # what the library does not write must not pass for its result
            x.fill_(float("nan"))

    def prepare_backward(self, case: Case, tensors: Tensors):
        workspace_size = self.library.rival_backward_workspace
        workspace_size.restype = ctypes.c_int64
        problem = ctypes.byref(self.problem)
        size = workspace_size(problem)
        self.workspace = torch.empty(size, dtype=torch.uint8, device=case.device)
        self.problem.workspace = self.workspace.data_ptr()
        self.problem.o, self.problem.lse = self.o.data_ptr(), self.lse.data_ptr()
        self.outputs = tuple(torch.empty_like(x) for x in (tensors.q, tensors.k, tensors.v))
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (tensors.d_o, *self.outputs)]
        self.call = lambda: self.library.rival_backward(
            problem, *pointers, int(case.deterministic), self.stream
        )

    def __call__(self):
        if self.call() != 0:
            raise RuntimeError(f"{self.name} refused the case")
        return self.outputs

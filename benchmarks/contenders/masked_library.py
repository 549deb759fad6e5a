# SPDX-License-Identifier: Apache-2.0
"""A rival of masks.py in a library that has this C entry, of causal calls:

struct { int64_t struct_size, batch, seqlen, total, heads, kv_heads, head_dim;
         int32_t window /* keys to the left; -1: all */, packed, deterministic, reserved;
         const void *q, *k, *v; void* o; float* lse; const void* d_o; void *dq, *dk, *dv;
         const int32_t* starts; void* workspace; };      bf16, (b, s, h, d), or packed (total, h, d)
const char* rival_name(void);
int64_t rival_masked_workspace(const struct*);                             bytes on the device
int rival_masked_forward(const struct*, void* stream);                     0 = done or queued
int rival_masked_backward(const struct*, void* stream);                    another: refused
"""

import ctypes

import torch

from .case import stream_of


class MaskedProblem(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in "struct_size batch seqlen total heads kv_heads head_dim".split()
        ),
        *((name, ctypes.c_int32) for name in "window packed deterministic reserved".split()),
        *((name, ctypes.c_void_p) for name in "q k v o lse d_o dq dk dv starts workspace".split()),
    ]


class MaskedRival:
    """Called, it returns O, or dQ, dK and dV. out, lse: of the forward, for a backward."""

    def __init__(self, path, tensors, d_o, options, which, deterministic, out, lse):
        known = {"causal", "window", "batch_invariant", "cu_seqlens_q", "cu_seqlens_k"}
        if not options["causal"] or options.keys() - known - {"max_seqlen_q", "max_seqlen_k"}:
            raise RuntimeError(f"{path}: only causal masks, windows and packed sequences")
        q, k, _ = tensors
        starts = options.get("cu_seqlens_q")
        self.library = ctypes.CDLL(path)
        self.library.rival_name.restype = ctypes.c_char_p
        self.library.rival_masked_workspace.restype = ctypes.c_int64
        self.name = self.library.rival_name().decode()
        self.kept = [*tensors, d_o, out, lse, starts]
        # NaN: what the library does not write must not pass for its result.
        own = (q,) if which == "fwd" else tensors
        self.outputs = [torch.full_like(x, float("nan")) for x in own]
        if which == "fwd":
            out, lse, gradients = self.outputs[0], torch.empty_like(lse), []
        else:
            gradients = self.outputs
        self.kept.append(lse)
        names = "q k v d_o o lse dq dk dv".split()
        at = [x.data_ptr() for x in (*tensors, d_o, out, lse, *gradients)]
        self.problem = MaskedProblem(
            struct_size=ctypes.sizeof(MaskedProblem),
            batch=q.shape[0] if starts is None else len(starts) - 1,
            seqlen=q.shape[1] if starts is None else options["max_seqlen_q"],
            total=q.shape[:-2].numel(), heads=q.shape[-2], kv_heads=k.shape[-2],
            head_dim=q.shape[-1], window=options.get("window", (-1, 0))[0],
            packed=starts is not None, deterministic=deterministic,
            starts=0 if starts is None else starts.data_ptr(),
            **dict(zip(names, at, strict=False)),
        )  # fmt: skip
        size = self.library.rival_masked_workspace(ctypes.byref(self.problem))
        self.workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
        self.problem.workspace = self.workspace.data_ptr()
        entry = "rival_masked_forward" if which == "fwd" else "rival_masked_backward"
        self.function = getattr(self.library, entry)

    def __call__(self):
        stream = ctypes.c_void_p(stream_of("cuda"))  # that of a capture, too
        if self.function(ctypes.byref(self.problem), stream) != 0:
            raise RuntimeError(f"{self.name} has no kernel for the case")
        return self.outputs

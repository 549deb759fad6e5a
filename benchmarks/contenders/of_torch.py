# SPDX-License-Identifier: Apache-2.0
"""Rivals that torch brings or compiles: textbook attention, scaled_dot_product_attention,
FlexAttention; and FlashAttention-4."""

from importlib.metadata import version
from importlib.util import find_spec

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import dropout, scaled_dot_product_attention

from .case import Case, Tensors


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
    """Standard attention as a contender; the mask is made before the clock runs."""

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

# SPDX-License-Identifier: Apache-2.0
"""What is timed: a case, and its tensors."""

from dataclasses import dataclass

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TENSORS = {"e4m3": "bf16"}  # what the tensors are before anything is quantized
DTYPES |= {small: DTYPES[wide] for small, wide in TENSORS.items()}


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
    head_dim_v: int | None = None

    @property
    def keys(self) -> int:
        return self.seqlen_k or self.seqlen

    @property
    def value_dim(self) -> int:
        return self.head_dim_v or self.head_dim

    def flops(self) -> float:
        dims = self.head_dim + self.value_dim
        full = 2.0 * self.batch * self.heads * self.seqlen * self.keys * dims
        return full * (0.5 if self.causal else 1) * (2.5 if self.backward else 1)

    def bytes(self) -> int:
        """Bytes of Q, K, V and O, each once: the least that a forward moves."""
        rows = self.heads * self.seqlen + self.kv_heads * self.keys
        elements = self.batch * rows * (self.head_dim + self.value_dim)
        return elements * DTYPES[self.dtype].itemsize


class Tensors:
    """Q, K, V, dO of a case, (b, s, h, d) whatever the order in memory, normal random, Q scaled."""

    def __init__(self, case: Case, layout: str, q_scale: float = 1.0):
        torch.manual_seed(0)

        def normal(heads, rows, dim):
            shape = (case.batch, rows, heads, dim)
            values = torch.randn(shape, device=case.device).to(DTYPES[case.dtype])
            if layout == "bshd":
                return values
            return values.transpose(1, 2).contiguous().transpose(1, 2)

        dim, value_dim = case.head_dim, case.value_dim
        self.q = normal(case.heads, case.seqlen, dim) * q_scale
        self.k, self.v = (normal(case.kv_heads, case.keys, d) for d in (dim, value_dim))
        self.d_o = normal(case.heads, case.seqlen, value_dim) if case.backward else None


def stream_of(device: str) -> int:
    return torch.cuda.current_stream().cuda_stream if device == "cuda" else 0

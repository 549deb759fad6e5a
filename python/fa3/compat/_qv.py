# SPDX-License-Identifier: Apache-2.0
"""Calls with FlashAttention-3's qv: scores are scale * (q.k + qv.v), the absorbed form of MLA.

Such a call is attention of queries [qv | q] to keys [v | k] with the same v. MLA's callers keep v
and k side by side in the rows of one latent cache: then no key is copied.
"""

import torch

from fa3.errors import InvalidArgument
from fa3.torch.autograd import FLOAT8
from fa3.torch.operators import have_memory


def joined(q, k, v, qv):
    """(q, k, v) of the same call without qv. The default scale counts the dims of both. q and k may
    be None, beside qv alone: then scores are scale * qv.v.
    """
    if qv is None:
        return q, k, v
    if q is None:
        return qv, v, v
    expected = (*q.shape[:-1], v.shape[-1])
    if qv.shape != expected or qv.dtype != q.dtype:
        raise InvalidArgument(
            f"qv: expected {q.dtype} of shape {expected}, that of q with v's head dim, got "
            f"{qv.dtype} of shape {tuple(qv.shape)}"
        )
    if v.shape[:-1] != k.shape[:-1]:
        raise InvalidArgument(
            f"v: expected {tuple(k.shape[:-1])}, as k, before its head dim, got {tuple(v.shape)}"
        )
    if k.dtype != q.dtype or v.dtype != q.dtype or q.dtype in FLOAT8:
        raise InvalidArgument(
            f"k, v: expected 16 or 32 bits and q's type {q.dtype} with qv, got {k.dtype} and "
            f"{v.dtype}; FP8 caches: fa3.mla.attention"
        )
    keys = side_by_side(v, k)
    keys = torch.cat((v, k), -1) if keys is None else keys
    return torch.cat((qv, q), -1), keys, keys[..., : v.shape[-1]]


def side_by_side(v, k):
    """A view of rows [v | k] if k's rows lie behind v's in memory, else None."""
    # A trace would keep these strides for other tensors.
    is_traced = torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0
    if torch.compiler.is_compiling() or is_traced or not have_memory(v, k):
        return None
    if torch.is_grad_enabled() and (v.requires_grad or k.requires_grad):
        return None
    same_strides = v.stride() == k.stride() and v.stride(-1) == 1
    same_memory = v.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    if not same_strides or not same_memory:
        return None
    if k.storage_offset() != v.storage_offset() + v.shape[-1]:
        return None
    return v.as_strided((*v.shape[:-1], v.shape[-1] + k.shape[-1]), v.stride())

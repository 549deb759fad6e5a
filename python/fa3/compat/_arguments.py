# SPDX-License-Identifier: Apache-2.0
"""What both generations of flash_attn share: arguments that fa3 lacks, and their conventions."""

import torch

from fa3._arrays import in_int32
from fa3._options import window_ends
from fa3.errors import InvalidArgument, Unsupported
from fa3.torch.autograd import FLOAT8
from fa3.torch.operators import have_memory


def unsupported(**reasons):
    """reasons: name -> (given, off, why). Raises for the first argument that is not off."""
    for name, (given, off, why) in reasons.items():
        if given is not off and (isinstance(given, torch.Tensor) or given != off):
            raise Unsupported(f"{name}: expected {off}, got {described(given)}; {why}")


def described(value):
    if isinstance(value, list | tuple) and any(isinstance(x, torch.Tensor) for x in value):
        return f"a {type(value).__name__} of tensors"
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def length(value):
    """A maximal length may come as an int, a 0-d tensor, or None."""
    return 0 if value is None else int(value)


def options(
    softmax_scale,
    causal,
    window_size,
    softcap,
    deterministic=False,
    attention_chunk=0,
    sm_margin=0,
    dropout_p=0.0,
):
    """The options of fa3.attention from theirs.

    window_size: None, a side of None and everything below 0 are unbounded. softcap,
    attention_chunk: None and everything below 0 are off.
    """
    left, right = window_ends(window_size, "window_size")
    return {
        "scale": softmax_scale,
        "causal": causal,
        "window": (reach(left), reach(right)),
        "attention_chunk": max(int(attention_chunk or 0), 0),
        "softcap": max(float(softcap or 0), 0.0),
        "deterministic": deterministic,
        "sm_margin": int(sm_margin),
        "dropout_p": dropout_p,
    }


def reach(side):
    return -1 if side < 0 else int(side)


def int32(integers):
    """Lengths and tables of 64 bits, or with gaps in their rows, as the int32 that fa3 reads.

    Converted on their device, in stream order: no call waits for it. Numbers that do not fit stay
    wrong, and floats stay floats, which the library refuses.
    """
    if not isinstance(integers, torch.Tensor):
        return integers
    integers = in_int32(integers)
    return integers if integers.stride()[-1:] == (1,) else integers.contiguous()


def float32(numbers):
    return None if numbers is None else numbers.float()


def rows_of_stride_1(tensor):
    """A copy where the last dimension has another stride, as the originals make one."""
    return tensor if tensor is None or tensor.stride(-1) == 1 else tensor.contiguous()


def factors(q, k, v, q_descale, k_descale, v_descale):
    """The options of factors of float8 tensors; beside others they are ignored."""
    given = {"q_descale": (q, q_descale), "k_descale": (k, k_descale), "v_descale": (v, v_descale)}
    return {name: x if of.dtype in FLOAT8 else None for name, (of, x) in given.items()}


def joined(q, k, v, qv):
    """(q, k, v) of a call with FlashAttention-3's qv, whose scores are scale * (q.k + qv.v): the
    absorbed form of MLA.

    That is attention of queries [qv | q] to keys [v | k] with the same v. MLA's callers keep v and
    k side by side in the rows of one latent cache: then no key is copied. The default scale counts
    the dims of both. q and k may be None, beside qv alone: then scores are scale * qv.v.
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

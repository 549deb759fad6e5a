# SPDX-License-Identifier: Apache-2.0
"""Who else shares a sequence out over GPUs: torch's context_parallel and ring_flash_attn.

The package ring_flash_attn calls the functions of flash_attn. Here these are those of
FlashAttention-2 as torch has them, or fa3's. The backward of torch returns tensors where that of
flash_attn fills the caller's, so "on FA2" copies three gradients a call that the original writes in
place.
"""

import contextlib
import importlib.util
import itertools
import sys
import types

import torch
import torch.distributed as dist
from context_parallel_cases import Case, Contender

INTERFACE = "flash_attn.flash_attn_interface"


def rivals(case: Case) -> list[Contender | tuple[str, str]]:
    """Contenders, or (name, why it is left out)."""
    return [*ring_flash_attn(case), *torchs(case)]


def fa2_forward(
    q,
    k,
    v,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    return_softmax,
):
    found = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False, scale=softmax_scale
    )
    return found[0], found[1], None, None


def fa2_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    deterministic,
    rng_state=None,
):
    none = torch.empty(2, dtype=torch.uint64, device=q.device)
    made = torch.ops.aten._flash_attention_backward(
        *(dout, q, k, v, out, softmax_lse, None, None, q.shape[1], k.shape[1], 0.0, causal),
        *(none, none),
        scale=softmax_scale,
    )
    for of, gradient in zip((dq, dk, dv), made, strict=True):
        of.copy_(gradient)


def fa2_varlen_forward(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    return_softmax=False,
):
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    found = torch.ops.aten._flash_attention_forward(
        q, k, v, *lengths, 0.0, causal, False, scale=softmax_scale
    )
    return found[0], found[1], None, None


def fa2_varlen_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    rng_state=None,
):
    none = torch.empty(2, dtype=torch.uint64, device=q.device)
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    made = torch.ops.aten._flash_attention_backward(
        *(dout, q, k, v, out, softmax_lse, *lengths, 0.0, causal, none, none), scale=softmax_scale
    )
    for of, gradient in zip((dq, dk, dv), made, strict=True):
        of.copy_(gradient)


KINDS = ("FA2", "fa3")  # whose kernels


def ring_flash_attn(case: Case):
    """Its zigzag ring; of packed documents its llama3, whose heads go one by one or at once."""
    strides = (1, case.heads[1])
    if case.packed:
        names = [f"ring_flash_attn llama3, {n} heads, {x}" for n in strides for x in KINDS]
    else:
        names = [f"ring_flash_attn zigzag, {x}" for x in KINDS]
    why = None
    if not importlib.util.find_spec("ring_flash_attn"):
        why = "ring_flash_attn is not installed"
    elif case.device == "cpu":
        why = "torch has FlashAttention-2's kernels for GPUs only"
    if why:
        return [(name, why) for name in names]
    import fa3.compat.flash_attn as ours

    if "flash_attn" not in sys.modules and not importlib.util.find_spec("flash_attn"):
        for name, module in (("flash_attn", types.ModuleType("flash_attn")), (INTERFACE, ours)):
            module.__spec__ = module.__spec__ or importlib.util.spec_from_loader(name, None)
            sys.modules[name] = module
    # Nothing here calls its adapters, which know one version of Transformers.
    sys.modules.setdefault("ring_flash_attn.adapters", types.ModuleType("none"))
    for unused in ("substitute_hf_flash_attn", "update_ring_flash_attn_params"):
        setattr(sys.modules["ring_flash_attn.adapters"], unused, None)
    try:
        import ring_flash_attn.llama3_flash_attn_varlen as packed
        import ring_flash_attn.zigzag_ring_flash_attn as dense
    except ImportError as error:
        return [(name, str(error)) for name in names]
    passes = {
        "FA2": (fa2_forward, fa2_backward, fa2_varlen_forward, fa2_varlen_backward),
        "fa3": (
            ours._flash_attn_forward,
            ours._flash_attn_backward,
            ours._flash_attn_varlen_forward,
            ours._flash_attn_varlen_backward,
        ),
    }

    @contextlib.contextmanager
    def around(kind):
        dense._flash_attn_forward, dense._flash_attn_backward = passes[kind][:2]
        packed._flash_attn_varlen_forward, packed._flash_attn_varlen_backward = passes[kind][2:]
        yield

    if not case.packed:
        attend = lambda q, k, v: dense.zigzag_ring_flash_attn_func(q, k, v, causal=True)  # noqa: E731
        return [
            Contender(name, "zigzag", attend, lambda kind=kind: around(kind))
            for name, kind in zip(names, KINDS, strict=True)
        ]
    cu = torch.tensor(case.cu_seqlens(), dtype=torch.int32, device=case.device)
    *lengths, keys = packed.llama3_flash_attn_prepare_cu_seqlens(
        cu, True, dist.get_rank(), dist.get_world_size()
    )

    def of_packed(q, k, v, stride):
        return packed.llama3_flash_attn_varlen_func(q, k, v, *lengths, stride, keys, causal=True)

    return [
        Contender(
            name,
            "contiguous",
            lambda q, k, v, n=n: of_packed(q, k, v, n),
            lambda kind=kind: around(kind),
        )
        for name, (n, kind) in zip(names, itertools.product(strides, KINDS), strict=True)
    ]


def torchs(case: Case):
    """torch's context_parallel, with its own kernels and with those of the switch."""
    kinds = list(itertools.product(("allgather", "alltoall"), ("cudnn", "flash", "fa3")))
    names = [f"torch {rotation}, {kernel}" for rotation, kernel in kinds]
    if case.device == "cpu":
        return [
            (name, "torch's context_parallel has no attention of CPU tensors") for name in names
        ]
    if case.packed:
        return [(name, "torch's context_parallel takes no packed documents") for name in names]
    if case.heads[0] != case.heads[1]:
        return [
            (name, "torch's context_parallel wants as many key heads as heads") for name in names
        ]
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import fa3.torch

    mesh = dist.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))

    @contextlib.contextmanager
    def around(rotation, kernel):
        of = SDPBackend.CUDNN_ATTENTION if kernel == "cudnn" else SDPBackend.FLASH_ATTENTION
        switch = fa3.torch.sdpa() if kernel == "fa3" else contextlib.nullcontext()
        set_rotate_method(rotation)
        # Its buffers are cut in place: q, k and v are cut already, so it gets one of no use.
        unused = torch.empty(2 * dist.get_world_size(), device="cuda")
        with sdpa_kernel(of), switch, context_parallel(mesh, buffers=[unused], buffer_seq_dims=[0]):
            yield

    def attend(q, k, v):
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
        return out.transpose(1, 2)

    return [
        Contender(name, "zigzag", attend, lambda kind=kind: around(*kind), host_ms=24)
        for name, kind in zip(names, kinds, strict=True)
    ]

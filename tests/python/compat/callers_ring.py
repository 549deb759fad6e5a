# SPDX-License-Identifier: Apache-2.0
"""One rank of two, for test_callers.py: context parallelism of others' packages, over fa3.

    callers_ring.py RANK STORE

Prints a JSON line a function: its name, and the largest differences of out, dq, dk and dv from
fa3.attention of the whole sequence.
"""

import importlib.util
import json
import sys
import types

import torch
import torch.distributed as dist

import fa3

RANK = int(sys.argv[1])
BATCH, ROWS, HEADS, COLUMNS = 1, 64, 2, 32
CU_SEQLENS = torch.tensor([0, 24, 64], dtype=torch.int32)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2)
    torch.manual_seed(0)
    whole = [torch.randn(BATCH, ROWS, HEADS, COLUMNS).bfloat16() for _ in range(4)]
    if importlib.util.find_spec("ring_flash_attn"):
        ring_flash_attn(whole)
    if importlib.util.find_spec("yunchang"):
        yunchang(whole)
    if importlib.util.find_spec("diffusers"):
        diffusers(whole)
    dist.destroy_process_group()


def ring_flash_attn(whole):
    # The package's adapter for Transformers does not import beside Transformers 5.
    adapters = types.ModuleType("ring_flash_attn.adapters")
    adapters.substitute_hf_flash_attn = adapters.update_ring_flash_attn_params = None
    sys.modules[adapters.__name__] = adapters
    import ring_flash_attn as ring

    compare("ring", whole, half, ring.ring_flash_attn_func)
    compare("zigzag", whole, zigzag, ring.zigzag_ring_flash_attn_func)
    compare("stripe", whole, lambda x: x[:, RANK::2], ring.stripe_flash_attn_func)

    packed = [x[0] for x in whole]
    lengths = {"cu_seqlens_q": CU_SEQLENS, "cu_seqlens_k": CU_SEQLENS}
    lengths |= {"max_seqlen_q": 40, "max_seqlen_k": 40}
    local = CU_SEQLENS // 2, 20
    for name, cut, call in (
        ("ring_varlen", half, ring.ring_flash_attn_varlen_func),
        ("zigzag_varlen", zigzag, ring.zigzag_ring_flash_attn_varlen_func),
    ):
        compare(
            name,
            packed,
            lambda x, cut=cut: each_sequence(x, cut),
            lambda q, k, v, causal, call=call: call(q, k, v, *local, causal=causal),
            **lengths,
        )
    *prepared, keys = ring.llama3_flash_attn_prepare_cu_seqlens(CU_SEQLENS, True, RANK, 2)
    compare(
        "llama3",
        packed,
        lambda x: x.chunk(2)[RANK],
        lambda q, k, v, causal: ring.llama3_flash_attn_varlen_func(
            q, k, v, *prepared, heads_k_stride=1, local_k_slice=keys, causal=causal
        ),
        **lengths,
    )


def yunchang(whole):
    from yunchang import ring_flash_attn_func
    from yunchang.kernels import AttnType

    for kind, causal in ((AttnType.FA, True), (AttnType.FA3, False)):
        compare(
            f"yunchang_{kind.value}",
            whole,
            half,
            lambda q, k, v, causal, kind=kind: ring_flash_attn_func(
                q, k, v, causal=causal, attn_type=kind
            ),
            causal=causal,
        )


def diffusers(whole):
    import diffusers.models.attention_dispatch as dispatch
    from flash_attn_interface import _flash_attn_backward, _flash_attn_forward

    # What a download of the hub kernel would set.
    hub = dispatch._HUB_KERNELS_REGISTRY[dispatch.AttentionBackendName._FLASH_3_HUB]
    hub.wrapped_forward_fn, hub.wrapped_backward_fn = _flash_attn_forward, _flash_attn_backward
    mesh = types.SimpleNamespace(get_group=lambda: dist.group.WORLD)
    parallel = types.SimpleNamespace(
        _ring_mesh=mesh, _ring_local_rank=RANK, ring_degree=2, convert_to_fp32=True
    )
    config = types.SimpleNamespace(context_parallel_config=parallel)
    for name, operators in (
        ("flash", (dispatch._flash_attention_forward_op, dispatch._flash_attention_backward_op)),
        (
            "flash_3_hub",
            (
                dispatch._flash_attention_3_hub_forward_op,
                dispatch._flash_attention_3_hub_backward_op,
            ),
        ),
    ):
        compare(
            f"diffusers_{name}",
            whole,
            half,
            lambda q, k, v, causal, operators=operators: dispatch.TemplatedRingAttention.apply(
                q, k, v, None, 0.0, causal, None, False, False, *operators, config
            ),
            causal=False,
        )


def half(x):
    return x.chunk(2, 1)[RANK]


def zigzag(x):
    """The RANKth quarter from both ends."""
    return torch.cat([x.chunk(4, 1)[i] for i in (RANK, 3 - RANK)], 1)


def each_sequence(x, cut):
    return torch.cat([cut(x[None, a:b])[0] for a, b in CU_SEQLENS.unfold(0, 2, 1).tolist()])


def compare(name, whole, cut, call, causal=True, **lengths):
    *qkv, do = whole
    leaves = [x.detach().requires_grad_() for x in qkv]
    out = fa3.attention(*leaves, causal=causal, **lengths)
    expected = [out, *torch.autograd.grad(out, leaves, do)]
    leaves = [cut(x).contiguous().requires_grad_() for x in qkv]
    out = call(*leaves, causal=causal)
    got = [out, *torch.autograd.grad(out, leaves, cut(do).contiguous())]
    pairs = zip(got, map(cut, expected), strict=True)
    print(json.dumps([name, [(x.float() - y.float()).abs().max().item() for x, y in pairs]]))


if __name__ == "__main__":
    main()

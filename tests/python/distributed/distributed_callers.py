# SPDX-License-Identifier: Apache-2.0
"""Programs of others over a group of two, for test_distributed.py.

Transformers: a Llama of random
weights on packed documents. torch: its own context_parallel, whose attention the switch of
fa3.torch provides.
"""

import torch
import torch.distributed as dist
from distributed_group import join, run_cases

from fa3 import distributed
from fa3.compat import ring_flash_attn

WORLD = 2
CU_SEQLENS = torch.tensor([0, 10, 11, 32])


def transformers_trains_over_the_group():
    import transformers

    import fa3.hf  # noqa: F401

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
        attn_implementation="fa3",
    )
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(64, (1, 32))
    places = torch.cat([torch.arange(n) for n in CU_SEQLENS.diff().tolist()])[None]

    def loss_of(ids, at, labels):
        logits = model(input_ids=ids, position_ids=at, use_cache=False).logits
        of_rows = torch.nn.functional.cross_entropy(
            logits[0], labels[0], reduction="sum", ignore_index=-100
        )
        of_rows.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        return of_rows.detach(), gradients

    labels = tokens.roll(-1, 1)
    labels[0, CU_SEQLENS[1:] - 1] = -100
    whole, expected = loss_of(tokens, places, labels)
    ring_flash_attn.substitute_hf_flash_attn(dist.group.WORLD, heads_k_stride=1)
    again, _ = loss_of(tokens, places, labels)
    assert torch.equal(whole, again)  # no batch has been described
    ring_flash_attn.update_ring_flash_attn_params(CU_SEQLENS, dist.group.WORLD)
    of = {"cu_seqlens": CU_SEQLENS, "layout": "contiguous"}
    at = distributed.positions(**of)[None]
    assert torch.equal(at, distributed.shard(places, **of))
    mine = distributed.shard_labels(tokens, **of)
    part, gradients = loss_of(distributed.shard(tokens, **of), at, mine)
    for tensor in (part, *gradients):
        dist.all_reduce(tensor)
    for got, wanted in zip([part, *gradients], [whole, *expected], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def context_parallel_of_torch_takes_the_kernels_of_the_switch():
    """Its ring calls CUDA's flash attention, of which the CPU has none: here the switch's is put
    there, and the ring is called below DTensor, which refuses tensors of the CPU before."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as theirs

    from fa3.torch.aten_kernels import sdpa_cuda, sdpa_cuda_backward

    def forward(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
        calls.append("forward")
        return sdpa_cuda(q, k, v, dropout_p, is_causal, return_debug_mask, scale)

    def backward(do, q, k, v, out, lse, *rest, scale=None):
        calls.append("backward")
        dropout_p, is_causal, seed, _ = rest[4:]
        return sdpa_cuda_backward(do, q, k, v, out, lse, dropout_p, is_causal, seed, scale)

    name = "_scaled_dot_product_flash_attention"
    library, calls = torch.library.Library("aten", "IMPL"), []
    library.impl(name, forward, "CPU")
    library.impl(f"{name}_backward", backward, "CPU")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (WORLD,))
    torch.manual_seed(1)
    *qkv, do = (torch.randn(1, 2, 32, 16) for _ in range(4))
    leaves = [x.clone().requires_grad_() for x in qkv]
    whole = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    expected = [whole, *torch.autograd.grad(whole, leaves, do)]
    q, k, v, do = (distributed.shard(x, dim=2) for x in (*qkv, do))
    ring = theirs._scaled_dot_product_ring_flash_attention
    out, lse, *lengths, seed, offset, _ = ring(mesh, q, k, v, is_causal=True)
    ring = theirs._scaled_dot_product_ring_flash_attention_backward
    gradients = ring(mesh, do, q, k, v, out, lse, *lengths, 0.0, True, seed, offset)
    assert calls == ["forward", "forward", "backward", "backward"]
    for x, y in zip([out, *gradients], expected, strict=False):
        torch.testing.assert_close(x, distributed.shard(y.detach(), dim=2), rtol=1e-4, atol=1e-5)
    del library


CASES = [
    transformers_trains_over_the_group,
    context_parallel_of_torch_takes_the_kernels_of_the_switch,
]


def run_rank(rank, world, store):
    join(rank, world, store)
    run_cases(CASES)
    dist.destroy_process_group()

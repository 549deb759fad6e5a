# SPDX-License-Identifier: Apache-2.0
"""What calls over a group of ranks take, agree upon and refuse: cases of distributed_cases.py."""

import itertools

import pytest
import torch
import torch.distributed as dist
from distributed_passes import at_once, cut, documents, inputs, rows_in, rows_of

import fa3
from fa3 import distributed
from fa3.compat import ring_flash_attn as ring
from fa3.distributed import agree as agreement
from fa3.distributed.layout import LAYOUTS


def parts_make_the_whole(world):
    for layout, lengths in itertools.product(LAYOUTS, (29, 1, 0, (5, 0, 17, 1, 26))):
        rows = rows_in(lengths)
        x, of = torch.arange(2 * rows).view(2, rows), documents(lengths)
        packed = {name: value for name, value in of.items() if name == "cu_seqlens"}
        part = distributed.shard(x, layout=layout, **packed)
        assert torch.equal(distributed.unshard(part, layout=layout, **of), x)
        at = distributed.positions(layout=layout, **of)
        starts = torch.tensor(of.get("cu_seqlens", [0, rows]))
        document = torch.bucketize(part[0], starts, right=True) - 1
        assert torch.equal(at + starts[document], part[0])
        labels = distributed.shard_labels(x, layout=layout, **packed)
        is_last = torch.isin(part[0] + 1, starts)
        assert torch.equal(labels, torch.where(is_last, -100, part + 1))


def a_group_may_be_some_ranks_or_a_mesh(world):
    tensors = inputs(30, world, batch=1)
    expected = at_once((*tensors[:4], None), 30)[0]
    alone = {"group": [dist.new_group([rank]) for rank in range(world)][dist.get_rank()]}
    for method in ("ring", "all_gather", "ulysses", "auto"):
        out = distributed.attention(*tensors[:3], method=method, **alone)
        torch.testing.assert_close(out, expected)
    pair = dist.new_group([world - 2, world - 1])
    if dist.get_rank() >= world - 2:
        group = {"group": pair, "layout": "contiguous"}
        q, k, v = (distributed.shard(x, **group) for x in tensors[:3])
        out = distributed.attention(q, k, v, method="ring", **group)
        torch.testing.assert_close(distributed.unshard(out, **group), expected)
    else:
        refused(lambda: distributed.shard(tensors[0], group=pair), "a group that this rank is in")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world,), mesh_dim_names=("cp",))
    q, k, v = (distributed.shard(x, group=mesh["cp"]) for x in tensors[:3])
    seqlen = {"seqlen": 30, "group": mesh}
    out = distributed.attention(q, k, v, **seqlen)
    torch.testing.assert_close(distributed.unshard(out, **seqlen), expected)


def refused(call, *words, kind=fa3.InvalidArgument):
    with pytest.raises(kind) as refusal:
        call()
    sentence = str(refusal.value)
    assert all(word in sentence for word in words), sentence
    return sentence


def ranks_that_disagree_learn_it_by_one_sentence(world):
    last = dist.get_rank() == world - 1
    q, k, v, _, sink = inputs(8 * world, world, batch=1)
    q, k, v = (distributed.shard(x) for x in (q, k, v))

    def call(*tensors, **options):
        return lambda: distributed.attention(*(tensors or (q, k, v)), **options)

    calls = [
        (call(causal=last), "mask: expected the same on every rank", f"on rank {world - 1}"),
        (call(softcap=1.0 * last), "softcap: expected the same"),
        (call(sink=sink if last else None), "sink: expected the same"),
        (call(method="ring" if last else "all_gather"), "method: expected the same"),
        (call(*((x.bfloat16() if last else x) for x in (q, k, v))), "dtype: expected the same"),
        (call(*((x[:, 1:] if last else x) for x in (q, k, v))), "lengths: expected the same"),
        (
            call(*((x[:, 1:] if last else x) for x in (q, k, v)), seqlen=8 * world),
            f"rank {world - 1}: q: expected 8 rows",
            "got 7",
        ),
        (call(q, k[..., :8] if last else k, v), f"rank {world - 1}: k: expected the head dim"),
        (call(q, k.double() if last else k, v), f"rank {world - 1}: k: expected the dtype of q"),
        (call(q.clone().requires_grad_(last), k, v), "gradients: expected the same"),
        (call(method="rings"), "method: expected one of auto, ring"),
        (call(method="hybrid", ulysses_degree=world + 1), "ulysses_degree: expected a number"),
        (call(method="ring", stages=(1, world)), "stages: expected numbers of ranks that add up"),
        (call(stages=(1, world - 1)), "stages: expected None, but with ring and hybrid"),
        (call(window=(-3, 0)), "window[0]: expected None, -1 or"),
        (call(cu_seqlens=[0, 8 * world]), "cu_seqlens: expected it together with packed"),
        (
            call(*(x[0] for x in (q, k, v)), cu_seqlens=[0, 9, 8]),
            "begin with 0 and do not decrease",
        ),
        (call(*(x.to("meta") for x in (q, k, v))), "q: expected a tensor on cpu"),
        (call(gate=q[..., 0] if not last else q[0]), f"rank {world - 1}: gate: expected a tensor"),
        (call(sm_margin=-3 * last), f"rank {world - 1}: sm_margin: expected 0 to 1023 SMs, got -3"),
        (
            call(num_threads=2000 * last),
            f"rank {world - 1}: num_threads: expected 0 (all cores) to",
        ),
        (
            call(method="ring", stages=map(int, "x") if last else None),
            f"rank {world - 1}: invalid literal for int()",  # of any error on one rank
        ),
    ]
    for one, *words in calls:
        sentences: list = [None] * world
        dist.all_gather_object(sentences, refused(one, *words))
        assert len(set(sentences)) == 1, sentences
    begins = "rank 0: dropout_p: expected 0, or parts that begin at multiples of 64 rows"
    refused(call(dropout_p=0.1), begins, kind=fa3.Unsupported)
    refused(call(dropout_p=1.5), "rank 0: dropout_p: expected a probability from 0 to 1")
    refused(call(q.numpy(), k, v), "rank 0: q: expected a torch.Tensor", kind=TypeError)
    no_sink = call(sink=[0.0] if last else sink)
    refused(no_sink, f"rank {world - 1}: sink: expected a torch.Tensor", kind=TypeError)
    no_threads = call(num_threads="2" if last else 2)
    refused(no_threads, f"rank {world - 1}: num_threads: expected an integer", kind=TypeError)
    learned = torch.tensor(0.5, requires_grad=True)
    refused(call(scale=learned), "rank 0: scale: expected a number", kind=fa3.Unsupported)
    assert torch.equal(call(scale=learned.detach())(), call(scale=0.5)())
    call()()  # the group still works


def a_kind_of_call_is_agreed_upon_once(world):
    """Where the backend is gloo, ranks that agree exchange their digests alone."""
    q, k, v = (distributed.shard(x) for x in inputs(16 * world, world, batch=1)[:3])
    for compares, expected in ((agreement.compares, 0), (lambda group: False, 2)):
        with pytest.MonkeyPatch.context() as patched:
            gathered = []
            original = dist.all_gather_object

            def counting(*arguments, original=original, gathered=gathered, **named):
                gathered.append(1)
                return original(*arguments, **named)

            patched.setattr(dist, "all_gather_object", counting)
            patched.setattr(agreement, "compares", compares)
            for softcap in (0.0, 3.0, 0.0, 3.0):
                distributed.attention(q, k, v, softcap=softcap)
            assert len(gathered) == expected


def ranks_that_differ_later_learn_it_too(world):
    """After every kind of call was made once: other masks, other orders, another pass."""
    rank, last = dist.get_rank(), dist.get_rank() == world - 1
    q, k, v = (
        distributed.shard(x).requires_grad_() for x in inputs(16 * world, world, batch=1)[:3]
    )

    def call(**options):
        return distributed.attention(q, k, v, method="ring", **options)

    for causal in (False, True):
        call(causal=causal).sum().backward()
    said = f"mask: expected the same on every rank, got .* on rank {world - 1}"
    refused_alike(lambda: call(causal=last), said)
    said = "call: expected the same on every rank, got the backward pass of call [0-9]+ on rank"
    first, second = call(causal=True), call(causal=True)
    refused_alike(lambda: (second if last else first).sum().backward(), said)
    one, other = call(causal=True), call()  # of unequal messages
    refused_alike(lambda: (other if last else one).sum().backward(), said)
    said = "call: expected the same on every rank, got .*a forward pass on rank"
    refused_alike(lambda: call() if last else one.sum().backward(), said)
    teams = {"method": "ulysses"} if q.shape[2] % world == 0 else {}
    first, second = (distributed.attention(q, k, v, **teams) for _ in range(2))
    refused_alike(lambda: (second if rank == 0 else first).sum().backward(), "backward pass")
    call().sum().backward()  # the group still works


def refused_alike(call, pattern):
    with pytest.raises(fa3.InvalidArgument, match=pattern) as refusal:
        call()
    sentences: list = [None] * dist.get_world_size()
    dist.all_gather_object(sentences, str(refusal.value))
    assert len(set(sentences)) == 1, sentences


def lazily_negated_tensors_are_read_with_their_signs(world):
    q, k, v, _, sink = inputs(16 * world, world, batch=1)
    given = [*(distributed.shard(x) for x in (q, k, v)), sink]

    def results(sign):
        leaves = [x.clone().requires_grad_() for x in given]
        q, k, v, sink = (sign(x) for x in leaves)
        out, lse = distributed.attention(q, k, v, sink=sink, return_lse=True)
        sums = [sign(torch.ones_like(x)) for x in (out, lse)]
        return out, lse, *torch.autograd.grad((out, lse), leaves, sums)

    assert all(map(torch.equal, results(torch._neg_view), results(torch.neg)))


def autocast_holds(world):
    q, k, v = (distributed.shard(x) for x in inputs(16 * world, world, batch=1)[:3])
    with torch.autocast("cpu", torch.bfloat16):
        assert distributed.attention(q, k, v).dtype == torch.bfloat16


def a_plan_says_why(world):
    q, k, v = (distributed.shard(x) for x in inputs(16 * world, world, batch=1)[:3])
    said = distributed.plan(q, k, v, causal=True)
    assert "expected milliseconds" in said and "* " in said and "stage 0: " in said


def names_of_ring_flash_attn_give_the_same(world):
    *dense, _ = inputs(8 * world, world, batch=2)
    lengths = (4 * world, 2 * world, 6 * world)
    *packed, _ = inputs(sum(lengths), world)
    cu = torch.tensor(documents(lengths)["cu_seqlens"], dtype=torch.int32)
    of_varlen = cu // world, 6
    prepared = ring.llama3_flash_attn_prepare_cu_seqlens(cu, True, dist.get_rank(), world)
    of_llama3 = *prepared[:4], 1, prepared[4]
    calls = [
        (ring.ring_flash_attn_func, dense, "contiguous", ()),
        (ring.zigzag_ring_flash_attn_func, dense, "zigzag", ()),
        (ring.ring_flash_attn_varlen_func, packed, "by_document", of_varlen),
        (ring.zigzag_ring_flash_attn_varlen_func, packed, "zigzag", of_varlen),
        (ring.llama3_flash_attn_varlen_func, packed, "contiguous", of_llama3),
    ]
    for function, (*qkv, do), layout, lengths_of_call in calls:
        of = 8 * world if qkv[0].ndim == 4 else lengths
        expected = cut(at_once((*qkv, do, None), of, causal=True), of, layout)
        rows = rows_of(layout, of)
        leaves = [x[..., rows, :, :].clone().requires_grad_() for x in qkv]
        out, lse, _ = function(
            *leaves, *lengths_of_call, causal=True, deterministic=True, return_attn_probs=True
        )
        got = [out, lse, *torch.autograd.grad(out, leaves, do[..., rows, :, :])]
        for x, y in zip(got, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, msg=function.__name__)
    k = dense[0][:, :8]
    stacked = ring.ring_flash_attn_qkvpacked_func(torch.stack([k, k, k], 2), causal=True)
    assert torch.equal(stacked, ring.ring_flash_attn_func(k, k, k, causal=True))
    stacked = ring.zigzag_ring_flash_attn_kvpacked_func(k, torch.stack([k, k], 2))
    assert torch.equal(stacked, ring.zigzag_ring_flash_attn_func(k, k, k))
    refused(
        lambda: ring.ring_flash_attn_func(k, k, k, alibi_slopes=k),
        "alibi_slopes",
        kind=fa3.Unsupported,
    )

# SPDX-License-Identifier: Apache-2.0
"""What each rank of test_distributed.py runs: every function named in CASES, on all ranks.

Prints a JSON line a case: its name, and the failure or null.
"""

import contextlib
import datetime
import functools
import itertools
import json
import os
import random
import shutil
import tempfile
import time
import traceback
from pathlib import Path

import error_model
import numpy as np
import oracle
import pytest
import torch
import torch.distributed as dist
from host_memory import HostMemory

import fa3
from fa3 import distributed
from fa3.compat import ring_flash_attn as ring
from fa3.distributed import describe, run, schedule
from fa3.distributed.layout import LAYOUTS, pieces, stream_rows
from fa3.distributed.transport.peers import Peers

QUICK = bool(os.environ.get("FA3_TEST_QUICK"))
MASKS = [
    {},
    {"causal": True},
    {"causal": True, "window": (7, 0)},
    {"window": (3, 5)},
    {"window": (None, 2)},
    {"window": (0, 0)},
]
PACKED = [(5, 0, 17, 1, 26), (1, 1, 1), (0, 40, 9), (2,), ()]
DENSE = [48, 29, 3, 1, 0]


def methods(world):
    teams = [n for n in range(2, world) if world % n == 0]
    return [
        ("ring", None),
        ("all_gather", None),
        ("ulysses", None),
        ("auto", None),
        *(("hybrid", n) for n in teams),
        *([("growing", None)] if world > 2 else []),
    ]


def inputs(rows, world, dtype=torch.float32, batch=None):
    """q, k, v and do of the whole, and a sink. Key heads divide by the ranks."""
    made = torch.Generator().manual_seed(rows)
    shape = (rows,) if batch is None else (batch, rows)
    q, k, v, do = (
        torch.randn((*shape, heads, dim), generator=made).to(dtype)
        for heads, dim in ((2 * world, 16), (world, 16), (world, 8), (2 * world, 8))
    )
    return q, k, v, do, torch.randn(2 * world, generator=made)


def rows_of(layout, lengths):
    held = pieces(layout, lengths, dist.get_world_size(), dist.get_rank())
    return [row for a, b in stream_rows(held, lengths) for row in range(a, b)]


def documents(lengths):
    """cu_seqlens, for packed tensors; seqlen for others."""
    if isinstance(lengths, int):
        return {"seqlen": lengths}
    return {"cu_seqlens": list(itertools.accumulate(lengths, initial=0))}


def both_passes(tensors, lengths, layout, with_lse=False, **options):
    """out, lse, dq, dk, dv and dsink of this rank's rows; dsink summed over all."""
    q, k, v, do, sink = tensors
    each = (lengths,) if isinstance(lengths, int) else lengths
    rows = rows_of(layout, each)
    leaves = [x[..., rows, :, :].clone().requires_grad_() for x in (q, k, v)]
    if sink is not None:
        leaves.append(sink.clone().requires_grad_())
        options["sink"] = leaves[-1]
    if options.get("method") == "growing":
        options |= {"method": "ring", "stages": (1, dist.get_world_size() - 1)}
    out, lse = distributed.attention(
        *leaves[:3], layout=layout, return_lse=True, **documents(lengths), **options
    )
    loss = (out * do[..., rows, :, :]).sum() + (lse.sin().sum() if with_lse else 0)
    gradients = list(torch.autograd.grad(loss, leaves))
    if sink is not None:
        dist.all_reduce(gradients[-1])
    return [out.detach(), lse.detach(), *gradients]


def at_once(tensors, lengths, with_lse=False, **options):
    """The same by one process, over the whole."""
    q, k, v, do, sink = tensors
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    if sink is not None:
        leaves.append(sink.clone().requires_grad_())
        options["sink"] = leaves[-1]
    if not isinstance(lengths, int):
        cu = torch.tensor(documents(lengths)["cu_seqlens"], dtype=torch.int32)
        options |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    out, lse = fa3.attention(*leaves[:3], return_lse=True, **options)
    loss = (out * do).sum() + (lse.sin().sum() if with_lse else 0)
    return [out.detach(), lse.detach(), *torch.autograd.grad(loss, leaves)]


def cut(results, lengths, layout):
    """This rank's rows of results of the whole; dsink as it is."""
    each = (lengths,) if isinstance(lengths, int) else lengths
    rows = rows_of(layout, each)
    out, lse, dq, dk, dv, *dsink = results
    tensors = [x[..., rows, :, :] for x in (out, dq, dk, dv)]
    return [tensors[0], lse[..., rows], *tensors[1:], *dsink]


def bounds_of(tensors, lengths, dtype="float32", **options):
    """The oracle's results and how far rounding may move them, in the order of at_once()."""
    q, k, v, do, sink = (None if x is None else x.double().numpy() for x in tensors)
    if isinstance(lengths, int):
        parts = [(q, k, v, do)]
    else:
        bounds = list(itertools.accumulate(lengths, initial=0))
        parts = [tuple(x[None, a:b] for x in (q, k, v, do)) for a, b in itertools.pairwise(bounds)]
    score_dtype = error_model.score_dtype_of("cpu", dtype)
    values, limits = [], []
    for part in parts:
        o, lse = oracle.forward(*part[:3], sink=sink, **options)
        gradients = oracle.backward(*part, sink=sink, **options)
        values.append((o, lse, *gradients))
        limit = error_model.bounds(
            *part, dtype=dtype, score_dtype=score_dtype, sink=sink, **options
        )
        limits.append(tuple(limit))
    if isinstance(lengths, int):
        return values[0], limits[0]
    return tuple(map(joined, zip(*values, strict=True))), tuple(
        map(joined, zip(*limits, strict=True))
    )


def joined(parts):
    if parts[0] is None:
        return None
    if parts[0].ndim == 1:
        return sum(parts)
    axis = 1 if parts[0].ndim == 4 else 2
    return np.concatenate(parts, axis)[0]


def within(got, expected, limits, what):
    for name, x, y, limit in zip(
        "out lse dq dk dv dsink".split(), got, expected, limits, strict=False
    ):
        x = x.double().numpy()
        off = np.abs(x - y)
        wrong = ~((off <= limit) | (x == y))
        assert not wrong.any(), f"{what}: {name} is off by {off[wrong].max()}, {limit[wrong].max()}"


def grid(world, count):
    cases = list(itertools.product(methods(world), LAYOUTS, MASKS, (*DENSE, *PACKED)))
    random.Random(1).shuffle(cases)
    return cases[:count] if QUICK else cases


@contextlib.contextmanager
def holding_back(is_on):
    """Own rows wait until the last gradients are on their way, however few these are."""
    before = schedule.WORTH_HIDING, schedule.HALF_STEP
    if is_on:
        schedule.WORTH_HIDING, schedule.HALF_STEP = 0, 1
    try:
        yield
    finally:
        schedule.WORTH_HIDING, schedule.HALF_STEP = before


def every_method_equals_the_oracle(world):
    for number, ((method, degree), layout, mask, lengths) in enumerate(grid(world, 40)):
        if not isinstance(lengths, int) and sum(lengths) == 0:
            continue  # the oracle has no document at all
        rows = lengths if isinstance(lengths, int) else sum(lengths)
        batch = 2 if isinstance(lengths, int) else None
        tensors = list(inputs(rows, world, batch=batch))
        if number % 2:
            tensors[4] = None
        options = {**mask, "softcap": 5.0 if number % 3 == 0 else 0.0}
        with holding_back(number % 2):
            options |= {"method": method, "ulysses_degree": degree}
            got = both_passes(tensors, lengths, layout, **options)
        options = {name: options[name] for name in (*mask, "softcap")}
        window = tuple(-1 if side is None else side for side in mask.get("window", (-1, -1)))
        values, limits = bounds_of(tensors, lengths, **{**options, "window": window})
        keep = [i for i, x in enumerate(values) if x is not None]
        values = [torch.from_numpy(np.asarray(values[i])) for i in keep]
        limits = [torch.from_numpy(np.asarray(limits[i])) for i in keep]
        values, limits = (cut(x, lengths, layout) for x in (values, limits))
        what = f"{method} {degree} {layout} {mask} {lengths}"
        within(got, [x.numpy() for x in values], [x.numpy() for x in limits], what)


def dropout_is_that_of_one_process(world):
    """Same seed, same mask: what is left are roundings, 1e-5 of float32 values about 1."""
    documents = (128 * world, 0, 256 * world)
    cases = list(itertools.product(methods(world), LAYOUTS, MASKS[:4], (128 * world, documents)))
    random.Random(2).shuffle(cases)
    for (method, degree), layout, mask, lengths in cases[: 8 if QUICK else 40]:
        if layout == "contiguous" and lengths is documents:
            continue  # cuts documents between two multiples of 64 rows
        rows = lengths if isinstance(lengths, int) else sum(lengths)
        tensors = inputs(rows, world, batch=2 if isinstance(lengths, int) else None)
        options = {**mask, "dropout_p": 0.3, "dropout_seed": (17, 4)}
        got = both_passes(tensors, lengths, layout, method=method, ulysses_degree=degree, **options)
        expected = cut(at_once(tensors, lengths, **options), lengths, layout)
        for x, y in zip(got, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=2e-5, atol=2e-5, msg=f"{method} {layout} {mask}")


def a_drawn_seed_is_the_first_ranks(world):
    tensors = inputs(128 * world, world, batch=1)
    leaves = [distributed.shard(x) for x in tensors[:3]]
    outs = []
    for _ in range(2):
        torch.manual_seed(dist.get_rank())
        outs.append(distributed.attention(*leaves, dropout_p=0.5))
    assert torch.equal(*outs)
    torch.manual_seed(0)
    expected = fa3.attention(*tensors[:3], dropout_p=0.5)
    torch.testing.assert_close(outs[0], distributed.shard(expected), rtol=2e-5, atol=2e-5)


def rms(got, expected):
    return float(np.sqrt(np.square(np.asarray(got) - expected).mean()))


def errors_in_16_bits_are_those_of_one_process(world):
    """Root mean squares from float64; partial results that were rounded would double them."""
    lengths, mask = 192, {"causal": True}
    for dtype in (torch.bfloat16, torch.float16):
        tensors = inputs(lengths, world, dtype, batch=1)
        name = str(dtype).removeprefix("torch.")
        known = (*bounds_of(tensors, lengths, name, **mask), at_once(tensors, lengths, **mask))
        values, limits, alone = (
            [
                np.asarray(x.double())
                for x in cut(list(map(torch.as_tensor, one)), lengths, "zigzag")
            ]
            for one in known
        )
        for method, degree in methods(world):
            options = {"method": method, "ulysses_degree": degree, **mask}
            got = both_passes(tensors, lengths, "zigzag", **options)
            within(got, values, limits, (name, method))
            for part in (0, 2, 3, 4):  # the LSE is float32, whatever the inputs are
                off, alone_off = (rms(x, values[part]) for x in (got[part].double(), alone[part]))
                assert off < 1.1 * alone_off, f"{name} {method}: {off / alone_off} of {part}"


def gradients_of_16_bits_still_add_up_in_float32(world):
    """As the parts of GPUs are: rounded by each call, and sent so where a stage has one call."""
    tensors, options = inputs(192, world, torch.bfloat16, batch=1), {"causal": True}
    values, _ = bounds_of(tensors, 192, "bfloat16", **options)
    alone = at_once(tensors, 192, **options)
    original, run.part_type = run.part_type, lambda q: q.dtype
    try:
        for (method, degree), window in itertools.product(methods(world), (None, (50, 0))):
            options = {"method": method, "ulysses_degree": degree, "window": window}
            with holding_back(window is None):
                got = both_passes(tensors, 192, "zigzag", causal=True, **options)
            if window is not None:
                continue  # of several calls: that messages fit
            for part in (2, 3, 4):
                exact = cut([torch.from_numpy(x) for x in values], 192, "zigzag")[part]
                x, y = got[part], cut(alone, 192, "zigzag")[part]
                off, alone_off = ((z.double() - exact).norm() for z in (x, y))
                assert off < 2 * alone_off, f"{method}: {off / alone_off} of {part}"
    finally:
        run.part_type = original


def failing(*_):
    raise fa3.Unsupported("in the middle of a call")


def ranks_that_write_to_each_other_get_what_messages_bring(world):
    """Bit by bit, in slots that grow and whose uses overlap."""
    folder = Path(tempfile.gettempdir()) / f"fa3-{os.getppid()}-{world}"
    folder.mkdir(exist_ok=True)
    memory = HostMemory(folder)
    peers, none = Peers(memory), describe.peers_of
    try:
        for number, ((method, degree), layout, mask, lengths) in enumerate(grid(world, 30)[:120]):
            rows = lengths if isinstance(lengths, int) else sum(lengths)
            tensors = inputs(rows, world, batch=2 if isinstance(lengths, int) else None)
            options = {**mask, "method": method, "ulysses_degree": degree}
            if number % 3 == 0:
                options["deterministic"] = True
            with holding_back(number % 2):
                expected = both_passes(tensors, lengths, layout, **options)
                describe.peers_of = lambda *_: peers
                got = both_passes(tensors, lengths, layout, **options)
                describe.peers_of = none
            for x, y in zip(got, expected, strict=True):
                assert torch.equal(x, y), f"{method} {degree} {layout} {mask} {lengths}"
        describe.peers_of, attend = lambda *_: peers, run.attend
        call = functools.partial(both_passes, inputs(48, world, batch=2), 48, "zigzag")
        run.attend = failing
        refused(lambda: call(method="ring"), kind=fa3.Unsupported)
        run.attend = attend
        call(method="ring")  # no slot is left in use
    finally:
        describe.peers_of = none
        dist.barrier()
        shutil.rmtree(folder, ignore_errors=True)


def gradients_of_the_lse_equal_one_process(world):
    for (method, degree), lengths in itertools.product(methods(world), (29, (5, 0, 17, 1, 26))):
        rows = lengths if isinstance(lengths, int) else sum(lengths)
        tensors = inputs(rows, world, batch=2 if isinstance(lengths, int) else None)
        options = {"causal": True, "with_lse": True}
        expected = cut(at_once(tensors, lengths, **options), lengths, "zigzag")
        got = both_passes(
            tensors, lengths, "zigzag", method=method, ulysses_degree=degree, **options
        )
        for x, y in zip(got, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def both_passes_repeat_bit_by_bit(world):
    tensors = inputs(61, world, torch.bfloat16, batch=2)
    for method, degree in methods(world):
        options = {"method": method, "ulysses_degree": degree, "deterministic": True}
        first, again = (
            both_passes(tensors, 61, "zigzag", causal=True, **options) for _ in range(2)
        )
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def infinite_sinks_take_nothing_or_everything(world):
    q, k, v, do, sink = inputs(24, world, batch=1)
    sink[0], sink[1] = -torch.inf, torch.inf
    tensors = q, k, v, do, sink
    expected = cut(at_once(tensors, 24, causal=True), 24, "zigzag")
    for method, degree in methods(world):
        got = both_passes(tensors, 24, "zigzag", causal=True, method=method, ulysses_degree=degree)
        for x, y in zip(got, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def parts_make_the_whole(world):
    for layout, lengths in itertools.product(LAYOUTS, (29, 1, 0, (5, 0, 17, 1, 26))):
        rows = lengths if isinstance(lengths, int) else sum(lengths)
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
    ]
    for one, *words in calls:
        sentences: list = [None] * world
        dist.all_gather_object(sentences, refused(one, *words))
        assert len(set(sentences)) == 1, sentences
    begins = "rank 0: dropout_p: expected 0, or parts that begin at multiples of 64 rows"
    refused(call(dropout_p=0.1), begins, kind=fa3.Unsupported)
    refused(call(dropout_p=1.5), "rank 0: dropout_p: expected a probability from 0 to 1")
    refused(call(q.numpy(), k, v), "rank 0: q: expected a torch.Tensor", kind=TypeError)
    call()()  # the group still works


def a_kind_of_call_is_agreed_upon_once(world):
    q, k, v = (distributed.shard(x) for x in inputs(16 * world, world, batch=1)[:3])
    gathered = []
    original = dist.all_gather_object

    def counting(*arguments, **named):
        gathered.append(1)
        return original(*arguments, **named)

    dist.all_gather_object = counting
    try:
        for softcap in (0.0, 3.0, 0.0, 3.0):
            distributed.attention(q, k, v, softcap=softcap)
    finally:
        dist.all_gather_object = original
    assert len(gathered) == 2


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
        rows = rows_of(layout, (of,) if isinstance(of, int) else of)
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


CASES = [
    ranks_that_write_to_each_other_get_what_messages_bring,
    every_method_equals_the_oracle,
    errors_in_16_bits_are_those_of_one_process,
    gradients_of_16_bits_still_add_up_in_float32,
    gradients_of_the_lse_equal_one_process,
    both_passes_repeat_bit_by_bit,
    infinite_sinks_take_nothing_or_everything,
    parts_make_the_whole,
    a_group_may_be_some_ranks_or_a_mesh,
    ranks_that_disagree_learn_it_by_one_sentence,
    a_kind_of_call_is_agreed_upon_once,
    dropout_is_that_of_one_process,
    a_drawn_seed_is_the_first_ranks,
    autocast_holds,
    a_plan_says_why,
    names_of_ring_flash_attn_give_the_same,
]


def run_cases(cases, *arguments):
    for case in cases:
        failure = None
        begin = time.perf_counter()
        try:
            case(*arguments)
        except BaseException:  # pytest.fail, too
            failure = traceback.format_exc()
        print(f"{case.__name__}: {time.perf_counter() - begin:.2f} s")
        print(json.dumps([case.__name__, failure]), flush=True)
        if failure:
            break  # the ranks may no longer be at the same call


def join(rank, world, store, seconds=60.0):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=seconds),
    )


def run_rank(rank, world, store):
    join(rank, world, store)
    run_cases(CASES, world)
    dist.destroy_process_group()

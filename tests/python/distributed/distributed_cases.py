# SPDX-License-Identifier: Apache-2.0
"""What each rank of test_distributed.py runs: every function named in CASES, on all ranks.

Prints a JSON line a case: its name, and the failure or null.
"""

import functools
import itertools
import os
import random
import shutil
import tempfile
from pathlib import Path

import distributed_calls as calls
import numpy as np
import pytest
import torch
import torch.distributed as dist
from distributed_group import join, run_cases
from distributed_passes import (
    at_once,
    both_passes,
    bounds_of,
    cut,
    holding_back,
    inputs,
    inputs_of,
    methods,
    within,
)
from host_memory import HostMemory

import fa3
from fa3 import distributed
from fa3.distributed import describe, run
from fa3.distributed.layout import LAYOUTS
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


def grid(world, count):
    cases = list(itertools.product(methods(world), LAYOUTS, MASKS, (*DENSE, *PACKED)))
    random.Random(1).shuffle(cases)
    return cases[:count] if QUICK else cases


def every_method_equals_the_oracle(world):
    for number, ((method, degree), layout, mask, lengths) in enumerate(grid(world, 40)):
        if not isinstance(lengths, int) and sum(lengths) == 0:
            continue  # the oracle has no document at all
        tensors = list(inputs_of(lengths, world))
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
        tensors = inputs_of(lengths, world)
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
            tensors = inputs_of(lengths, world)
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
        calls.refused(lambda: call(method="ring"), kind=fa3.Unsupported)
        run.attend = attend
        call(method="ring")  # no slot is left in use
    finally:
        describe.peers_of = none
        dist.barrier()
        shutil.rmtree(folder, ignore_errors=True)


def gradients_of_the_lse_equal_one_process(world):
    for (method, degree), lengths in itertools.product(methods(world), (29, (5, 0, 17, 1, 26))):
        tensors = inputs_of(lengths, world)
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


def a_gate_multiplies_the_merged_result(world):
    q, k, v, do, _ = inputs(24, world, batch=1)
    for gate in (torch.randn_like(do), torch.randn(do.shape[:-1])):
        dist.broadcast(gate, 0)
        leaves = [x.clone().requires_grad_() for x in (q, k, v, gate)]
        out = fa3.attention(*leaves[:3], gate=leaves[3], causal=True)
        gradients = torch.autograd.grad(out, leaves, do)
        expected = [distributed.shard(x) for x in (out, *gradients)]
        parts = [distributed.shard(x.detach()).requires_grad_() for x in leaves]
        for method in ("ring", "all_gather", "ulysses"):
            options = {"method": method, "causal": True}
            mine = distributed.attention(*parts[:3], gate=parts[3], **options)
            got = [mine, *torch.autograd.grad(mine, parts, distributed.shard(do))]
            for x, y in zip(got, expected, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    with pytest.raises(fa3.InvalidArgument, match="gate: expected a tensor"):
        distributed.attention(*parts[:3], gate=parts[3][:, :1])


CASES = [
    ranks_that_write_to_each_other_get_what_messages_bring,
    every_method_equals_the_oracle,
    errors_in_16_bits_are_those_of_one_process,
    gradients_of_16_bits_still_add_up_in_float32,
    gradients_of_the_lse_equal_one_process,
    both_passes_repeat_bit_by_bit,
    infinite_sinks_take_nothing_or_everything,
    a_gate_multiplies_the_merged_result,
    calls.parts_make_the_whole,
    calls.a_group_may_be_some_ranks_or_a_mesh,
    calls.ranks_that_disagree_learn_it_by_one_sentence,
    calls.a_kind_of_call_is_agreed_upon_once,
    calls.ranks_that_differ_later_learn_it_too,
    dropout_is_that_of_one_process,
    a_drawn_seed_is_the_first_ranks,
    calls.lazily_negated_tensors_are_read_with_their_signs,
    calls.autocast_holds,
    calls.a_plan_says_why,
    calls.names_of_ring_flash_attn_give_the_same,
]


def run_rank(rank, world, store):
    join(rank, world, store)
    run_cases(CASES, world)
    dist.destroy_process_group()

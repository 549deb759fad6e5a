# SPDX-License-Identifier: Apache-2.0
"""fa3.mla.attention against float64, for every format of rows, at the edges."""

import numpy as np
import pytest
from mla_cases import BF16, FORMATS, Cache, assert_close, attend

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import mla  # noqa: E402

ENGINES = ["cpu", "reference"]
every_format = pytest.mark.parametrize("rows", FORMATS)
every_engine = pytest.mark.parametrize("engine", ENGINES)


def queries(*shape, dtype=np.float32, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def check_sparse(q, caches, lists, results, sink=None, rtol=2e-5):
    """lists: per (b, row), the slots of each cache that count."""
    out, lse, largest = results
    for (b, row), slots in lists.items():
        keys = np.concatenate([c.keys(s) for c, s in zip(caches, slots, strict=True)])
        expected = attend(q[b, row], keys, sink=sink)
        assert_close(out[b, row], expected[0], str(q.dtype))
        np.testing.assert_allclose(lse[b, :, row], expected[1], rtol=rtol, atol=rtol)
        np.testing.assert_allclose(largest[b, :, row], expected[2], rtol=rtol, atol=rtol)


@every_engine
@every_format
@pytest.mark.parametrize(
    "page_size, heads, gap", [(1, 3, 0), (2, 128, 1), (53, 16, 0), (64, 65, 2)]
)
def test_dense_calls_are_what_the_rows_stand_for(rows, page_size, heads, gap, engine):
    lengths = [0, 1, 77, 130]
    each = -(-130 // page_size)
    cache = Cache(rows, 4 * each + 1, page_size, gap=gap)
    table = np.random.default_rng(2).permutation(4 * each + 1)[: 4 * each].reshape(4, each)
    table = np.hstack([table, np.full((4, 1), 2147480000)]).astype(np.int32)
    for b, length in enumerate(lengths):  # behind the lengths: NaN, and pages that are not there
        for j in range(length, each * page_size):
            cache.spoil(int(table[b, j // page_size]) * page_size + j % page_size)
        table[b, -(-length // page_size) :] = 2**31 - 1
    q = queries(4, 3, heads, cache.dim)
    out, lse, largest = mla.attention(
        q,
        **cache.arguments(),
        page_table=table,
        seqused_k=np.array(lengths, np.int32),
        causal=True,
        engine=engine,
        return_lse=True,
        return_max=True,
    )
    for b, length in enumerate(lengths):
        for row in range(3):
            seen = range(max(length - 2 + row, 0))
            slots = [int(table[b, j // page_size]) * page_size + j % page_size for j in seen]
            expected = attend(q[b, row], cache.keys(slots))
            assert_close(out[b, row], expected[0], "float32")
            np.testing.assert_allclose(lse[b, :, row], expected[1], rtol=2e-5, atol=2e-5)
            np.testing.assert_allclose(largest[b, :, row], expected[2], rtol=2e-5, atol=2e-5)


@every_engine
@pytest.mark.parametrize("new", [1, 17, 512])
def test_many_new_tokens_are_causal_among_themselves(new, engine):
    if engine == "reference" and new == 512:
        new = 40  # the same paths, in less time
    length = 2100 if new < 512 else 600
    cache = Cache("group128", 1, length)
    q = queries(1, new, 2, 576)
    used = np.array([length], np.int32)
    table = np.zeros((1, 1), np.int32)
    call = {"page_table": table, "seqused_k": used, "causal": True, "engine": engine}
    out, lse = mla.attention(q, **cache.arguments(), **call, return_lse=True)
    keys = cache.keys(range(length))
    for row in {0, new // 2, new - 1}:
        expected = attend(q[0, row], keys[: length - new + row + 1])
        assert_close(out[0, row], expected[0], "float32")
        np.testing.assert_allclose(lse[0, :, row], expected[1], rtol=2e-5, atol=2e-5)


@every_engine
def test_packed_queries_belong_to_their_sequences(engine):
    cache = Cache("token", 6, 4)
    starts = np.array([0, 3, 3, 5], np.int32)
    q = queries(7, 4, 576)  # two rows that no sequence owns
    table = np.array([[0, 1], [2, 3], [4, 5]], np.int32)
    out, lse = mla.attention(
        q,
        **cache.arguments(),
        page_table=table,
        seqused_k=np.array([8, 5, 1], np.int32),
        cu_seqlens_q=starts,
        causal=True,
        engine=engine,
        return_lse=True,
    )
    for row, seen in enumerate([range(6), range(7), range(8), [], [16]]):
        expected = attend(q[row], cache.keys(seen))
        assert_close(out[row], expected[0], "float32")
        np.testing.assert_allclose(lse[:, row], expected[1], rtol=2e-5, atol=2e-5)
    assert not out[5:].any() and np.all(lse[:, 5:] == -np.inf)


INVALID = [-1, -(2**31), -123456, 2**31 - 1, 2147480000]


@every_engine
@every_format
def test_indices_that_name_no_row_are_skipped(rows, engine):
    cache, top = Cache(rows, 5, 7), 9
    cache.spoil(34)
    q = queries(2, 2, 3, cache.dim)
    indices = np.full((2, 2, top), -1, np.int32)
    indices[0, 0] = [*INVALID, 3, 3, 20, 35]  # 35 is the first that there is not; 3 counts twice
    indices[0, 1, -1] = 33  # a single one, in the last place
    indices[1, 0] = [0, 1, 2, 34, 34, 34, 34, 34, 34]  # behind the count: NaN
    counts = np.array([[top + 5, top], [3, 0]], np.int32)
    lists = {(0, 0): [[3, 3, 20]], (0, 1): [[33]], (1, 0): [[0, 1, 2]], (1, 1): [[]]}
    call = {"indices": indices, "engine": engine, "return_lse": True, "return_max": True}
    results = mla.attention(q, **cache.arguments(), **call, index_count=counts)
    check_sparse(q, [cache], lists, results)
    assert not results[0][1, 1].any() and np.all(results[1][1, :, 1] == -np.inf)


@every_engine
def test_counts_may_be_one_a_sequence_or_negative(engine):
    cache = Cache("group128", 3, 64)
    q = queries(3, 2, 4, 576)
    indices = np.random.default_rng(3).integers(0, 192, (3, 2, 65)).astype(np.int32)
    counts = np.array([64, -7, 1], np.int32)
    call = {"indices": indices, "engine": engine, "return_lse": True, "return_max": True}
    results = mla.attention(q, **cache.arguments(), **call, index_count=counts)
    lists = {(b, row): [indices[b, row, : max(counts[b], 0)]] for b in range(3) for row in range(2)}
    check_sparse(q, [cache], lists, results)


@every_engine
@pytest.mark.parametrize(
    "first, second", [("v4", "v4"), ("group128", "latent"), ("token", "tensor")]
)
def test_two_caches_share_one_softmax(first, second, engine):
    caches = [Cache(first, 3, 64), Cache(second, 40, 2, seed=5)]
    q = queries(2, 1, 5, caches[0].dim)
    indices = np.array([[[5, 190, -1]], [[-1, -1, -1]]], np.int32)
    extra = np.array([[[79, 0]], [[80, 7]]], np.int32)
    sink = np.array([-np.inf, np.inf, 0.5, 1e4, -1e4], np.float32)
    out, lse, largest = mla.attention(
        q,
        **caches[0].arguments(),
        **caches[1].arguments("extra_"),
        indices=indices,
        extra_indices=extra,
        sink=sink,
        lse_with_sink=False,
        engine=engine,
        return_lse=True,
        return_max=True,
    )
    lists = {(0, 0): [[5, 190], [79, 0]], (1, 0): [[], [7]]}
    check_sparse(q, caches, lists, (out, lse, largest), sink=sink.astype(np.float64))


@every_engine
def test_the_extra_cache_alone_may_have_keys(engine):
    caches = [Cache("v4", 2, 3), Cache("v4", 2, 3, seed=9)]
    q = queries(1, 1, 4, 512)
    nothing = np.zeros((1, 1, 0), np.int32)
    some = np.array([[[4, 1, 1, 0]]], np.int32)
    results = mla.attention(
        q,
        **caches[0].arguments(),
        **caches[1].arguments("extra_"),
        indices=nothing,
        extra_indices=some,
        extra_index_count=np.array([2], np.int32),
        engine=engine,
        return_lse=True,
        return_max=True,
    )
    check_sparse(q, caches, {(0, 0): [[], [4, 1]]}, results)


@every_engine
def test_a_sink_is_in_the_lse_unless_it_is_asked_to_stay_out(engine):
    cache = Cache("group128", 2, 8)
    q, sink = queries(1, 2, 3, 576), np.array([0.5, -np.inf, np.inf], np.float32)
    indices = np.array([[[1, 9], [-1, -1]]], np.int32)
    call = {"indices": indices, "sink": sink, "return_lse": True, "engine": engine}
    _, inside = mla.attention(q, **cache.arguments(), **call)
    _, outside = mla.attention(
        q, **cache.arguments(), **call, lse_with_sink=False, empty_lse=np.inf
    )
    bare = attend(q[0, 0], cache.keys([1, 9]))[1]
    np.testing.assert_allclose(inside[0, :2, 0], np.logaddexp(bare, sink)[:2], rtol=1e-5)
    np.testing.assert_array_equal(inside[0, :, 1], sink)
    assert inside[0, 2, 0] == np.inf
    np.testing.assert_allclose(outside[0, :, 0], bare, rtol=1e-5)
    assert np.all(outside[0, :, 1] == np.inf)


@every_engine
def test_a_sink_of_nan_gives_nan_for_its_head_alone(engine):
    cache = Cache("group128", 1, 4)
    sink = np.array([0, np.nan], np.float32)
    indices = np.array([[[1, 2]]], np.int32)
    call = {"indices": indices, "sink": sink, "return_lse": True, "engine": engine}
    out, lse = mla.attention(queries(1, 1, 2, 576), **cache.arguments(), **call)
    assert np.isfinite(out[0, 0, 0]).all() and np.isfinite(lse[0, 0])
    assert np.isnan(out[0, 0, 1]).all() and np.isnan(lse[0, 1, 0])


@every_engine
@every_format
def test_nan_in_a_row_reaches_the_queries_that_see_it(rows, engine):
    cache = Cache(rows, 2, 4)
    cache.spoil(6)
    indices = np.array([[[0, 6]], [[0, 7]]], np.int32)
    out = mla.attention(
        queries(2, 1, 3, cache.dim), **cache.arguments(), indices=indices, engine=engine
    )
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()


@every_engine
def test_the_maximum_is_nan_where_a_score_is(engine):
    cache = Cache("latent", 1, 4)
    cache.spoil(0)  # finite keys come later
    indices = np.array([[[0, 1, 2]], [[1, 2, 3]]], np.int32)
    _, largest = mla.attention(
        queries(2, 1, 3, 576), cache.array, indices=indices, engine=engine, return_max=True
    )
    assert np.isnan(largest[0]).all() and np.isfinite(largest[1]).all()


@every_engine
def test_scales_of_any_size_are_multiplied(engine):
    cache = Cache("group128", 1, 6)
    sizes = [0.0, 2.0**-126, 2.0**-140, 2.0**100]
    for slot, size in enumerate(sizes):
        _, scales, _ = cache.place(slot)
        cache.memory[scales : scales + 16] = np.full(4, size, np.float32).view(np.uint8)
    q = queries(4, 1, 2, 576)
    indices = np.arange(4, dtype=np.int32).reshape(4, 1, 1)
    out, lse = mla.attention(
        q, **cache.arguments(), indices=indices, engine=engine, return_lse=True
    )
    for b in range(4):
        expected, expected_lse, _ = attend(q[b, 0], cache.keys([b]))
        np.testing.assert_allclose(out[b, 0], expected, rtol=1e-6, atol=1e-44)
        np.testing.assert_allclose(lse[b, :, 0], expected_lse, rtol=1e-4)


@every_engine
def test_e8m0_bytes_of_both_ends_are_powers_of_two(engine):
    cache = Cache("v4", 1, 2)
    _, scales, _ = cache.place(0)
    cache.memory[scales : scales + 7] = [0, 1, 127, 254, 127, 126, 128]
    cache.memory[cache.place(0)[0] : cache.place(0)[0] + 448] = 0x38  # 1
    row = mla.gather(cache.array, np.array([0], np.int32), dtype="float32")
    np.testing.assert_array_equal(row[0], cache.key(0).astype(np.float32))


@every_engine
def test_scores_of_any_size_keep_their_order(engine):
    cache = Cache("latent", 1, 4, dim=512)
    for row, value in enumerate([-1e16, -2e16, -1e16, 1.0]):
        cache.array[0, row] = value
    q = np.full((1, 1, 2, 512), 1e16, np.float32)
    indices = np.array([[[0, 1, 2]]], np.int32)
    out, lse = mla.attention(
        q, cache.array, indices=indices, scale=1.0, engine=engine, return_lse=True
    )
    expected, expected_lse, _ = attend(q[0, 0], cache.keys([0, 1, 2]), scale=1.0)
    np.testing.assert_allclose(out[0, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(lse[0, :, 0], expected_lse, rtol=1e-5)


@every_engine
@pytest.mark.parametrize("rows", ["group128", "latent", "tensor", "token"])
def test_queries_without_rope_do_not_read_that_of_the_rows(rows, engine):
    cache = Cache(rows, 2, 5)
    if rows == "latent":
        cache.array[..., 512:] = np.nan
    else:
        for slot in range(10):
            rope = cache.place(slot)[2]
            cache.memory[rope : rope + (64 if rows == "tensor" else 128)] = 0xFF
    q = queries(1, 1, 4, 512)
    slots = np.array([[[1, 8, 2]]], np.int32)
    out = mla.attention(q, **cache.arguments(), indices=slots, engine=engine)
    expected = attend(q[0, 0], cache.keys([1, 8, 2])[:, :512])
    assert_close(out[0, 0], expected[0], "float32")


@every_engine
@pytest.mark.parametrize("rows", ["latent", "tensor"])
def test_rope_channels_may_lie_in_another_tensor(rows, engine):
    cache = Cache(rows, 3, 4)
    q = queries(2, 2, 3, 576, dtype=BF16)
    indices = np.random.default_rng(1).integers(0, 12, (2, 2, 6)).astype(np.int32)
    call = {**cache.arguments(), "indices": indices, "engine": engine}
    together = mla.attention(q, **call)
    call["cache"] = np.ascontiguousarray(cache.array[..., :512])
    call["rope"] = np.ascontiguousarray(cache.array[..., 512:])
    parts = q[..., :512], np.ascontiguousarray(q[..., 512:])
    np.testing.assert_array_equal(mla.attention(parts, **call), together)


@every_engine
def test_empty_batches_and_empty_results_are_well(engine):
    cache = Cache("group128", 2, 3)
    table, none = np.zeros((0, 2), np.int32), np.zeros(0, np.int32)
    call = {"engine": engine, "return_lse": True}
    out, lse = mla.attention(
        queries(0, 2, 4, 576), **cache.arguments(), page_table=table, seqused_k=none, **call
    )
    assert out.shape == (0, 2, 4, 512) and lse.shape == (0, 4, 2)
    indices = np.zeros((0, 8), np.int32)
    out, lse = mla.attention(queries(0, 4, 576), **cache.arguments(), indices=indices, **call)
    assert out.shape == (0, 4, 512) and lse.shape == (4, 0)
    indices = np.zeros((3, 0), np.int32)
    out, lse = mla.attention(queries(3, 4, 576), **cache.arguments(), indices=indices, **call)
    assert not out.any() and np.all(lse == -np.inf)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_threads_change_no_bit_and_results_have_the_type_of_q(dtype):
    cache = Cache("group128", 40, 64)
    q = queries(2, 5, 33, 576, dtype=BF16 if dtype == "bfloat16" else np.float16)
    table = np.arange(40, dtype=np.int32).reshape(2, 20)
    call = {"page_table": table, "seqused_k": np.array([1280, 1100], np.int32), "causal": True}
    one = mla.attention(q, **cache.arguments(), **call, num_threads=1)
    two = mla.attention(q, **cache.arguments(), **call, num_threads=2)
    assert one.dtype == q.dtype
    np.testing.assert_array_equal(one.view(np.uint16), two.view(np.uint16))
    expected = attend(q[0, 4], cache.keys(range(1280)))
    assert_close(one[0, 4], expected[0], dtype)


def test_a_sequence_does_not_depend_on_its_neighbours():
    cache = Cache("token", 8, 64)
    q = queries(4, 1, 16, 576)
    table = np.arange(8, dtype=np.int32).reshape(4, 2)
    used = np.array([128, 5, 77, 100], np.int32)
    both = mla.attention(q, **cache.arguments(), page_table=table, seqused_k=used)
    order = [2, 0]
    some = mla.attention(
        q[order], **cache.arguments(), page_table=table[order], seqused_k=used[order]
    )
    np.testing.assert_array_equal(some, both[order])


def test_slots_behind_two_gigabytes_are_reached():
    pages, size = 3_300_000, 656
    memory = np.zeros(pages * size, np.uint8)  # untouched pages cost no memory
    cache = memory.reshape(pages, 1, size)
    last = np.array([pages - 1], np.int32)
    mla.append(cache, queries(1, 512), queries(1, 64, seed=3), slots=last)
    out = mla.attention(queries(1, 1, 2, 576), cache, indices=last.reshape(1, 1, 1))
    np.testing.assert_allclose(out[0, 0, 0], mla.gather(cache, last, dtype="float32")[0, :512])
    assert out.any()


REFUSALS = {
    "192 heads": ({"q": queries(1, 1, 192, 576)}, "1 to 128 heads over one latent head, got 192"),
    "head dim": ({"q": queries(1, 1, 2, 192)}, "head dim 576, that of the rows of cache, got 192"),
    "row bytes": ({"cache": np.zeros((2, 4, 640), np.uint8)}, "656, 584, 644, 576 or 512 bytes"),
    "wide rows": ({"rows": "group128", "cache": queries(2, 4, 576)}, "float8_e4m3, got float32"),
    "apart": (
        {"cache": np.zeros((2, 4, 704), np.uint8)[..., :656]},
        "rows 656 bytes apart, got 704",
    ),
    "page stride": ({}, None),
    "heads": ({"cache": np.zeros((2, 4, 8, 656), np.uint8)}, "1 latent head, got 8"),
    "descale": ({"descale": np.ones(1, np.float32)}, "descale: expected none"),
    "no descale": ({"cache": np.zeros((2, 4, 576), np.uint8)}, "float32 .1. or .2. for rows"),
    "zero": (
        {"cache": np.zeros((2, 4, 576), np.uint8), "descale": np.array([1, 0], np.float32)},
        "^descale: expected finite scales > 0, got 0 at 1",
    ),
    "rows of one scale": (
        {"rows": "tensor"},
        "^cache: expected rows of 576 or 512 bytes, since they have one scale a tensor, got 656",
    ),
    "neither": ({"indices": None}, "indices, page_table: expected one of them, got none"),
    "both": ({"page_table": np.zeros((1, 1), np.int32)}, "expected one of them, got both"),
    "int64": ({"indices": np.zeros((1, 1, 3), np.int64)}, "indices: expected int32, got int64"),
    "shape": ({"indices": np.zeros((1, 2, 3), np.int32)}, "indices: expected the extent of q"),
    "causal": ({"causal": True}, "causal: expected 0 with indices"),
    "lengths": ({"seqused_k": np.zeros(1, np.int32)}, "seqused_k: expected none with indices"),
    "extra": ({"extra_indices": np.zeros((1, 1, 1), np.int32)}, "none without extra_cache"),
    "extra rope": ({"extra_rope": np.zeros((1, 1, 64), BF16)}, "extra_rope: expected none without"),
    "extra descale": ({"extra_descale": np.ones(1, np.float32)}, "extra_descale: expected none"),
    "extra count": (
        {"extra_index_count": np.ones(1, np.int32)},
        "extra_index_count: expected none",
    ),
    "extra cache": (
        {"extra_cache": np.zeros((1, 1, 656), np.uint8)},
        "extra_indices: expected with extra_cache, got none",
    ),
    "scale": ({"scale": 0.0}, "scale: expected a finite number > 0"),
    "empty_lse": ({"empty_lse": 0.0}, "empty_lse: expected inf or -inf"),
    "rows": ({"rows": "fp8"}, "rows: expected one of auto, latent"),
    "engine": ({"engine": "standard"}, "standard: no kernel for latent caches"),
    "hopper": ({"engine": "hopper"}, "hopper"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_wrong_calls_are_refused_by_a_sentence(name):
    changed, sentence = REFUSALS[name]
    if sentence is None:  # a reshape of such pages would copy them
        memory = np.zeros(2 * (4 * 656 + 8), np.uint8)
        changed = {
            "cache": np.lib.stride_tricks.as_strided(memory, (2, 4, 656), (4 * 656 + 8, 656, 1))
        }
        sentence = "multiples of 16 bytes, got a stride of 2632"
    call = {
        "q": queries(1, 1, 2, 576),
        "cache": np.zeros((2, 4, 656), np.uint8),
        "indices": np.zeros((1, 1, 3), np.int32),
        **changed,
    }
    with pytest.raises((fa3.InvalidArgument, fa3.Unsupported), match=sentence):
        mla.attention(call.pop("q"), call.pop("cache"), **call)


def test_wrong_numbers_of_a_dense_call_are_refused_on_the_cpu():
    cache = Cache("group128", 2, 4)
    call = {"page_table": np.array([[0, 5]], np.int32), **cache.arguments()}
    q = queries(1, 1, 2, 576)
    with pytest.raises(fa3.InvalidArgument, match="page_table: expected a page in"):
        mla.attention(q, **call, seqused_k=np.array([5], np.int32))
    with pytest.raises(fa3.InvalidArgument, match="seqused_k: expected a length in"):
        mla.attention(q, **call, seqused_k=np.array([9], np.int32))


def test_tensors_of_a_gpu_are_refused():
    """By descriptions of device memory that nobody reads."""
    q, cache, indices, out = (
        (0, kind, 2, 0, shape, strides)
        for kind, shape, strides in [
            ("bfloat16", (2, 3, 576), (1728, 576, 1)),
            ("float8_e4m3fn", (4, 64, 656), (41984, 656, 1)),
            ("int32", (2, 8), (8, 1)),
            ("bfloat16", (2, 3, 512), (1536, 512, 1)),
        ]
    )
    of_dense = (None, None, None)
    of_extra = (None, None, None, 0, None, None, None)
    numbers = (0, None, False, True, False, 0, False, 0, 0)
    call = (q, None, cache, None, None, 0, *of_dense, indices, None, *of_extra, *numbers)
    with pytest.raises(fa3.Unsupported, match="no engine can run this call"):
        fa3._native.mla_plan(*call, out, None, None)


def test_the_plan_says_what_runs_and_what_it_needs():
    cache = Cache("v4", 2, 4)
    indices = np.zeros((1, 1, 3), np.int32)
    text = mla.plan(queries(1, 1, 2, 512), cache.array, indices=indices, num_threads=1)
    assert "engine cpu" in text and "indices say which" in text

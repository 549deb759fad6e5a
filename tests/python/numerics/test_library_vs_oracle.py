# SPDX-License-Identifier: Apache-2.0
"""Every CPU engine, through the C ABI, against the numpy oracle, which shares no code with them.

Needs numpy and the built library only. Outputs are filled with NaN beforehand, so an element that
the library forgets fails; tolerances come from error_model.py.
"""

import itertools

import c_abi
import error_model
import numpy as np
import oracle
import pytest
from cases import CASES, from_bits, inputs_for, rounded, to_bits
from checks import assert_within

CPU_ENGINES = ("cpu", "reference", "standard")
DTYPES = ("float32", "float16", "bfloat16")
INVALID_ARGUMENT, UNSUPPORTED = 1, 2


@pytest.fixture(params=CPU_ENGINES)
def engine(request):
    if request.param not in c_abi.engines():
        pytest.skip(f"this build has no engine {request.param}")
    return request.param


def abi_options(engine, options, **more):
    left, right = options.get("window", (-1, -1))
    kept = {name: options[name] for name in ("scale", "softcap", "causal") if name in options}
    return {
        **kept,
        "window_left": left,
        "window_right": right,
        "window_shift": options.get("window_shift", 0),
        "attention_chunk": options.get("attention_chunk", 0),
        "engine": c_abi.ENGINES[engine],
        **more,
    }


def unwritten(shape, dtype):
    return to_bits(np.full(shape, np.nan), dtype)


def float32_or_none(x):
    return None if x is None else x.astype(np.float32)


def run_forward(engine, x, dtype, out_dtype=None, view=lambda a: a, **more):
    """o and lse as float64; `view` may re-arrange the memory of an input or output."""
    out_dtype = out_dtype or dtype
    o = view(unwritten((*x.q.shape[:3], x.v.shape[3]), out_dtype))
    lse = np.full((x.q.shape[0], x.q.shape[2], x.q.shape[1]), np.nan, np.float32)
    q, k, v = ((view(to_bits(a, dtype)), dtype) for a in (x.q, x.k, x.v))
    sink = float32_or_none(x.options.get("sink"))
    options = abi_options(engine, x.options, **more)
    c_abi.forward(options, q=q, k=k, v=v, o=(o, out_dtype), lse=lse, sink=sink)
    return from_bits(o, out_dtype), lse.astype(np.float64)


def run_backward(engine, x, o, lse, dtype, view=lambda a: a, **more):
    """dq, dk, dv, dsink as float64; o and lse are the forward's."""
    dq, dk, dv = (view(unwritten(a.shape, dtype)) for a in (x.q, x.k, x.v))
    sink = float32_or_none(x.options.get("sink"))
    dsink = None if sink is None else np.full_like(sink, np.nan)
    named = {"q": x.q, "k": x.k, "v": x.v, "d_o": x.do, "o": o}
    inputs = {name: (view(to_bits(a, dtype)), dtype) for name, a in named.items()}
    outputs = {"dq": (dq, dtype), "dk": (dk, dtype), "dv": (dv, dtype), "dsink": dsink}
    options = abi_options(engine, x.options, **more)
    c_abi.backward(options, **inputs, **outputs, lse=lse.astype(np.float32), sink=sink)
    return *(from_bits(a, dtype) for a in (dq, dk, dv)), dsink


def bounds_for(engine, x, dtype, **kinds):
    score_dtype = error_model.score_dtype_of(engine, dtype)
    inputs = (x.q, x.k, x.v, x.do)
    return error_model.bounds(*inputs, dtype=dtype, score_dtype=score_dtype, **kinds, **x.options)


def check_both_passes(engine, x, dtype, **more):
    bound = bounds_for(engine, x, dtype)
    o, lse = run_forward(engine, x, dtype, **more)
    expected_o, expected_lse = oracle.forward(x.q, x.k, x.v, **x.options)
    assert_within("o", o, expected_o, bound.o)
    assert_within("lse", lse, expected_lse, bound.lse)
    gradients = run_backward(engine, x, o, lse, dtype, **more)
    expected = oracle.backward(x.q, x.k, x.v, x.do, **x.options)
    for name, actual, exact in zip(("dq", "dk", "dv", "dsink"), gradients, expected, strict=True):
        if exact is not None:
            assert_within(name, actual, exact, getattr(bound, name))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward_equal_the_oracle(engine, name, dtype):
    check_both_passes(engine, inputs_for(name, dtype), dtype)


def as_bhsd(a):
    """The array's values in (b, h, s, d) memory, seen as (b, s, h, d)."""
    return np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)


def as_slice_of_larger(a):
    """The array's values inside a larger array, whose other elements are all ones in binary
    (NaN)."""
    b, s, h, d = a.shape
    larger = np.full((b + 1, s + 3, h + 2, d + 5), -1, np.int64).view(np.uint8)
    larger = np.frombuffer(larger.tobytes(), a.dtype)[: (b + 1) * (s + 3) * (h + 2) * (d + 5)]
    inner = larger.copy().reshape(b + 1, s + 3, h + 2, d + 5)[1:, 2:-1, 1:-1, 3 : 3 + d]
    inner[...] = a
    return inner


@pytest.mark.parametrize("view", [as_bhsd, as_slice_of_larger])
@pytest.mark.parametrize("name", ["gqa", "everything"])
def test_strides_change_nothing(engine, name, view):
    x = inputs_for(name, "bfloat16")
    plain = run_forward(engine, x, "bfloat16")
    strided = run_forward(engine, x, "bfloat16", view=view)
    for a, b in zip(plain, strided, strict=True):
        np.testing.assert_array_equal(a, b)
    gradients = run_backward(engine, x, *plain, "bfloat16")
    strided_gradients = run_backward(engine, x, *plain, "bfloat16", view=view)
    for a, b in zip(gradients, strided_gradients, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_output_may_be_float32(engine, dtype):
    x = inputs_for("everything", dtype)
    o, _ = run_forward(engine, x, dtype, out_dtype="float32")
    expected, _ = oracle.forward(x.q, x.k, x.v, **x.options)
    bound = bounds_for(engine, x, dtype, out_dtype="float32")
    assert_within("o", o, expected, bound.o)


@pytest.mark.parametrize("num_threads", [2, 3])
def test_number_of_threads_never_changes_the_result(engine, num_threads):
    x = inputs_for("everything", "float32")
    one = run_forward(engine, x, "float32", num_threads=1)
    many = run_forward(engine, x, "float32", num_threads=num_threads)
    one += run_backward(engine, x, *one, "float32", num_threads=1)
    many += run_backward(engine, x, *many, "float32", num_threads=num_threads)
    for a, b in zip(one, many, strict=True):
        np.testing.assert_array_equal(a, b)


CU_Q, CU_K = np.array([0, 13, 13, 50, 51], np.int32), np.array([0, 20, 31, 31, 90], np.int32)
USED_Q, USED_K = np.array([10, 0, 37, 1], np.int32), np.array([20, 1, 0, 33], np.int32)


@pytest.mark.parametrize("used", [False, True], ids=["whole", "seqused"])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "window": (9, -1), "softcap": 3.0, "sink": np.linspace(-1, 1, 4)}],
    ids=["plain", "everything"],
)
def test_packed_sequences_equal_the_oracle(engine, used, options):
    rng = np.random.default_rng(5)
    rows_q, rows_k = 55, 90  # q: four rows past the last sequence
    sizes = {"q": (rows_q, 4, 32), "k": (rows_k, 2, 32), "v": (rows_k, 2, 24)}
    x = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    do = rng.standard_normal((rows_q, 4, 24)).astype(np.float32)
    packing = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}
    if used:
        packing |= {"seqused_q": USED_Q, "seqused_k": USED_K}
        for side, cu, n in (("q", CU_Q, USED_Q), ("kv", CU_K, USED_K)):
            for start, end, count in zip(cu[:-1], cu[1:], n, strict=True):
                for name in side:
                    x[name][start + count : end] = np.nan
                if side == "q":
                    do[start + count : end] = np.nan
    sink = float32_or_none(options.get("sink"))
    more = abi_options(engine, options, **packing)
    o, lse = np.full((rows_q, 4, 24), np.nan, np.float32), np.full((4, rows_q), np.nan, np.float32)
    c_abi.forward(more, **x, o=o, lse=lse, sink=sink)
    exact = {name: a.astype(np.float64) for name, a in x.items()}
    expected_o, expected_lse = oracle.forward_varlen(*exact.values(), **packing, **options)
    expected_o = np.where(np.isneginf(expected_lse).T[..., None], 0.0, expected_o)
    np.testing.assert_allclose(o, expected_o, rtol=0, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-5)

    gradients = {f"d{name}": np.full_like(a, np.nan) for name, a in x.items()}
    dsink = None if sink is None else np.full_like(sink, np.nan)
    c_abi.backward(more, **x, o=o, lse=lse, sink=sink, d_o=do, **gradients, dsink=dsink)
    *expected, expected_dsink = oracle.backward_varlen(*exact.values(), do, **packing, **options)
    for name, exact_gradient in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradients[name], exact_gradient, rtol=0, atol=1e-4, err_msg=name)
    if sink is not None:
        np.testing.assert_allclose(dsink, expected_dsink, rtol=0, atol=1e-4)


def test_merge_of_split_keys_equals_the_whole():
    x = inputs_for("plain", "float32")
    cuts = [0, 5, 5, 20, 33]
    parts = [oracle.forward(x.q, x.k[:, a:b], x.v[:, a:b]) for a, b in itertools.pairwise(cuts)]
    o_partial, lse_partial = (np.stack(p).astype(np.float32) for p in zip(*parts, strict=True))
    o = np.full(o_partial.shape[1:], np.nan, np.float32)
    lse = np.full(lse_partial.shape[1:], np.nan, np.float32)
    c_abi.merge(o_partial=o_partial, lse_partial=lse_partial, o=o, lse=lse)
    expected_o, expected_lse = oracle.forward(x.q, x.k, x.v)
    np.testing.assert_allclose(o, expected_o, rtol=0, atol=4e-6)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=4e-6)


@pytest.mark.parametrize(
    "change, status, words",
    [
        ({"causal": 2}, INVALID_ARGUMENT, "causal: expected 0 or 1, got 2"),
        ({"scale": 0.0}, INVALID_ARGUMENT, "scale: expected a finite number > 0"),
        ({"window_left": -2}, INVALID_ARGUMENT, "window_left: expected -1"),
        ({"softcap": -1.0}, INVALID_ARGUMENT, "softcap: expected 0"),
        ({"engine": 99}, INVALID_ARGUMENT, "engine: expected"),
        ({"engine": c_abi.ENGINES["hopper"]}, UNSUPPORTED, "no engine"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_refused_call_says_why_and_writes_nothing(change, status, words):
    x = inputs_for("plain", "float32")
    q, k, v = (a.astype(np.float32) for a in (x.q, x.k, x.v))
    o = np.full_like(q, 7.0)
    with pytest.raises(c_abi.CallFailed, match=words) as failure:
        c_abi.forward(change, q=q, k=k, v=v, o=o)
    assert failure.value.status == status
    assert (o == 7.0).all()


def test_bfloat16_helper_rounds_to_nearest_even():
    exact = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -2.5, np.inf, np.nan])
    expected = np.array([1.0, 1.0, 1 + 2 * 2.0**-7, -2.5, np.inf, np.nan])
    np.testing.assert_array_equal(rounded(exact, "bfloat16"), expected)

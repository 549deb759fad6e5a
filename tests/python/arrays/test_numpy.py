# SPDX-License-Identifier: Apache-2.0
"""fa3.attention and its relatives on NumPy arrays and on anything with __dlpack__."""

import inspect
import threading

import error_model
import numpy as np
import oracle
import pytest
from cases import CASES, inputs_for
from checks import assert_within

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes gives numpy its bfloat16")

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def as_type(x, dtype):
    """q, k, v, do and options of inputs_for() as arrays of `dtype`."""
    options = dict(x.options)
    if options.get("sink") is not None:
        options["sink"] = options["sink"].astype(np.float32)
    return [a.astype(DTYPES[dtype]) for a in (x.q, x.k, x.v, x.do)], options


@pytest.fixture
def qkv():
    x = inputs_for("gqa", "float32")
    return [a.astype(np.float32) for a in (x.q, x.k, x.v)]


@pytest.mark.parametrize(
    "given, means",
    [
        ({"window": None, "softcap": None, "attention_chunk": None, "causal": None}, {}),
        ({"window": [5, None], "engine": None}, {"window": (5, -1)}),
        ({"window": (None, 0)}, {"window": (-1, 0)}),
        ({"window": (None, None), "softcap": 2.0}, {"softcap": 2.0}),
    ],
)
def test_an_option_or_a_side_of_the_window_may_be_none(qkv, given, means):
    q, k, v = qkv
    out, lse = fa3.attention(q, k, v, return_lse=True, **means)
    assert np.array_equal(fa3.attention(q, k, v, **given), out)
    expected = fa3.attention_backward(out, q, k, v, out, lse, **means)
    gradients = fa3.attention_backward(out, q, k, v, out, lse, **given)
    for gradient, same in zip(gradients[:3], expected[:3], strict=True):
        assert np.array_equal(gradient, same)


MASKED = {
    "attention": lambda x, q: fa3.attention(x, q, q),
    "attention of keys": lambda x, q: fa3.attention(q, x, q),
    "an output": lambda x, q: fa3.attention(q, q, q, out=x),
    "a sink": lambda x, q: fa3.attention(q, q, q, sink=x[0, 0, :, 0]),
    "lengths": lambda x, q: fa3.attention(q, q, q, seqused_k=x[:, 0, 0, 0].astype(np.int32)),
    "a seed": lambda x, q: fa3.dropout_mask(0.5, np.ma.array([1, 2]), (1, 1, 2, 2)),
    "gradients": lambda x, q: fa3.attention_backward(x, q, q, q, q, q[..., 0].copy()),
    "merge": lambda x, q: fa3.merge(x[None], q[None, ..., 0].transpose(0, 1, 3, 2).copy()),
    "quantize": lambda x, q: fa3.quantize(x),
}


@pytest.mark.parametrize("name", MASKED)
def test_an_array_with_a_mask_of_its_own_is_refused(qkv, name):
    """NumPy's other functions would skip what the mask hides; the library reads it."""
    q = qkv[1]
    with pytest.raises(fa3.InvalidArgument, match="without a mask, got a numpy.ma.MaskedArray"):
        MASKED[name](np.ma.masked_less(q, 0), q)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward_equal_the_oracle(name, dtype):
    x = inputs_for(name, dtype)
    (q, k, v, do), options = as_type(x, dtype)
    out, lse = fa3.attention(q, k, v, return_lse=True, **options)
    gradients = fa3.attention_backward(do, q, k, v, out, lse, **options)
    assert out.dtype == q.dtype and lse.dtype == np.float32
    score_dtype = error_model.score_dtype_of("auto", dtype)
    bound = error_model.bounds(*x[:4], dtype=dtype, score_dtype=score_dtype, **x.options)
    expected_out, expected_lse = oracle.forward(x.q, x.k, x.v, **x.options)
    assert_within("out", out, expected_out, bound.o)
    assert_within("lse", lse, expected_lse, bound.lse)
    expected = oracle.backward(x.q, x.k, x.v, x.do, **x.options)
    for name, exact in zip(("dq", "dk", "dv", "dsink"), expected, strict=True):
        actual = getattr(gradients, name)
        if exact is None:
            assert actual is None
        else:
            assert_within(name, actual, exact, getattr(bound, name))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("engine", ["cpu", "reference", "standard"])
def test_gradients_of_the_lse_equal_the_oracle(name, engine):
    x = inputs_for(name, "float32")
    (q, k, v, do), options = as_type(x, "float32")
    out, lse = fa3.attention(q, k, v, return_lse=True, **options)
    dlse = np.random.default_rng(1).standard_normal(lse.shape, np.float32)
    options["engine"] = engine
    gradients = fa3.attention_backward(do, q, k, v, out, lse, dlse=dlse, **options)
    expected = oracle.backward(*x[:4], dlse=dlse, **x.options)
    names = "dq", "dk", "dv", "dsink"
    for name, actual, exact in zip(names, gradients[:4], expected, strict=True):
        if exact is not None:
            np.testing.assert_allclose(actual, exact, rtol=1e-5, atol=2e-5, err_msg=name)


def test_packed_sequences_equal_the_oracle():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s, np.float32) for s in ((9, 4, 16), (11, 2, 16), (11, 2, 8)))
    packing = {
        "cu_seqlens_q": np.array([0, 3, 3, 8], np.int32),
        "cu_seqlens_k": np.array([0, 4, 6, 11], np.int32),
        "seqused_k": np.array([4, 0, 3], np.int32),
    }
    out, lse = fa3.attention(q, k, v, causal=True, return_lse=True, **packing)
    expected_out, expected_lse = oracle.forward_varlen(q, k, v, causal=True, **packing)
    np.testing.assert_allclose(out, expected_out, rtol=0, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-5)


def test_lse_comes_only_when_asked_for(qkv):
    assert isinstance(fa3.attention(*qkv), np.ndarray)
    out, lse = fa3.attention(*qkv, return_lse=True)
    assert out.shape == (2, 20, 6, 32) and lse.shape == (2, 6, 20)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_out_is_written_and_returned(dtype):
    (q, k, v, _), _ = as_type(inputs_for("gqa", "bfloat16"), "bfloat16")
    out = np.full(q.shape, np.nan, DTYPES[dtype])
    assert fa3.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(
        out.astype(ml_dtypes.bfloat16).astype(float), fa3.attention(q, k, v).astype(float)
    )


def test_transposed_arrays_are_viewed_without_a_copy(qkv):
    swapped = [np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2) for a in qkv]
    np.testing.assert_array_equal(fa3.attention(*swapped), fa3.attention(*qkv))


def test_merge_of_two_halves_equals_the_whole(qkv):
    q, k, v = qkv
    halves = [
        fa3.attention(q, k[:, part], v[:, part], return_lse=True)
        for part in (slice(0, 12), slice(12, None))
    ]
    out, lse = fa3.merge(*(np.stack(arrays) for arrays in zip(*halves, strict=True)))
    whole_out, whole_lse = fa3.attention(q, k, v, return_lse=True)
    np.testing.assert_allclose(out, whole_out, rtol=0, atol=1e-6)
    np.testing.assert_allclose(lse, whole_lse, rtol=0, atol=1e-6)


def test_plan_says_which_engine_and_why(qkv):
    assert "engine standard" in fa3.plan(*qkv, engine="standard")
    assert "why" in fa3.plan(*qkv, causal=True)


def test_engines_are_listed_with_what_they_found():
    listed = {name: (available, detail) for name, available, detail in fa3.engines()}
    assert listed["reference"][0] is True and listed["reference"][1]


def test_calls_from_many_threads_do_not_disturb_each_other(qkv):
    expected = fa3.attention(*qkv, causal=True)
    results = [None] * 8

    def work(index):
        bad = index % 2 == 1
        try:
            results[index] = fa3.attention(*qkv, causal=True, softcap=-1.0 if bad else 0.0)
        except fa3.InvalidArgument as error:
            results[index] = str(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, result in enumerate(results):
        if index % 2:
            assert result.startswith("softcap: expected 0")
        else:
            np.testing.assert_array_equal(result, expected)


class Exported:
    """An array that shows nothing of itself but DLPack."""

    def __init__(self, array):
        self.array = array

    shape = property(lambda self: self.array.shape)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)


class ExportedByOldProducer(Exported):
    """From before DLPack 1.0: no max_version, so an unversioned capsule."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)


@pytest.mark.parametrize("kind", [Exported, ExportedByOldProducer])
def test_dlpack_arrays_are_read_and_written_in_place(qkv, kind):
    out = np.full_like(qkv[0], np.nan)
    exported = [kind(a) for a in qkv]
    returned = fa3.attention(*exported, out=kind(out), causal=True)
    assert isinstance(returned, kind)
    np.testing.assert_array_equal(out, fa3.attention(*qkv, causal=True))


def test_dlpack_array_that_cannot_make_another_needs_out(qkv):
    with pytest.raises(fa3.InvalidArgument, match="out: expected an array to write to"):
        fa3.attention(*(Exported(a) for a in qkv))


def test_read_only_memory_is_no_output(qkv):
    out = np.empty_like(qkv[0])
    out.flags.writeable = False
    with pytest.raises(fa3.InvalidArgument, match="out: .*read-only"):
        fa3.attention(*qkv, out=out)
    with pytest.raises(fa3.InvalidArgument, match="out: .*read-only"):
        fa3.attention(*qkv, out=Exported(out))


def swap_bytes(a):
    return a.astype(a.dtype.newbyteorder())


@pytest.mark.parametrize(
    "change, error, words",
    [
        (
            {"q": lambda q: q.astype(np.float64)},
            fa3.InvalidArgument,
            "q: expected float32.*convert",
        ),
        ({"k": swap_bytes}, fa3.InvalidArgument, "k: .*native byte order"),
        ({"q": lambda q: q[0]}, fa3.InvalidArgument, "q: expected rank 4"),
        ({"q": lambda q: q[None, None]}, fa3.InvalidArgument, "q: expected at most 5 dim"),
        ({"q": lambda q: q[..., ::2]}, fa3.InvalidArgument, "q: expected stride 1"),
        ({"v": lambda v: v[:, 1:]}, fa3.InvalidArgument, "v: expected .*seq"),
        ({"k": lambda k: k.astype(np.float16)}, fa3.InvalidArgument, "k: expected the dtype of q"),
        ({"q": lambda q: q.tolist()}, TypeError, "q: expected an array"),
        ({"k": lambda k: k.tolist()}, TypeError, "k: expected an array"),
        ({"scale": 0.0}, fa3.InvalidArgument, "scale: expected a finite number > 0"),
        ({"scale": "big"}, TypeError, "scale: expected a number, got 'big'"),
        ({"window": (1.5, 0)}, TypeError, r"window\[0\]: expected an integer, got 1.5"),
        ({"window": ()}, fa3.InvalidArgument, r"window: expected .*None or -1.*got \(\)"),
        ({"window_shift": 2**30}, fa3.InvalidArgument, r"window_shift: .* below 2\^30"),
        ({"sm_margin": -1}, fa3.InvalidArgument, "sm_margin: expected 0 to 1023 SMs, got -1"),
        ({"sm_margin": 2**40}, fa3.InvalidArgument, "sm_margin: expected 0 to 1023 SMs, got"),
        ({"sm_margin": 0.5}, TypeError, "sm_margin: expected an integer, got 0.5"),
        ({"window": (-2, 0)}, fa3.InvalidArgument, r"window\[0\]: expected -1"),
        ({"window": 3}, fa3.InvalidArgument, r"window: expected \(left, right\).*got 3"),
        ({"window": (1, 2, 3)}, fa3.InvalidArgument, r"window: expected .*got \(1, 2, 3\)"),
        (
            {"window": (2**70, 0)},
            fa3.InvalidArgument,
            r"window\[0\]: expected an integer of 64 bits",
        ),
        ({"attention_chunk": -1}, fa3.InvalidArgument, "attention_chunk: expected 0 .*got -1"),
        ({"attention_chunk": 0.5}, TypeError, "attention_chunk: expected an integer, got 0.5"),
        ({"batch_invariant": "no"}, TypeError, "batch_invariant: expected True or False"),
        ({"causal": "no"}, TypeError, "causal: expected True or False, got 'no'"),
        ({"causal": np.ones(3)}, TypeError, "causal: expected True or False"),
        ({"engine": []}, fa3.InvalidArgument, r"engine: expected one of auto.*got \[\]"),
        ({"k": lambda k: (1, 2, 3)}, TypeError, "k: expected an array"),
        ({"v": lambda v: None}, TypeError, "v: expected an array"),
        ({"out": (1, 2)}, TypeError, "out: expected an array"),
        ({"out": np.zeros((1, 1, 1, 1), np.float32)}, fa3.InvalidArgument, "^out: expected"),
        ({"sink": np.zeros(6)}, fa3.InvalidArgument, "sink: expected float32, got float64"),
        ({"bias": np.zeros((1, 1, 4, 4))}, fa3.Unsupported, "^bias: expected None with arrays"),
        ({"q": lambda q: q.astype(">f4")}, fa3.InvalidArgument, "^q: expected native byte order"),
        ({"sink": (0.0,) * 6}, TypeError, "sink: expected an array"),
        ({"cu_seqlens_q": [0, 4]}, TypeError, "cu_seqlens_q: expected an array"),
        (
            {"seqused_k": np.array([1.0, 2.0])},
            fa3.InvalidArgument,
            "seqused_k: expected int32, got float64",
        ),
        ({"num_threads": 10**12}, fa3.InvalidArgument, "num_threads: expected 0"),
        ({"engine": "abacus"}, fa3.InvalidArgument, "engine: expected one of auto, cpu"),
        ({"engine": "hopper"}, fa3.Unsupported, "no engine"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_calls_raise_the_sentence_of_the_library(qkv, change, error, words):
    arguments = dict(zip("qkv", qkv, strict=True))
    for name, value in change.items():
        arguments[name] = value(arguments[name]) if callable(value) else value
    with pytest.raises(error, match=words) as raised:
        fa3.attention(**arguments)
    assert not isinstance(raised.value, fa3.Error) or isinstance(
        raised.value, (ValueError, NotImplementedError)
    )


def test_lengths_of_64_bits_are_those_of_32(qkv):
    q, k, v = qkv
    used = np.array([q.shape[1] - 1] * len(q))
    expected = fa3.attention(q, k, v, seqused_q=used.astype(np.int32))
    np.testing.assert_array_equal(fa3.attention(q, k, v, seqused_q=used), expected)
    with pytest.raises(fa3.InvalidArgument, match="seqused_q: "):
        fa3.attention(q, k, v, seqused_q=used + 2**32)  # which 32 bits would make right


@pytest.mark.parametrize(
    "name, end",
    [
        ("casual", r"'casual'. Did you mean 'causal'\?"),
        ("is_causal", "'is_causal'; here that is causal"),
        ("softmax_scale", "'softmax_scale'; here that is scale"),
        ("mask", "'mask'; here that is bias or block_mask"),
        ("score_mod", "'score_mod'; here that is an argument of fa3.flex_attention"),
        ("bananas", "'bananas'"),
    ],
)
def test_an_unknown_option_is_a_type_error_that_knows_the_name_elsewhere(qkv, name, end):
    with pytest.raises(TypeError, match=f"^attention.. got an unexpected keyword argument {end}$"):
        fa3.attention(*qkv, **{name: True})


def test_a_mask_by_position_is_a_type_error_that_names_its_option(qkv):
    q, k, v = qkv
    words = "takes 3 arguments by position, got 4; name the others: bias= or block_mask= is a mask"
    with pytest.raises(TypeError, match=f"^attention.. {words}"):
        fa3.attention(q, k, v, np.ones((1, 1), bool))
    with pytest.raises(TypeError, match=f"^flex_attention.. {words}, and score_mod="):
        fa3.flex_attention(q, k, v, lambda s, *_: s)


def test_every_name_of_elsewhere_leads_to_one_of_attention():
    known = inspect.signature(fa3.attention).parameters
    of_flex = inspect.signature(fa3.flex_attention).parameters
    for name, here in fa3._options.ELSEWHERE.items():
        if here == "an argument of fa3.flex_attention":
            assert name in of_flex
        else:
            assert here.startswith("nothing") or all(x in known for x in here.split(" or ")), here


def test_unknown_option_is_a_type_error(qkv):
    with pytest.raises(TypeError, match="casual"):
        fa3.attention(*qkv, casual=True)


@pytest.fixture
def done(qkv):
    """Arguments of attention_backward by name."""
    out, lse = fa3.attention(*qkv, return_lse=True)
    return {"do": out, **dict(zip("qkv", qkv, strict=True)), "out": out, "lse": lse}


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"out": lambda a: a[:, 1:]}, fa3.InvalidArgument, "^out: expected seq"),
        ({"do": lambda a: a[:, 1:]}, fa3.InvalidArgument, "^do: expected seq"),
        ({"do": lambda a: a.astype(np.float16)}, fa3.InvalidArgument, "^do: .*dtype of out,"),
        ({"do": lambda a: None}, TypeError, "^do: expected an array"),
        ({"lse": lambda a: a.astype(float)}, fa3.InvalidArgument, "^lse: expected float32, got"),
        ({"lse": lambda a: None}, TypeError, "^lse: expected an array"),
        ({"dlse": np.zeros((1, 1, 1), np.float32)}, fa3.InvalidArgument, "^dlse: expected"),
        ({"dlse": np.zeros((1, 1, 1))}, fa3.InvalidArgument, "^dlse: expected float32, got float"),
        ({"window": 3}, fa3.InvalidArgument, "^window: expected"),
        ({"casual": 1}, TypeError, r"attention_backward\(\) got an unexpected .*'casual'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_gradients_are_refused_by_the_names_of_python(done, change, error, words):
    for name, value in change.items():
        done[name] = value(done[name]) if callable(value) else value
    with pytest.raises(error, match=words):
        fa3.attention_backward(**done)


@pytest.mark.parametrize("partials", [[], (1, 2), None], ids=str)
def test_merge_of_lists_is_refused_by_name(partials):
    with pytest.raises(TypeError, match="o_partial: expected an array"):
        fa3.merge(partials, partials)


@pytest.mark.parametrize("answer", [(1,), "x", None, (1, "a"), 3, [1, 0]], ids=str)
def test_a_producer_that_does_not_know_its_device_is_refused(qkv, answer):
    class Lost(Exported):
        def __dlpack_device__(self):
            return answer

    with pytest.raises(TypeError, match=r"k: expected \(type, index\) from its __dlpack_device__"):
        fa3.attention(qkv[0], Lost(qkv[1]), qkv[2])


@pytest.mark.parametrize("answer", [None, 3, "x"], ids=str)
def test_a_producer_that_gives_no_capsule_is_refused(qkv, answer):
    class Empty(Exported):
        def __dlpack__(self, **keywords):
            return answer

    with pytest.raises(TypeError, match="k: expected a DLPack capsule from its __dlpack__"):
        fa3.attention(qkv[0], Empty(qkv[1]), qkv[2])


def test_plan_allocates_nothing(qkv):
    huge = [np.lib.stride_tricks.as_strided(a, (1, 2**30, 6, 32), (0, 128, 128, 4)) for a in qkv]
    assert "engine cpu" in fa3.plan(*huge, causal=True)  # an output of 768 GiB
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'casual'"):
        fa3.plan(*qkv, casual=True)


def test_converted_lengths_stay_until_the_call_has_read_them():
    """Lengths of int64 become arrays that only the call knows; max_logit is as large as these."""
    q = np.random.default_rng(0).standard_normal((40, 2, 8)).astype(np.float32)
    found, expected = (
        fa3.attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu, return_max_logit=True)
        for cu in (np.array([0, 33], dtype) for dtype in (np.int64, np.int32))
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)

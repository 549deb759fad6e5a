# SPDX-License-Identifier: Apache-2.0
"""fa3.jax.attention: what a compiled JAX program computes, on every platform that JAX has here.

On the CPU its bits are those of fa3.attention. conftest.py gives JAX two CPU devices, of which the
first is the default one also where JAX has a GPU: a test on CUDA says so.
"""

import inspect
import threading

import error_model
import numpy as np
import oracle
import pytest
from cases import inputs_for
from checks import assert_within
from jax_arrays import PACKED, random_arrays

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
jax = pytest.importorskip("jax", "0.7", reason="JAX 0.7 or later is not installed")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes gives numpy its bfloat16")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import fa3.jax  # noqa: E402, F811
from fa3.jax import calls, primitives  # noqa: E402

TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ON_CPU = [
    *(("plain", "float32"), ("gqa", "bfloat16"), ("mqa_decode", "float16")),
    *(("odd_dims", "float32"), ("causal_empty_rows", "float32"), ("window_causal", "float16")),
    *(("chunk_causal", "bfloat16"), ("softcap", "float32"), ("sink_empty_rows", "bfloat16")),
    *(("no_keys", "float32"), ("no_queries", "float32"), ("everything", "float16")),
]
ON_CUDA = [case for case in ON_CPU if case[1] != "float32"] + [("dim_128", "bfloat16")]


def arrays_of(x, dtype):
    """q, k, v, do and the options of inputs_for() as NumPy arrays."""
    options = dict(x.options)
    if options.get("sink") is not None:
        options["sink"] = options["sink"].astype(np.float32)
    return [a.astype(TYPES[dtype]) for a in x[:4]], options


def both_passes(q, k, v, do, dlse, sink, options):
    """out, lse and the gradients, of one compiled program."""

    @jax.jit
    def run(q, k, v, sink, do, dlse):
        def attend(q, k, v, sink):
            return fa3.jax.attention(q, k, v, return_lse=True, sink=sink, **options)

        results, pull_back = jax.vjp(attend, q, k, v, sink)
        return *results, *pull_back((do, dlse))

    return run(q, k, v, sink, do, dlse)


@pytest.mark.parametrize("name, dtype", ON_CPU)
def test_both_passes_have_the_bits_of_the_numpy_front(name, dtype):
    (q, k, v, do), options = arrays_of(inputs_for(name, dtype), dtype)
    sink = options.pop("sink", None)
    out, lse = fa3.attention(q, k, v, sink=sink, return_lse=True, **options)
    dlse = np.random.default_rng(1).standard_normal(lse.shape, np.float32)
    exact = fa3.attention_backward(do, q, k, v, out, lse, dlse=dlse, sink=sink, **options)
    found = both_passes(q, k, v, do, dlse, sink, options)
    for ours, expected in zip(found, (out, lse, *exact[:4]), strict=True):
        if expected is not None:
            assert ours.dtype == expected.dtype
            np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name, dtype", ON_CUDA)
def test_both_passes_equal_the_oracle_on_a_gpu(name, dtype, gpu):
    x = inputs_for(name, dtype)
    (q, k, v, do), options = arrays_of(x, dtype)
    sink = options.pop("sink", None)
    expected = oracle.forward(*x[:3], **x.options)
    expected += oracle.backward(*x[:4], **x.options)
    no_dlse = np.zeros(expected[1].shape, np.float32)
    with jax.default_device(gpu):
        found = both_passes(q, k, v, do, no_dlse, sink, options)
    score_dtype = error_model.score_dtype_of("hopper", dtype)
    bound = error_model.bounds(*x[:4], dtype=dtype, score_dtype=score_dtype, **x.options)
    names = ("o", "lse", "dq", "dk", "dv", "dsink")
    for name, actual, exact in zip(names, found, expected, strict=True):
        if exact is not None:
            assert_within(name, np.asarray(actual, np.float64), exact, getattr(bound, name))


@pytest.fixture
def gpu():
    try:
        return jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("JAX finds no CUDA device on this machine")


def test_a_gpu_needs_no_host_between_calls(gpu):
    """Results of one call are the next one's operands, and a loop runs on the device."""
    (q,) = random_arrays((2, 128, 4, 64), dtype=TYPES["bfloat16"])

    def step(x, _):
        return fa3.jax.attention(x, x, x, causal=True), None

    with jax.default_device(gpu):
        looped, _ = jax.jit(lambda x: jax.lax.scan(step, x, length=8))(q)
        x = jnp.asarray(q)
        for _ in range(8):
            x, _ = step(x, None)
    np.testing.assert_array_equal(looped, x)


def test_outside_of_jit_it_computes_the_same(qkv):
    out, lse = fa3.jax.attention(*qkv, causal=True, return_lse=True)
    expected = fa3.attention(*qkv, causal=True, return_lse=True)
    assert isinstance(out, jax.Array)
    np.testing.assert_array_equal(out, expected[0])
    np.testing.assert_array_equal(lse, expected[1])


def test_it_computes_the_same_where_jit_is_disabled(qkv):
    with jax.disable_jit():
        out = fa3.jax.attention(*qkv, causal=True)
    np.testing.assert_array_equal(out, fa3.attention(*qkv, causal=True))


@pytest.mark.parametrize("known", [{}, {"max_seqlen_q": 5, "max_seqlen_k": 5}, {"max_seqlen_q": 1}])
def test_packed_sequences_and_their_gradients(known):
    """Lengths are operands: one program serves all of them, also longer ones than was said."""
    q, k, v, do = random_arrays((9, 4, 16), (11, 2, 16), (11, 2, 8), (9, 4, 8))
    loss = jax.jit(lambda *a, **x: (fa3.jax.attention(*a, causal=True, **x, **known) * do).sum())
    gradients = jax.grad(loss, (0, 1, 2))(q, k, v, **PACKED)
    out, lse = fa3.attention(q, k, v, causal=True, return_lse=True, **PACKED)
    np.testing.assert_array_equal(fa3.jax.attention(q, k, v, causal=True, **PACKED, **known), out)
    exact = fa3.attention_backward(do, q, k, v, out, lse, causal=True, **PACKED)
    for ours, expected in zip(gradients, exact[:3], strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_used_rows_of_a_batch(qkv):
    used = {"seqused_q": np.array([10, 4], np.int32), "seqused_k": np.array([0, 7], np.int32)}
    found = jax.jit(lambda q, k, v, **used: fa3.jax.attention(q, k, v, **used))(*qkv, **used)
    np.testing.assert_array_equal(found, fa3.attention(*qkv, **used))


def test_shapes_are_known_without_computing(qkv):
    out, lse = jax.eval_shape(lambda *a: fa3.jax.attention(*a, return_lse=True), *qkv)
    assert (out.shape, out.dtype) == ((2, 10, 4, 24), np.float32)
    assert (lse.shape, lse.dtype) == ((2, 4, 10), np.float32)


def test_a_program_is_compiled_once(qkv, monkeypatch):
    asked, ask = [], calls.Call.workspace_bytes
    monkeypatch.setattr(
        calls.Call, "workspace_bytes", lambda *a: asked.append(a[0].direction) or ask(*a)
    )
    primitives.function.cache_clear()
    for _ in range(3):
        fa3.jax.attention(*qkv, scale=0.125, window=(7, 7))
        jax.grad(lambda q: fa3.jax.attention(q, *qkv[1:], scale=0.125, window=(7, 7)).sum())(qkv[0])
    assert sorted(asked) == ["backward", "forward", "forward"]  # with and without the LSE


def test_two_threads_compile_and_run_at_once(qkv):
    failures = []

    def work(options):
        try:
            program = jax.jit(lambda *a: fa3.jax.attention(*a, **options))
            expected = fa3.attention(*qkv, **options)
            for _ in range(20):
                np.testing.assert_array_equal(program(*qkv), expected)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[x]) for x in ({"softcap": 5.0}, {"scale": 0.5})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_an_exported_program_runs(qkv):
    allowed = [jax.export.DisabledSafetyCheck.custom_call("fa3_forward")]
    program = jax.jit(lambda *a: fa3.jax.attention(*a, causal=True))
    exported = jax.export.export(program, platforms=["cpu"], disabled_checks=allowed)(*qkv)
    np.testing.assert_array_equal(exported.call(*qkv), fa3.attention(*qkv, causal=True))


def test_a_cpu_program_keeps_its_threads(qkv, monkeypatch):
    """Its workspace is as large as they want, also where the next machine has more."""
    primitives.function.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(calls._native, "available_threads", lambda: 3)
        program = jax.jit(lambda *a: fa3.jax.attention(*a, scale=0.75)).lower(*qkv)
    assert "num_threads = 3 : i64" in program.as_text()
    np.testing.assert_array_equal(program.compile()(*qkv), fa3.attention(*qkv, scale=0.75))


def test_workspace_is_in_the_memory_plan_of_the_program():
    (x,) = random_arrays((1, 2048, 1, 64))
    gradient = jax.jit(jax.grad(lambda x: fa3.jax.attention(x, x, x, num_threads=1).sum()))
    plan = gradient.lower(x).compile().memory_analysis()
    assert plan.temp_size_in_bytes > 4 * x.nbytes  # out, its gradient, dk and dv, and more


def test_the_front_has_the_options_of_the_numpy_front():
    ours = inspect.signature(fa3.jax.attention).parameters
    theirs = inspect.signature(fa3.attention).parameters
    of_other_arrays = {"out", "generator", "alibi_slopes"}
    assert {*ours} == {*theirs} - of_other_arrays


def dropped(key, p=0.4, **options):
    """attention of some arrays under a key, and what it is with the same seed elsewhere."""
    q, k, v = (x.astype(np.float32) for x in inputs_for("gqa", "float32")[:3])
    found = fa3.jax.attention(q, k, v, dropout_p=p, dropout_seed=key, **options)
    words = np.zeros(4, np.uint32)
    data = np.asarray(jax.random.key_data(key) if key.dtype != jnp.uint32 else key)
    words[: data.size] = data
    seed = words.view(np.uint64)
    return found, fa3.attention(q, k, v, dropout_p=p, dropout_seed=seed, **options)


@pytest.mark.parametrize("key", [jax.random.key(7), jax.random.PRNGKey(8)], ids=["key", "words"])
def test_dropout_takes_a_key(key):
    np.testing.assert_array_equal(*dropped(key, causal=True))


def test_dropout_has_gradients_and_one_mask_for_every_example_of_vmap():
    q, k, v = (x.astype(np.float32) for x in inputs_for("gqa", "float32")[:3])
    key = jax.random.key(3)

    def loss(q, key):
        return (fa3.jax.attention(q, k, v, dropout_p=0.4, dropout_seed=key) ** 2).sum()

    words = np.array([*jax.random.key_data(key), 0, 0], np.uint32)
    named = {"dropout_p": 0.4, "dropout_seed": words.view(np.uint64)}
    out, lse = fa3.attention(q, k, v, return_lse=True, **named)
    expected = fa3.attention_backward(2 * out, q, k, v, out, lse, **named).dq
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(q, key), expected)
    twice = jax.vmap(jax.grad(loss), (0, None))(np.stack([q, q]), key)
    np.testing.assert_array_equal(twice, np.stack([expected, expected]))
    keys = jax.random.split(key)
    apart = jax.vmap(jax.grad(loss), (None, 0))(q, keys)
    np.testing.assert_array_equal(apart[1], jax.grad(loss)(q, keys[1]))
    assert (apart[0] != apart[1]).any()


def test_dropout_is_not_cut_over_devices():
    if len(jax.devices("cpu")) < 2:
        pytest.skip("JAX was started with one CPU device")
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2])
    q, k, v = (x.astype(np.float32) for x in inputs_for("gqa", "float32")[:3])
    placed = [jax.device_put(x, NamedSharding(mesh, P("x"))) for x in (q, k, v)]
    attend = jax.jit(lambda q, k, v: fa3.jax.attention(q, k, v, dropout_p=0.4, dropout_seed=(1, 2)))
    expected = fa3.attention(q, k, v, dropout_p=0.4, dropout_seed=(1, 2))
    np.testing.assert_array_equal(attend(*placed), expected)


def test_dropout_without_a_key_is_refused():
    q = jnp.ones((1, 3, 1, 8))
    with pytest.raises(fa3.InvalidArgument, match="dropout_seed: expected .* got None"):
        fa3.jax.attention(q, q, q, dropout_p=0.1)
    with pytest.raises(fa3.InvalidArgument, match="expected a key of 2 or 4 words"):
        fa3.jax.attention(q, q, q, dropout_p=0.1, dropout_seed=jnp.zeros(3, jnp.uint32))

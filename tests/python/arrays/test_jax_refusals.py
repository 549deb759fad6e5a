# SPDX-License-Identifier: Apache-2.0
"""What fa3.jax.attention refuses, with its sentence: as a program is traced, compiled or run."""

import numpy as np
import pytest
from jax_arrays import PACKED

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
jax = pytest.importorskip("jax", "0.7", reason="JAX 0.7 or later is not installed")

import jax.numpy as jnp  # noqa: E402

import fa3.jax  # noqa: E402, F811


def f8(x):
    return jnp.asarray(x).astype(jnp.float8_e4m3fn)


REFUSED = {
    "float64": (lambda q, k, v: {"q": q.astype(float)}, "^q: expected one of float32, .* float64"),
    "float8": (lambda q, k, v: {"k": f8(k)}, "^v: expected the dtype of k, float8_e4m3, got"),
    "integers": (lambda q, k, v: {"k": k.astype(np.int32)}, "^k: expected one of .* got int32"),
    "types": (lambda q, k, v: {"k": k.astype(np.float16)}, "^k: expected the dtype of q"),
    "no array": (lambda q, k, v: {"v": [1.0]}, "^v: expected an array"),
    "head dim": (lambda q, k, v: {"k": k[..., :8]}, "^k: expected the head dim of q = 16"),
    "heads": (lambda q, k, v: {"q": q[:, :, :3]}, "^q: expected a number of query heads"),
    "rank": (lambda q, k, v: {"q": q[0]}, "^q: expected rank 4"),
    "wide": (
        lambda q, k, v: {"q": q.repeat(40, 3), "k": k.repeat(40, 3)},
        r"head dim in \[1, 576\]",
    ),
    "window": (lambda q, k, v: {"window": 3}, r"^window: expected \(left, right\)"),
    "softcap": (lambda q, k, v: {"softcap": "x"}, "^softcap: expected a number"),
    "scale": (lambda q, k, v: {"scale": -1.0}, "^scale: expected"),
    "lengths": (
        lambda q, k, v: {"seqused_k": np.array([1.0, 2.0])},
        "^seqused_k: expected int32, got float64",
    ),
    "mask of an array": (
        lambda q, k, v: {"v": np.ma.array(v)},
        "^v: expected an array without a mask",
    ),
    "engine": (lambda q, k, v: {"engine": "hopper"}, "hopper|no engine"),
    "pages": (lambda q, k, v: {"page_table": q}, "^page_table: expected rank 2"),
    "slopes": (lambda q, k, v: {"alibi_slopes": q}, "unexpected keyword argument 'alibi_slopes'"),
    "bias": (lambda q, k, v: {"bias": q}, r"^bias: expected a shape that broadcasts to \(b, hq"),
    "integer bias": (
        lambda q, k, v: {"bias": np.zeros((10, 11), np.int32)},
        "^bias: expected floats or booleans, got int32",
    ),
    "bias and sink": (
        lambda q, k, v: {"bias": np.zeros((10, 11), np.float32), "sink": q[0, 0, :, 0]},
        "^sink: not together with a bias of floats",
    ),
    "booleans and a mask": (
        lambda q, k, v: {
            "bias": np.ones((10, 11), bool),
            "block_mask": (np.ones((1, 1, 1, 1), np.int32), None),
        },
        "^bias: expected floats or None together with block_mask",
    ),
    "bias and a wrong softcap": (
        lambda q, k, v: {"bias": np.zeros((10, 11), np.float32), "softcap": -1.0},
        "^softcap: expected 0 .off. or a finite number > 0",
    ),
    "bias and lengths of numbers": (
        lambda q, k, v: {"bias": np.zeros((10, 11), np.float32), "seqused_k": np.ones(2)},
        "^seqused_k: expected int32, got float64",
    ),
    "bias and scales of heads": (
        lambda q, k, v: {"bias": np.zeros((10, 12), np.float32), "scale": np.ones(4)},
        "^scale: expected a number, got array",
    ),
    "bias and types": (
        lambda q, k, v: {"bias": np.zeros((10, 11), np.float32), "k": k.astype(np.float16)},
        "^k: expected the dtype of q",
    ),
    "bias and float8": (
        lambda q, k, v: {"bias": np.zeros((10, 11), np.float32), "k": f8(k), "v": f8(v)},
        "^k: not together with a bias of floats, got float8_e4m3fn",
    ),
    "one length": (
        lambda q, k, v: {"seqused_k": np.array(3, np.int32)},
        "^seqused_k: expected one dimension or more, got a single number",
    ),
    "packed bias": (
        lambda q, k, v: {"bias": np.ones((10, 11), bool), "cu_seqlens_k": PACKED["cu_seqlens_k"]},
        "^bias: expected None together with cu_seqlens and page_table; pass booleans as block_mask",
    ),
    "mask of other extents": (
        lambda q, k, v: {"block_mask": (np.ones((1, 1, 2, 1), np.int32), None)},
        "^block_mask: expected one for",
    ),
}


@pytest.mark.parametrize("change, sentence", REFUSED.values(), ids=REFUSED)
def test_a_wrong_call_is_refused_with_its_sentence(qkv, change, sentence):
    named = dict(zip("qkv", qkv, strict=True))
    with pytest.raises((fa3.Error, TypeError), match=sentence):
        fa3.jax.attention(**named | change(*qkv))


@pytest.mark.parametrize("bias", [None, np.zeros((10, 12), np.float32)], ids=["", "bias"])
@pytest.mark.parametrize(
    "name, value",
    [("causal", True), ("window", (3, 0)), ("softcap", 5.0), ("return_lse", True)],
)
def test_options_are_known_while_a_program_is_traced(qkv, name, value, bias):
    program = jax.jit(lambda value: fa3.jax.attention(*qkv, bias=bias, **{name: value}))
    with pytest.raises(TypeError, match=f"^{name}: expected a value that is known while"):
        program(value)


def test_unknown_extents_are_refused():
    (rows,) = jax.export.symbolic_shape("rows")
    program = jax.jit(lambda q: fa3.jax.attention(q, q, q))
    with pytest.raises(fa3.Unsupported, match="^q: expected extents that are known"):
        jax.export.export(program)(jax.ShapeDtypeStruct((1, rows, 4, 16), np.float32))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_platform_that_cannot_compute_is_refused(qkv, platform):
    if platform == "cuda" and any(name == "hopper" and ok for name, ok, _ in fa3.engines()):
        pytest.skip("this machine computes on CUDA")
    program = jax.export.export(jax.jit(fa3.jax.attention), platforms=[platform])
    with pytest.raises(fa3.Unsupported, match="cuda"):
        program(*qkv)


@pytest.mark.parametrize("twice", [jax.hessian, lambda f: jax.grad(lambda q: jax.grad(f)(q).sum())])
def test_second_derivatives_are_refused(qkv, twice):
    q, k, v = qkv
    with pytest.raises(fa3.Unsupported, match="first derivatives in reverse mode"):
        twice(lambda q: fa3.jax.attention(q, k, v).sum())(q)


@pytest.mark.parametrize("bias", [None, np.zeros((10, 12), np.float32)], ids=["", "bias"])
@pytest.mark.parametrize("name, used", [("seqused_k", [3, 99]), ("seqused_q", [-1, 3])])
def test_lengths_that_lead_out_of_their_tensors_are_refused_as_the_program_runs(
    qkv, name, used, bias
):
    """On the CPU, where they are read."""
    program = jax.jit(lambda used: fa3.jax.attention(*qkv, **{name: used}, bias=bias))
    with pytest.raises((ValueError, RuntimeError), match=f"{name}: expected a length in"):
        program(np.array(used, np.int32)).block_until_ready()


def by_hand(qkv, workspace=0, **attributes):
    """A call as an older or newer fa3 might have exported it."""
    results = jax.ShapeDtypeStruct((2, 10, 4, 24), np.float32), jnp.zeros(workspace, np.uint8)
    operands = {"operands": "q k v", "results": "out workspace"}
    call = jax.ffi.ffi_call("fa3_forward", results)
    return jax.block_until_ready(call(*qkv, **operands | attributes))[0]


def test_a_handler_reads_attributes_by_name(qkv):
    np.testing.assert_array_equal(
        by_hand(qkv, 1 << 24, window_left=np.int64(3), scale=np.float64(0.5)),
        fa3.attention(*qkv, window=(3, -1), scale=0.5),
    )


@pytest.mark.parametrize(
    "attributes, sentence",
    [
        ({"novelty": np.int64(1)}, "it knows 7; trace the program again"),
        ({"operands": "q k novelty"}, "trace the program again"),
        ({"results": "out"}, "trace the program again"),
        ({"softcap": np.float32(1)}, "softcap: expected a number of 64 bits"),
        ({"window_left": np.int32(1)}, r"window\[0\]: expected an integer of 64 bits"),
        ({"causal": "yes"}, "causal: expected an attribute of another kind"),
        ({"num_threads": np.int64(1 << 40)}, "num_threads: expected an integer of 32 bits"),
        ({}, "workspace"),
    ],
)
def test_a_handler_refuses_calls_that_are_not_of_its_making(qkv, attributes, sentence):
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        by_hand(qkv, **attributes)


@pytest.mark.parametrize(
    "call",
    [
        lambda q, k, v: fa3.attention(q, k, v),
        lambda q, k, v: fa3.attention_backward(q, q, k, v, q, q[..., 0]),
        lambda q, k, v: fa3.plan(q, k, v),
        lambda q, k, v: fa3.quantize(q),
    ],
)
def test_eager_calls_inside_of_jit_point_here(qkv, call):
    with pytest.raises(fa3.Unsupported, match="got a tracer of JAX; .* fa3.jax.attention"):
        jax.jit(call)(*qkv)

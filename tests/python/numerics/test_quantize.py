# SPDX-License-Identifier: Apache-2.0
"""fa3.quantize against docs/numerics.md, written again in NumPy, and attention on its results."""

import itertools
from functools import partial

import numpy as np
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes gives numpy its float8")

F32 = np.float32
# The checks of opcheck but test_schema, which multiplies float8; torch cannot do that on a CPU.
TORCH_KNOWS_FLOAT8 = ("test_autograd_registration", "test_faketensor")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, F32)


def rotated(x, cos, sin, interleaved):
    pairs = cos.shape[1]
    first = np.arange(pairs) * 2 if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    y = x.copy()
    y[:, first] = x[:, first] * cos - x[:, second] * sin
    y[:, second] = x[:, second] * cos + x[:, first] * sin
    return y


def mean_of(x):
    total = np.zeros(x.shape[1], F32)
    for first in range(0, len(x), 64):
        block = np.zeros(x.shape[1], F32)
        for row in x[first : first + 64]:
            block += row
        total += block
    return total / F32(len(x))


def signs(seed, dim):
    z = (seed + (np.arange(dim, dtype=object) + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = np.array([(i ^ i >> 30) * 0xBF58476D1CE4E5B9 % 2**64 for i in z], object)
    z = np.array([(i ^ i >> 27) * 0x94D049BB133111EB % 2**64 for i in z], object)
    return np.array([-1 if (i ^ i >> 31) >> 63 else 1 for i in z], F32)


def mixed(x, seed):
    dim = x.shape[-1]
    block = dim & -dim
    y = (x * signs(seed, dim)).reshape(*x.shape[:-1], dim // block, block)
    stride = 1
    while stride < block:
        parts = y.reshape(*y.shape[:-1], -1, 2, stride)
        a, b = parts[..., 0, :], parts[..., 1, :]
        y = np.stack([a + b, a - b], -2).reshape(y.shape)
        stride *= 2
    return (y * F32(block**-0.5)).reshape(x.shape)


def oracle(x, hadamard=False, center=False, seed=0, rotary=None, interleaved=False):
    """One head (s, d): the bytes, a scale for each block, and the mean."""
    x = x.astype(F32)
    if rotary is not None:
        x = rotated(x, *rotary, interleaved)
    mean = mean_of(x) if center else None
    if center:
        x = x - mean
    if hadamard:
        x = mixed(x, seed)
        mean = mixed(mean[None], seed)[0] if center else None
    y, scales = np.empty(x.shape, ml_dtypes.float8_e4m3fn), []
    for first in range(0, len(x), 64):
        block = x[first : first + 64]
        scales.append(max(np.abs(block).max() / F32(448), F32(2.0**-126)))
        y[first : first + 64] = (block * (F32(1) / scales[-1])).astype(ml_dtypes.float8_e4m3fn)
    return y, np.array(scales, F32), mean


@pytest.mark.parametrize("dim", [64, 96, 80, 7])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("rotation", [None, "halves", "interleaved"])
def test_bits_equal_the_definition(dim, center, hadamard, rotation):
    x = random(2, 150, 3, dim)
    options = {"center": center, "hadamard": hadamard, "seed": 77}
    if rotation:
        angles = np.arange(160)[:, None] * 0.5 ** np.arange(dim // 3)
        options["rotary"] = np.cos(angles).astype(F32), np.sin(angles).astype(F32)
        options["interleaved"] = rotation == "interleaved"
    got = fa3.quantize(x, **options)
    if rotation:
        options["rotary"] = [table[:150] for table in options["rotary"]]
    for b in range(2):
        for head in range(3):
            y, scales, mean = oracle(x[b, :, head], **options)
            np.testing.assert_array_equal(got.descale[b, head], scales)
            np.testing.assert_array_equal(got.x[b, :, head].view(np.uint8), y.view(np.uint8))
            if center:
                np.testing.assert_array_equal(got.mean[b, head], mean)
    assert (got.mean is None) == (not center)


@pytest.mark.parametrize(
    "scaling, shape", [("block", (2, 3, 3)), ("head", (2, 3)), ("tensor", (1,))]
)
def test_scales_have_the_shape_that_was_asked_for(scaling, shape):
    got = fa3.quantize(random(2, 130, 3, 16).astype(np.float16), scaling=scaling)
    assert got.descale.shape == shape
    assert got.x.dtype == ml_dtypes.float8_e4m3fn and got.x.shape == (2, 130, 3, 16)
    assert np.abs(got.x.astype(F32)).max() == 448


def test_packed_sequences_are_quantized_one_by_one():
    x = random(100, 2, 32)
    starts = np.array([0, 70, 90, 100], np.int32)
    got = fa3.quantize(x, cu_seqlens=starts, center=True)
    assert got.descale.shape == (3, 2, 2) and got.mean.shape == (3, 2, 32)
    for b, (first, end) in enumerate(itertools.pairwise(starts)):
        alone = fa3.quantize(x[None, first:end], center=True)
        np.testing.assert_array_equal(got.x[first:end].view("u1"), alone.x[0].view("u1"))
        np.testing.assert_array_equal(got.mean[b], alone.mean[0])


def places(keys):
    """Where keys lie among those of their channel: the words of FA3_TRANSPOSED_KEYS."""
    i = np.arange(keys)
    return i - i % 16 + 4 * (i % 16 // 2 % 4) + 2 * (i % 16 // 8) + i % 2


@pytest.mark.parametrize("rows", [1, 5, 16, 130])
@pytest.mark.parametrize("scaling", ["block", "head"])
def test_transposed_values_have_their_keys_side_by_side(rows, scaling):
    x = random(2, rows, 3, 32)
    want = fa3.quantize(x, center=True, scaling=scaling)
    got = fa3.quantize(x, center=True, scaling=scaling, transposed=True)
    assert got.x.shape == x.shape and (rows == 1 or got.x.strides[1] == 1)
    memory = got.x.base.view("u1").reshape(2, 3, 32, -1)
    assert memory.shape[3] == -(-rows // 16) * 16
    np.testing.assert_array_equal(
        memory[..., places(rows)], want.x.view("u1").transpose(0, 2, 3, 1)
    )
    behind = np.setdiff1d(np.arange(memory.shape[3]), places(rows))
    assert not memory[..., behind].any()
    np.testing.assert_array_equal(got.descale, want.descale)
    np.testing.assert_array_equal(got.mean, want.mean)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_transposed_values_give_the_same_attention(kind):
    arrays = random(1, 40, 4, 32), random(1, 90, 2, 32, seed=1), random(1, 90, 2, 48, seed=2)
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        arrays = [torch.from_numpy(a) for a in arrays]
    q8, k8 = (fa3.quantize(a) for a in arrays[:2])
    call = {"q_descale": q8.descale, "k_descale": k8.descale, "engine": "reference"}
    results = []
    for transposed in (False, True):
        v8 = fa3.quantize(arrays[2], center=True, transposed=transposed)
        of_v = {"v_descale": v8.descale, "v_mean": v8.mean, "v_transposed": transposed}
        results.append(fa3.attention(q8.x, k8.x, v8.x, **of_v, **call))
    rows, columns = (np.asarray(x if kind == "numpy" else x.float(), F32) for x in results)
    assert rows.shape == (1, 40, 4, 48)
    np.testing.assert_array_equal(rows, columns)


def test_transposed_values_are_told_from_rows():
    x = random(1, 40, 2, 32)
    q8, rows, columns = fa3.quantize(x), fa3.quantize(x), fa3.quantize(x, transposed=True)
    with pytest.raises(fa3.InvalidArgument, match="v: expected stride 1 in dimension 1"):
        fa3.attention(q8.x, q8.x, rows.x, v_transposed=True)
    with pytest.raises(fa3.InvalidArgument, match="v: expected stride 1 in the last dimension"):
        fa3.attention(q8.x, q8.x, columns.x)
    with pytest.raises(fa3.InvalidArgument, match="v_transposed: expected 0"):
        fa3.attention(x, x, x, v_transposed=True)
    with pytest.raises(fa3.Unsupported, match="cpu: v_transposed"):
        fa3.attention(q8.x, q8.x, columns.x, v_transposed=True)
    with pytest.raises(fa3.InvalidArgument, match="seqused: expected none with transposed"):
        fa3.quantize(x, seqused=np.array([3], np.int32), transposed=True)


def attend(q, k, v, center=True, hadamard=True, **options):
    q8 = fa3.quantize(q, hadamard=hadamard)
    k8 = fa3.quantize(k, hadamard=hadamard, center=center)
    v8 = fa3.quantize(v, center=center)
    return fa3.attention(
        *(q8.x, k8.x, v8.x),
        q_descale=q8.descale,
        k_descale=k8.descale,
        v_descale=v8.descale,
        k_mean=k8.mean,
        v_mean=v8.mean,
        return_lse=True,
        **options,
    )


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 3.0}, {"sink": True}])
def test_quantized_attention_is_near_that_of_the_inputs(options):
    q, k, v = random(2, 100, 4, 64), random(2, 130, 2, 64, seed=1), random(2, 130, 2, 48, seed=2)
    k += 2 * random(64, seed=3)  # channels with a mean, which a softcap and a sink must see
    v += 3
    options = dict(options)
    if "sink" in options:
        options["sink"] = np.full(4, 4, F32)
    expected, expected_lse = fa3.attention(q, k, v, return_lse=True, **options)
    out, lse = attend(q, k, v, **options)
    assert out.dtype == ml_dtypes.bfloat16
    error = np.linalg.norm(out.astype(F32) - expected) / np.linalg.norm(expected - expected.mean())
    assert error < 0.06
    assert np.abs(lse - expected_lse).max() < 0.5  # of numbers up to 50


def test_output_may_have_another_type():
    q, k, v = (fa3.quantize(random(1, 9, 2, 16)).x for _ in range(3))
    for dtype in (np.float16, F32):
        out = np.empty((1, 9, 2, 16), dtype)
        assert fa3.attention(q, k, v, out=out) is out


@pytest.mark.parametrize(
    "change, words",
    [
        ({"scaling": "row"}, "scaling: expected one of block, head, tensor, got 'row'"),
        ({"rotary": 3}, r"rotary: expected \(cos, sin\), got 3"),
        ({"engine": "standard"}, "standard: does not quantize"),
        ({"engine": "fast"}, "engine: expected one of auto"),
        ({"rotary": (np.ones((3, 4), F32),) * 2}, "rotary_cos: expected at least 9 positions"),
    ],
)
def test_errors_name_the_argument(change, words):
    with pytest.raises(fa3.Error, match=words):
        fa3.quantize(random(1, 9, 2, 16), **change)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_max_seqlen_below_the_longest_sequence_is_named(kind):
    x, starts = random(200, 4, 16), np.array([0, 60, 200], np.int32)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        x, starts = torch.from_numpy(x), torch.from_numpy(starts)
    with pytest.raises(
        fa3.InvalidArgument, match="^max_seqlen: expected at least 140, .* or 0; its"
    ):
        fa3.quantize(x, cu_seqlens=starts, max_seqlen=3)
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_k": 64}
    side = "_k" if kind == "torch" else ""
    with pytest.raises(fa3.InvalidArgument, match=f"^max_seqlen{side}: expected at least 140, "):
        fa3.attention_fp8(x, x, x, **lengths)


def test_scales_and_means_are_refused_beside_other_types():
    q = random(1, 9, 2, 16)
    for name, shape in {"q_descale": (1,), "k_descale": (1,), "v_mean": (1, 2, 16)}.items():
        with pytest.raises(fa3.InvalidArgument, match=f"{name}: expected it only with"):
            fa3.attention(q, q, q, **{name: np.ones(shape, F32)})


def torch_tensors(torch):
    q, k, v = random(1, 70, 4, 32), random(1, 90, 2, 32, seed=1), random(1, 90, 2, 32, seed=2)
    return [torch.from_numpy(a) for a in (q, k, v)]


def test_torch_gives_the_same_bits():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensors = torch_tensors(torch)
    out, lse = attend(*tensors)
    expected, expected_lse = attend(*(t.numpy() for t in tensors))
    assert out.dtype == torch.bfloat16
    np.testing.assert_array_equal(out.float().numpy(), expected.astype(F32))
    np.testing.assert_array_equal(lse.numpy(), expected_lse)


def test_torch_compiles_and_checks_the_operators():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import fa3.torch

    q, k, v = tensors = torch_tensors(torch)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*tensors), attend(*tensors), strict=True):
        assert torch.equal(a, b)
    opcheck = partial(torch.library.opcheck, test_utils=TORCH_KNOWS_FLOAT8)
    opcheck(torch.ops.fa3.quantize.default, (k, "head", True), {"hadamard": True})
    opcheck(torch.ops.fa3.quantize.default, (k, "head", True), {"transposed": True})
    k8, v8 = fa3.quantize(k, center=True), fa3.quantize(v)
    scales = {"k_descale": k8.descale, "v_descale": v8.descale, "k_mean": k8.mean}
    opcheck(torch.ops.fa3.forward.default, (q, k8.x, v8.x), scales)


def test_torch_has_no_gradient_through_rounding():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = torch_tensors(torch)
    with pytest.raises(fa3.InvalidArgument, match="x: expected a tensor that needs no gradient"):
        fa3.quantize(q.clone().requires_grad_())
    k8, v8 = fa3.quantize(k), fa3.quantize(v)
    with pytest.raises(fa3.Unsupported, match="no gradients through float8_e4m3fn"):
        fa3.attention(q.requires_grad_(), k8.x, v8.x, k_descale=k8.descale, v_descale=v8.descale)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_scales_go_with_parts_plans_and_validation(kind):
    arrays = [random(1, n, 2, 32, seed=n) for n in (1, 700, 700)]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        arrays = [torch.from_numpy(a) for a in arrays]
    q, k, v = (fa3.quantize(a) for a in arrays)
    call = {"q_descale": q.descale, "k_descale": k.descale, "v_descale": v.descale}
    whole = fa3.attention(q.x, k.x, v.x, num_splits=1, **call)
    parts = fa3.attention(q.x, k.x, v.x, num_splits=3, **call)
    np.testing.assert_allclose(
        np.asarray(parts, np.float32) if kind == "numpy" else parts.float().numpy(),
        np.asarray(whole, np.float32) if kind == "numpy" else whole.float().numpy(),
        rtol=0.01,
        atol=0.01,
    )
    assert "e4m3" in fa3.plan(q.x, k.x, v.x, **call)
    fa3.validate(q.x, k.x, v.x, **call)
    call["k_descale"] = k.descale[:, :1]
    for ask in (fa3.plan, fa3.validate):
        with pytest.raises(fa3.InvalidArgument, match="k_descale: "):
            ask(q.x, k.x, v.x, **call)

# SPDX-License-Identifier: Apache-2.0
"""fa3.mla.append, bit for bit as FlashMLA's and vLLM's quantizers write, and gather."""

import zlib

import numpy as np
import pytest
from mla_cases import BF16, E4M3, FORMATS, Cache, attend

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import mla  # noqa: E402

FIRST = np.array([0], np.int32)
NO_ROPE = np.zeros((1, 64), BF16)


def zeros(rows, pages, page_size):
    """A cache of zero bytes, and all its memory."""
    cache = mla.empty_cache(pages, page_size, rows=rows)
    size = pages * mla.page_bytes(rows, page_size)
    memory = np.lib.stride_tricks.as_strided(cache, (size,), (1,))
    memory[:] = 0
    return cache, memory


def wave(channels, token=0):
    return ((37 * np.arange(channels) + 11 * token) % 101 - 50) / 16


ROPE = ((np.arange(64) - 32) / 8).astype(BF16)[None]


@pytest.mark.parametrize("scaling, crc", [("pow2", 0xCEE0D29C), ("exact", 0x8EB68992)])
def test_rows_of_656_bytes_are_those_of_flash_mla_and_of_vllm(scaling, crc):
    cache, memory = zeros("group128", 1, 1)
    mla.append(cache, wave(512).astype(BF16)[None], ROPE, slots=FIRST, scaling=scaling)
    assert zlib.crc32(memory.tobytes()) == crc


def test_rows_of_one_scale_a_tensor_are_those_of_vllm():
    cache = np.zeros((1, 1, 576), np.uint8)
    x = wave(576).astype(BF16)[None]
    given = {"rows": "tensor", "descale": np.array([0.05], np.float32)}
    mla.append(cache, x[:, :512], x[:, 512:], slots=np.array([0]), **given)
    assert zlib.crc32(cache.tobytes()) == 0x2380FA89


@pytest.mark.parametrize(
    "smallest, scales, crc",
    [
        ("flash_mla", "7875727272727200", 0xB5BD8A7B),
        ("vllm", "7875726f6c696900", 0xAC100224),
    ],
)
def test_pages_of_v4_are_those_of_flash_mla_and_of_vllm(smallest, scales, crc):
    cache, memory = zeros("v4", 1, 2)
    x = np.stack([wave(512, o) * 2.0 ** (-3.0 * (np.arange(512) // 64)) for o in (0, 1)])
    x = x.astype(BF16)
    slots = np.array([0, 1], np.int32)
    mla.append(cache, x[:, :448], x[:, 448:], slots=slots, smallest=smallest)
    assert memory[1152:1168].tobytes().hex() == 2 * scales
    assert zlib.crc32(memory.tobytes()) == crc


GROUPS = [  # first numbers of a group, recipe, scale bytes, first data bytes
    ([3, -1.5, 0.1, 0.003], "pow2", "0000003c", "7cf4552c00"),
    ([3, -1.5, 0.1, 0.003], "exact", "b76ddb3b", "7ef6572e00"),
    ([1, 0.5, -0.3, 2**-7], "pow2", "0000803b", "7870ea4000"),
    ([1, 0.5, -0.3, 2**-7], "exact", "2549123b", "7e76f04600"),
    ([448, -448, 1, 0.001], "pow2", "0000803f", "7efe380100"),
    ([448, -448, 1, 0.001], "exact", "0000803f", "7efe380100"),
    ([1e-6, -1e-6, 5e-7], "pow2", "00000039", "04840200"),
    ([1e-6, -1e-6, 5e-7], "exact", "92241931", "7efe7600"),
    ([np.nan, 1, -2], "exact", "2549923b", "7f76fe00"),
    ([], "pow2", "00000039", "0000"),
    ([], "exact", "00008000", "0000"),
    ([np.nan] * 128, "exact", "00008000", "7f7f"),
    ([np.inf, 1, -1], "exact", "0000807f", "7f008000"),
    ([np.inf, 1, -1], "pow2", "0000807f", "7f008000"),
]


@pytest.mark.parametrize("numbers, scaling, scale, data", GROUPS)
def test_a_group_of_128_channels_has_the_documented_bytes(numbers, scaling, scale, data):
    cache, memory = zeros("group128", 1, 1)
    x = np.zeros((1, 512), BF16)
    x[0, 128 : 128 + len(numbers)] = np.array(numbers, BF16)
    mla.append(cache, x, NO_ROPE, slots=FIRST, scaling=scaling)
    assert memory[516:520].tobytes().hex() == scale
    assert memory[128 : 128 + len(data) // 2].tobytes().hex() == data


def test_nan_makes_a_group_nan_where_scales_are_powers_of_two():
    cache, memory = zeros("group128", 1, 1)
    x = np.ones((1, 512), BF16)
    x[0, 130] = -np.nan
    mla.append(cache, x, NO_ROPE, slots=FIRST)
    assert set(memory[128:256]) == {0x7F} and set(memory[:128]) == set(memory[256:512]) != {0x7F}
    assert np.isnan(memory[512:528].view(np.float32)).tolist() == [False, True, False, False]


NUMBERS = [
    *[(2**-10, 0x00), (1.5 * 2**-10, 0x01), (2**-9, 0x01), (-0.0, 0x80), (0.0166, 0x08)],
    *[(0.5, 0x30), (0.53125, 0x30), (0.5625, 0x31), (17, 0x58), (18, 0x59), (19, 0x5A)],
    *[(448, 0x7E), (464, 0x7E), (465, 0x7E), (1e9, 0x7E), (np.inf, 0x7E), (-np.inf, 0xFE)],
    *[(np.nan, 0x7F), (-np.nan, 0x7F)],
]


def test_numbers_saturate_and_nan_has_no_sign():
    x = np.zeros((1, 512), np.float32)
    x[0, : len(NUMBERS)] = [number for number, _ in NUMBERS]
    cache = np.zeros((1, 1, 512), np.uint8)
    given = {"rows": "tensor", "descale": np.ones(1, np.float32)}
    mla.append(cache, x, slots=FIRST, **given)
    assert cache[0, 0, : len(NUMBERS)].tolist() == [code for _, code in NUMBERS]


def quantized(x, scaling):
    """An independent writer: (scales (n, 4), e4m3 (n, 512)) of 128 channels each, in float32."""
    groups = x.astype(np.float32).reshape(len(x), 4, 128)
    scales = (abs(groups).max(-1) / np.float32(448)).astype(np.float32)
    if scaling == "pow2":
        scales = np.exp2(np.ceil(np.log2(np.maximum(scales, np.float32(1e-4)).astype(np.float64))))
    scales = np.maximum(scales, np.float32(2.0**-126)).astype(np.float32)
    numbers = np.clip(groups / scales[..., None], -448, 448).astype(E4M3)
    return scales, numbers.reshape(len(x), 512)


@pytest.mark.parametrize("scaling", ["pow2", "exact"])
def test_random_rows_are_those_of_another_writer(scaling):
    random = np.random.default_rng(4)
    sizes = np.exp2(random.integers(-24, 12, (300, 1)))
    x = (random.standard_normal((300, 512)) * sizes).astype(BF16)
    cache, _ = zeros("group128", 5, 60)
    slots = random.permutation(300)
    mla.append(cache, x, np.repeat(ROPE, 300, 0), slots=slots, scaling=scaling)
    scales, numbers = quantized(x, scaling)
    rows = cache.reshape(300, 656)[slots]
    np.testing.assert_array_equal(rows[:, :512], numbers.view(np.uint8))
    np.testing.assert_array_equal(rows[:, 512:528], scales.view(np.uint8))
    np.testing.assert_array_equal(rows[:, 528:], np.repeat(ROPE.view(np.uint8), 300, 0))


def test_a_row_without_k_pe_has_a_rope_of_zeros():
    cache, memory = zeros("group128", 1, 1)
    memory[:] = 0xFF
    mla.append(cache, np.ones((1, 512), BF16), slots=FIRST)
    assert not memory[528:].any()


@pytest.mark.parametrize("rows", FORMATS)
def test_slots_outside_of_the_cache_are_not_written_and_read_as_zeros(rows):
    cache = Cache(rows, 2, 3)
    before = cache.array.copy()
    slots = np.array([-1, 6, 2**40, -(2**40)])
    given = {**cache.arguments()}
    array = given.pop("cache")
    latent = 448 if rows == "v4" else 512
    mla.append(array, np.ones((4, latent), BF16), np.ones((4, 64), BF16), slots=slots, **given)
    np.testing.assert_array_equal(cache.array.view(np.uint8), before.view(np.uint8))
    assert not mla.gather(array, slots, **given).astype(np.float32).any()


@pytest.mark.parametrize("rows", FORMATS)
def test_gather_gives_what_rows_stand_for(rows):
    cache = Cache(rows, 3, 5, gap=1)
    slots = np.array([14, 0, 7, 7])
    given = cache.arguments()
    got = mla.gather(given.pop("cache"), slots, **given, dtype="float32")
    np.testing.assert_allclose(got, cache.keys(slots), rtol=1e-7)
    narrow = mla.gather(cache.array, slots, **given, dtype="float16")
    np.testing.assert_allclose(narrow.astype(np.float32), got, rtol=2**-11, atol=2**-25)


def rotated(x, cos, sin, interleaved):
    pairs = cos.shape[1]
    one = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    two = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    result = x.astype(np.float64)
    a, b = result[..., one].copy(), result[..., two].copy()
    cos, sin = (
        t.astype(np.float64).reshape(len(x), *[1] * (x.ndim - 2), pairs) for t in (cos, sin)
    )
    result[..., one], result[..., two] = a * cos - b * sin, a * sin + b * cos
    return result


@pytest.mark.parametrize("rows", ["latent", "group128", "tensor"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [32, 20])
def test_rope_channels_are_turned_by_their_position(pairs, interleaved, rows):
    random = np.random.default_rng(6)
    cache = Cache(rows, 2, 4)
    angles = random.standard_normal((9, pairs))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions = np.array([8, 0, 3])
    c_kv, k_pe, q_pe = (
        random.standard_normal(s).astype(BF16) for s in [(3, 512), (3, 64), (3, 5, 64)]
    )
    given = cache.arguments()
    array, slots = given.pop("cache"), np.array([5, 1, 6])
    turned = mla.append(
        array,
        c_kv,
        k_pe,
        slots=slots,
        **given,
        rotary_cos=cos,
        rotary_sin=sin,
        rotary_interleaved=interleaved,
        positions=positions,
        q_pe=q_pe,
    )
    by_position = cos[positions], sin[positions], interleaved
    expected = rotated(q_pe, *by_position)
    np.testing.assert_allclose(turned.astype(np.float64), expected, rtol=2**-8, atol=1e-6)
    rope = cache.keys(slots)[:, 512:]
    loss = 2**-4 if rows == "tensor" else 2**-8
    np.testing.assert_allclose(rope, rotated(k_pe, *by_position), rtol=loss, atol=loss / 8)
    assert abs(rope - k_pe.astype(np.float64)).max() > 0.5


def test_wrong_calls_are_refused_by_a_sentence():
    cache, _ = zeros("v4", 1, 4)
    row, rope = np.zeros((1, 448), BF16), np.zeros((1, 64), BF16)
    tables = {
        "rotary_cos": np.ones((2, 32), np.float32),
        "rotary_sin": np.ones((2, 32), np.float32),
    }
    for given, sentence in [
        ({"c_kv": np.zeros((1, 512), BF16)}, "c_kv: expected channels = 448"),
        ({"scaling": "exact"}, "scaling: expected powers of two for v4 rows"),
        ({"scaling": "log"}, "scaling: expected pow2 or exact"),
        ({"slots": np.zeros(2, np.int32)}, "slots: expected rows = 1"),
        (
            {**tables, "positions": np.array([2])},
            r"positions: expected a row of rotary_cos in \[0, 2",
        ),
        ({"positions": np.array([0])}, "positions: expected none without rotary_cos"),
        ({"q_pe": np.zeros((1, 2, 64), BF16)}, "q_pe: expected none without rotary_cos"),
        ({"descale": np.ones(1, np.float32)}, "descale: expected none"),
    ]:
        call = {"c_kv": row, "k_pe": rope, "slots": FIRST, **given}
        with pytest.raises(fa3.InvalidArgument, match=sentence):
            mla.append(cache, call.pop("c_kv"), call.pop("k_pe"), **call)
    other, _ = zeros("token", 1, 4)
    with pytest.raises(fa3.InvalidArgument, match="smallest: expected flash_mla for other rows"):
        mla.append(other, np.zeros((1, 512), BF16), rope, slots=FIRST, smallest="vllm")
    of_one_scale = np.zeros((1, 4, 512), np.uint8)
    for scale in (0, -1, np.nan, np.inf):
        descale = np.full(1, scale, np.float32)
        with pytest.raises(fa3.InvalidArgument, match="descale: expected finite scales > 0, got"):
            mla.append(of_one_scale, np.ones((1, 512), BF16), slots=FIRST, descale=descale)
    assert not of_one_scale.any()
    with pytest.raises(fa3.InvalidArgument, match="rows: expected one of group128"):
        mla.empty_cache(1, 1, rows="latent")


@pytest.mark.parametrize("rows", ["group128", "v4", "tensor", "token"])
def test_fp8_rows_err_as_their_three_bits_say(rows):
    """Against 16-bit rows: 3.2% of the outputs' size over 1k keys of spread 1 (docs/mla.md)."""
    random, keys = np.random.default_rng(0), 1024
    dim = 512 if rows == "v4" else 576
    x = random.standard_normal((keys, dim)).astype(BF16)
    q = random.standard_normal((1, 1, 32, dim)).astype(BF16)
    given = {"rows": rows}
    if rows == "tensor":
        given["descale"] = np.array([abs(x.astype(np.float32)).max() / 448], np.float32)
    cache, _ = zeros(rows, keys // 64, 64)
    split = 448 if rows == "v4" else 512
    slots = np.arange(keys, dtype=np.int32)
    mla.append(cache, x[:, :split], x[:, split:], slots=slots, **given)
    out = mla.attention(q, cache, indices=slots.reshape(1, 1, keys), **given)
    exact, *_ = attend(q[0, 0], x.astype(np.float64))
    error = np.sqrt(((out[0, 0].astype(np.float64) - exact) ** 2).mean() / (exact**2).mean())
    assert 0.01 < error < 0.032


def test_page_sizes_in_bytes_are_those_of_flash_mla():
    v4 = [mla.page_bytes("v4", size) for size in (1, 2, 61, 64, 256)]
    assert v4 == [1152, 1728, 35712, 37440, 149760]
    assert mla.page_bytes("group128", 64) == 64 * 656 and mla.row_bytes("token") == 644

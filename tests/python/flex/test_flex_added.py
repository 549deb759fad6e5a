# SPDX-License-Identifier: Apache-2.0
"""Functions that add lines and runs of a table: kernels begin their products with them."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3", reason="the Python package is not built")
import fa3  # noqa: E402
from fa3.flex import device as device_of_scores  # noqa: E402

HEADS, ROWS, KEYS = 4, 300, 700

slopes = 2.0 ** -torch.arange(3.0, HEADS + 3)
distances = torch.randn(HEADS, ROWS + KEYS, generator=torch.Generator().manual_seed(1))
keys = torch.randn(2, KEYS, generator=torch.Generator().manual_seed(2))


def functions(device):
    slope, table, key = (x.to(device) for x in (slopes, distances, keys))
    narrow, short, strided = key.half(), table[:, :150], table[:, ::2]
    around = table[:, :64]  # one key has its last element by a bound, another one from the end
    return {
        "line": lambda s, b, h, q, k: s + slope[h] * (k - q),
        "line of a head": lambda s, b, h, q, k: s - (q - k) * 0.03 * (h + 1),
        "two lines": lambda s, b, h, q, k: s - slope[h] * (q - k).abs(),
        "distance": lambda s, b, h, q, k: s + table[h, q - k + KEYS - 1],
        "distances that are clamped": lambda s, b, h, q, k: s + short[h, q - k + 400],
        "distances with bounds": lambda s, b, h, q, k: (
            s + table[h, torch.clamp(q - k + 20, -130, 90) + 140]
        ),
        "bounds that count from the end": lambda s, b, h, q, k: (
            s + around[h, torch.clamp(q - k, -32, 31)]
        ),
        "every second one": lambda s, b, h, q, k: s + strided[h, k // 2],
        "keys": lambda s, b, h, q, k: s + key[b, k],
        "keys of 16 bits": lambda s, b, h, q, k: s + narrow[b, k] * 0.5,
        "keys of a table, and a head's number": lambda s, b, h, q, k: (
            s - strided[h, k // 2] + torch.sin(0.1 * k) * slope[h]
        ),
        "a head's number": lambda s, b, h, q, k: s + slope[h],
        "infinite": lambda s, b, h, q, k: s + torch.log(torch.relu(key[b, k])),
    }


NAMES = [*functions("cpu")]
CLAMPED = "distances that are clamped"


def skip_clamped(device, is_clamped):
    if device == "cpu" and is_clamped:
        pytest.skip("a CPU refuses indices out of range, which a GPU clamps")


def compare(score_mod, tensors, lse_error=2e-5, **options):
    """Output and LSE are those of float64."""
    out, lse = fa3.flex_attention(*tensors, score_mod=score_mod, return_lse=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", device_of_scores.SlowScores)
        right, right_lse = fa3.flex_attention(
            *(t.double() for t in tensors), score_mod=score_mod, return_lse=True, **options
        )
    atol = max(2 * torch.finfo(out.dtype).eps, 5e-6) * right.abs().max().item()
    torch.testing.assert_close(out.double(), right, rtol=0, atol=atol)
    torch.testing.assert_close(
        lse.double(), right_lse.double(), rtol=lse_error, atol=50 * lse_error
    )
    again = fa3.flex_attention(*tensors, score_mod=score_mod, **options)
    assert torch.equal(out, again)


def inputs(device, rows, keys, dim, heads=HEADS):
    draw = torch.Generator().manual_seed(5)
    narrow = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = (2, rows, heads, dim), (2, keys, heads // 2, dim), (2, keys, heads // 2, dim)
    return [torch.randn(*shape, generator=draw).to(narrow).to(device) for shape in shapes]


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (90, 40)}], ids=str)
@pytest.mark.parametrize("dim", [64, 72, 128, 256])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_added_is_that_of_float64(device, name, dim, options):
    skip_clamped(device, name == CLAMPED)
    if dim == 256 and options:
        pytest.skip("head dims beyond 128 have the same hooks: once")
    compare(functions(device)[name], inputs(device, ROWS, KEYS, dim), **options)


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_added_where_rows_see_no_key(device, name):
    skip_clamped(device, name in ("distance", CLAMPED))
    q, k, v = inputs(device, KEYS, ROWS, 64)
    compare(functions(device)[name], (q[:, :350], k, v), causal=True)


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("name", ["line", "two lines", "distances"])
def test_what_is_added_over_many_keys(device, name):
    rows, keys = 130, 12400  # for three warpgroups
    many = torch.randn(2, rows + keys, generator=torch.Generator().manual_seed(3)).to(device)
    slope, shift = slopes.to(device), keys - rows
    given = {
        "line": lambda s, b, h, q, k: s + slope[h] * (k - q - shift),
        "two lines": lambda s, b, h, q, k: s - slope[h] * (q + shift - k).abs(),
        "distances": lambda s, b, h, q, k: s + many[h, q - k + keys - 1],
    }
    compare(given[name], inputs(device, rows, keys, 128, heads=2), causal=True)


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["from the first key", "to the first", "away", "near", "between"])
def test_thousands_that_are_added_leave_scores_their_bits(device, name, dim, options):
    """A product that begins with x / scale would lose three or four digits."""
    rows, count = 200, 4200
    slope = (2.0 ** -torch.arange(2.0)).to(device)
    far = {
        "from the first key": lambda s, b, h, q, k: s + slope[h] * k,
        "to the first": lambda s, b, h, q, k: s - slope[h] * k + 5000,
        "away": lambda s, b, h, q, k: s + 2 * (q + count - rows - k).abs(),
        "near": lambda s, b, h, q, k: s - slope[h] * (q + 2000 - k).abs() + 6000,
        "between": lambda s, b, h, q, k: s - 0.5 * (q - k + 700.5).abs() + 0.25 * k,
    }
    q, k, v = inputs(device, rows, count, dim, heads=2)
    if device == "cuda":
        q, k, v = (x.half() for x in (q, k, v))
    out, lse = fa3.flex_attention(q, k, v, score_mod=far[name], return_lse=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", device_of_scores.SlowScores)
        right, right_lse = fa3.flex_attention(
            *(x.double() for x in (q, k, v)), score_mod=far[name], return_lse=True, **options
        )
    # An addition in float32 rounds thousands by 5e-4.
    error = (out.double() - right).abs().max().item() / right.abs().max().item()
    assert error < 1e-3
    torch.testing.assert_close(lse.double(), right_lse.double(), rtol=0, atol=2e-3)


LARGE = {
    "keys": lambda s, b, h, q, k, low: s + torch.where(k < 200, 0.0, low),
    "distances": lambda s, b, h, q, k, low: s + torch.where((q - k).abs() < 70, 0.0, low),
    "in place of the score": lambda s, b, h, q, k, low: torch.where((q - k).abs() < 70, s, low),
}


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("low", [-1e4, -1e9, -1e12, -1e30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", LARGE)
def test_blocks_of_large_numbers_alone_leave_rows_right(device, name, dim, dtype, low):
    """A row's first blocks have scores whose roundings are larger than other scores."""
    batch, rows = (48, 512) if device == "cuda" else (1, 300)  # enough tiles for Hopper's engine
    draw = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(batch, rows, 2, dim, generator=draw).to(device, dtype) for _ in range(3))
    given = LARGE[name]

    def score_mod(s, b, h, q, k):
        return given(s, b, h, q, k, low)

    out, lse = fa3.flex_attention(q, k, v, score_mod=score_mod, return_lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", device_of_scores.SlowScores)
        right, right_lse = fa3.flex_attention(
            *(x[:2].double() for x in (q, k, v)), score_mod=score_mod, return_lse=True
        )
    atol = 2 * torch.finfo(dtype).eps * right.abs().max().item()
    torch.testing.assert_close(out[:2].double(), right, rtol=0, atol=atol)
    torch.testing.assert_close(lse[:2].double(), right_lse.double(), rtol=0, atol=1e-3)


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_added_to_packed_sequences(device, name):
    skip_clamped(device, name == CLAMPED)
    lengths = torch.tensor([0, 1, 130, 430, 700], dtype=torch.int32)
    q, k, v = (x.flatten(0, 1)[:700] for x in inputs(device, 350, 350, 64))
    given = functions(device)[name]

    def of_two_sequences(s, b, h, q, k):  # the tables have two
        return given(s, b % 2, h, q, k)

    compare(
        of_two_sequences,
        (q, k, v),
        causal=True,
        cu_seqlens_q=lengths.to(device),
        cu_seqlens_k=lengths.to(device),
        max_seqlen_q=300,
        max_seqlen_k=300,
    )


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("extent, shift", [(ROWS + KEYS, KEYS - 1), (150, 400), (90, -20)])
def test_gradients_of_distances_are_those_of_float64(device, dim, extent, shift):
    """Also of distances beyond the table, which are clamped or count from its end."""
    skip_clamped(device, extent < ROWS + KEYS)
    q, k, v = inputs(device, ROWS, KEYS, dim)
    table = torch.randn(HEADS, extent, generator=torch.Generator().manual_seed(7)).to(device)
    upstream = torch.randn(2, ROWS, HEADS, dim, generator=torch.Generator().manual_seed(8))
    upstream = upstream.to(device)

    def gradients(*tensors, nothing=None):
        q, k, v, table = (t.detach().requires_grad_() for t in tensors)

        def distance(s, b, h, i, j):
            return s + table[h if nothing is None else h + i * nothing, i - j + shift]

        out = fa3.flex_attention(q, k, v, score_mod=distance, window=(400, 60))
        return torch.autograd.grad((out * upstream).sum(), (q, k, v, table))

    mine = gradients(q, k, v, table)
    one_by_one = gradients(q, k, v, table, nothing=0)  # the table's row might be the query's
    largest = one_by_one[3].abs().max().item()
    torch.testing.assert_close(mine[3], one_by_one[3], rtol=0, atol=5e-5 * largest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", device_of_scores.SlowScores)
        right = gradients(*(t.double() for t in (q, k, v, table)))
    for a, b in zip(mine, right, strict=True):
        atol = max(4 * torch.finfo(q.dtype).eps, 5e-5) * b.abs().max().item()
        torch.testing.assert_close(a.double(), b, rtol=0, atol=atol)

# SPDX-License-Identifier: Apache-2.0
"""Results keep to the tensors of the call, whatever torch's default device and type are."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("fa3.torch")
from fa3 import masks  # noqa: E402


@contextlib.contextmanager
def defaults(device=None, dtype=None):
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        with contextlib.nullcontext() if device is None else torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def made(*shape, dtype=torch.float32):
    generator = torch.Generator("cpu").manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, device="cpu", generator=generator).to(dtype)


def with_gradients(call, *tensors, **options):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = call(*leaves, **options)
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


Q, K, V = made(1, 9, 4, 16), made(1, 9, 2, 16), made(1, 9, 2, 16)
WIDE = [x.double() for x in (Q, K, V)]
PACKED = [x[0] for x in WIDE]
STARTS = torch.tensor([0, 4, 9], dtype=torch.int32)
LENGTHS = {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS}
MASK = masks.from_dense(made(1, 1, 9, 9) > -1)
MERGED = made(2, 1, 9, 4, 16, dtype=torch.float64), made(2, 1, 4, 9, dtype=torch.float64)


def biased(q, k, v, bias, **options):
    return fa3.attention(q, k, v, bias=bias, **options)


def sloped(q, k, v, slopes, **options):
    return fa3.attention(q, k, v, alibi_slopes=slopes, **options)


CALLS = {
    "float64": lambda: with_gradients(fa3.attention, *WIDE, causal=True, window=(3, 1)),
    "float64, a sink": lambda: with_gradients(fa3.attention, *WIDE, sink=made(4)),
    "float64, packed": lambda: with_gradients(fa3.attention, *PACKED, **LENGTHS, sink=made(4)),
    "float64, a mask": lambda: with_gradients(fa3.attention, *WIDE, block_mask=MASK),
    "float64, dropout": lambda: with_gradients(
        fa3.attention, *WIDE, dropout_p=0.3, dropout_seed=(1, 2)
    ),
    "float64, merge": lambda: [fa3.merge(*MERGED)[0]],
    "a bias": lambda: with_gradients(biased, Q, K, V, made(1, 4, 9, 9), softcap=3.0),
    "one bias for all queries": lambda: with_gradients(biased, Q, K, V, made(1, 1, 1, 9)),
    "a bias of booleans": lambda: [fa3.attention(Q, K, V, bias=made(9, 9) > -1, causal=True)],
    "slopes": lambda: with_gradients(sloped, Q, K, V, made(4)),
    "slopes of sequences": lambda: with_gradients(
        sloped, *(x[0] for x in (Q, K, V)), made(2, 4), **LENGTHS, max_seqlen_q=5, max_seqlen_k=5
    ),
    "dropout": lambda: [
        fa3.attention(Q, K, V, dropout_p=0.3, generator=torch.Generator("cpu").manual_seed(1))
    ],
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "default",
    [{"device": "meta"}, {"dtype": torch.float64}, {"dtype": torch.bfloat16}],
    ids=["meta", "float64", "bfloat16"],
)
def test_defaults_change_no_result(name, default):
    from fa3.flex.kept import table

    table.clear()  # of what calls before have left
    with defaults(**default):
        actual = CALLS[name]()
    expected = CALLS[name]()
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)

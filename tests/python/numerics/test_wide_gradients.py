# SPDX-License-Identifier: Apache-2.0
"""Gradients in float32 of 16-bit inputs, for callers who add parts up: before they are rounded."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3._options import in_order  # noqa: E402
from fa3.torch.operators import run_backward  # noqa: E402


def gradients(dtype, wide, **options):
    torch.manual_seed(0)
    made = ((2, 37, 4, 16), (2, 53, 2, 16), (2, 53, 2, 8), (2, 37, 4, 8))
    q, k, v, do = (torch.randn(shape).to(dtype) for shape in made)
    out, lse = fa3.attention(q, k, v, return_lse=True, **options)
    parts = [torch.empty_like(x, dtype=wide) for x in (q, k, v)]
    run_backward(do, q, k, v, out, lse, None, (*parts, None), in_order("attention", options))
    return parts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_they_round_to_those_of_the_inputs_type(dtype):
    wide, narrow = (gradients(dtype, of, causal=True) for of in (torch.float32, dtype))
    for x, y in zip(wide, narrow, strict=True):
        assert torch.equal(x.to(dtype), y) and not torch.equal(x, y.float())


def test_rows_that_nothing_sees_have_zeros_of_float32():
    used = torch.tensor([5, 0], dtype=torch.int32)
    dq, dk, dv = gradients(torch.bfloat16, torch.float32, seqused_q=used, seqused_k=used)
    assert not any(x[n, rows:].any() for x in (dq, dk, dv) for n, rows in enumerate((5, 0)))


@pytest.mark.parametrize("engine", ["reference", "standard"])
def test_engines_without_them_say_so(engine):
    with pytest.raises(fa3.Unsupported, match="gradients of float32 from inputs of bfloat16"):
        gradients(torch.bfloat16, torch.float32, engine=engine)


def test_other_types_are_refused():
    with pytest.raises(fa3.InvalidArgument, match="dq: expected the dtype of q"):
        gradients(torch.bfloat16, torch.float16)

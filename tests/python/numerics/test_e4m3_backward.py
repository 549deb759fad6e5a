# SPDX-License-Identifier: Apache-2.0
"""How far gradients are from exact ones if all products of the backward are of e4m3."""

import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
torch = pytest.importorskip("torch", reason="torch gives the oracle its float8")

from e4m3_backward_oracle import gradients  # noqa: E402


def inputs(queries, keys, heads, kv_heads):
    torch.manual_seed(0)
    q, d_o = torch.randn(2, 1, queries, heads, 128)
    k, v = torch.randn(2, 1, keys, kv_heads, 128)
    return q, k, v, d_o


def found(q, k, v, d_o, causal):
    q8, k8 = (fa3.quantize(x, hadamard=True, center=x is k) for x in (q, k))
    v8 = fa3.quantize(v, center=True)
    descales = [x.descale for x in (q8, k8, v8)]
    names = "q_descale", "k_descale", "v_descale"
    o, lse = fa3.attention(
        q8.x, k8.x, v8.x, **dict(zip(names, descales, strict=True)), causal=causal,
        return_lse=True, out=torch.empty_like(q),
    )  # fmt: skip
    return gradients(
        (q8.x, k8.x, v8.x), descales, q, k, o, d_o, lse, 128**-0.5, causal, k.float().mean(1)
    )


def errors(q, k, v, d_o, causal):
    """Of dQ, dK and dV in percent, beside float64 on the same tensors of bf16."""
    q, k, v, d_o = (x.bfloat16() for x in (q, k, v, d_o))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out = fa3.attention(*leaves, causal=causal)
    exact = torch.autograd.grad(out, leaves, d_o.double())
    pairs = zip(found(q, k, v, d_o, causal), exact, strict=True)
    return [100 * float((x - y).norm() / y.norm()) for x, y in pairs]


@pytest.mark.parametrize(
    "data, causal, most",
    [
        ("normal", False, (6.8, 6.8, 5.6)),
        ("normal", True, (6.8, 6.8, 5.4)),
        ("four heads share a key head", True, (6.8, 6.8, 5.4)),
        ("Q * 4", False, (12.5, 12.5, 10)),
        ("K has a mean", False, (6.8, 6.8, 5.6)),
        ("V has a mean", False, (6.8, 6.8, 5.6)),
    ],
)
def test_error_is_what_rounding_to_e4m3_costs(data, causal, most):
    group = 4 if data.startswith("four") else 1
    q, k, v, d_o = inputs(640, 640, group, 1)
    q = 4 * q if data == "Q * 4" else q
    k = k + 3 * torch.randn(128) if data.startswith("K") else k
    v = 2 + v / 2 if data.startswith("V") else v
    for error, bound in zip(errors(q, k, v, d_o, causal), most, strict=True):
        assert error < bound


def test_error_does_not_grow_with_the_number_of_keys():
    """Small weights stay normal numbers: they are multiplied by what their row's largest lacks."""
    assert max(errors(*inputs(64, 16384, 1, 1), causal=False)) < 7.5


def test_size_of_the_outputs_gradient_does_not_matter():
    q, k, v, d_o = (x.bfloat16() for x in inputs(130, 200, 1, 1))
    factor = 2.0**-40
    for x, y in zip(found(q, k, v, d_o, True), found(q, k, v, d_o * factor, True), strict=True):
        torch.testing.assert_close(y, x * factor, rtol=1e-6, atol=0)

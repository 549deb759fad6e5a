# SPDX-License-Identifier: Apache-2.0
"""torch.func's transforms inside of each other and of autograd: each level has its gradient.

In float64 torch's own operators compute the right values (fa3/torch/textbook.py).
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("fa3.torch")

from torch.func import grad, jacfwd, jacrev, jvp, vjp  # noqa: E402


def tensors():
    torch.manual_seed(0)
    return [torch.randn(1, 9, heads, 16) for heads in (4, 2, 2)]


def agree(call, *inputs):
    """call(*inputs) in float32, where fa3 runs, and in float64."""
    wide = call(*(x.double() for x in inputs))
    actual = call(*inputs)
    assert wide.abs().max() > 1e-3
    torch.testing.assert_close(actual.double(), wide, rtol=1e-4, atol=1e-4)


def test_a_first_derivative_outside_of_another_ones_transform():
    def call(q, k, v):
        inner = lambda a: vjp(lambda b: fa3.attention(a, b, v, causal=True), k)[0]  # noqa: E731
        return grad(lambda a: inner(a).square().sum())(q)

    agree(call, *tensors())


def test_the_gradient_for_one_argument_inside_of_that_for_another():
    """d/dv of what does not depend on the inner gradient, which is computed and thrown away."""

    def call(q, k, v):
        def loss(v):
            gradient, value = torch.func.grad_and_value(
                lambda a: fa3.attention(a, k, v).square().sum()
            )(q)
            return value + 0 * gradient.detach().sum()

        return grad(loss)(v)

    agree(call, *tensors())


def test_autograd_outside_of_a_transform():
    def call(q, k, v):
        leaf = v.clone().requires_grad_()
        value = vjp(lambda a: fa3.attention(a, k, leaf, causal=True), q)[0]
        return torch.autograd.grad(value.square().sum(), leaf)[0]

    agree(call, *tensors())


def test_three_levels():
    def call(q, k, v):
        def of_v(v):
            return grad(lambda k: vjp(lambda q: fa3.attention(q, k, v), q)[0].square().sum())(k)

        return jacrev(lambda v: vjp(lambda k: fa3.attention(q, k, v), k)[0].sum())(v) + of_v(v)

    agree(call, *tensors())


SECOND = {
    "grad(grad)": lambda f, q: grad(lambda x: grad(f)(x).square().sum())(q),
    "jacrev(grad)": lambda f, q: jacrev(grad(f))(q),
    "autograd(grad)": lambda f, q: grad(f)(q.clone().requires_grad_()).square().sum().backward(),
}


@pytest.mark.parametrize("ask", SECOND.values(), ids=SECOND)
def test_second_derivatives_are_refused_not_zero(ask):
    q, k, v = tensors()
    with pytest.raises(fa3.Unsupported, match="no second derivatives"):
        ask(lambda x: fa3.attention(x, k, v).square().sum(), q)


def test_a_penalty_of_a_gradient_in_a_training_loss():
    """float32 refuses it; float64 is torch's own operators."""
    q, k, v = tensors()

    def loss(weight, q, k, v):
        energy = lambda x: fa3.attention(x, k, v).square().sum()  # noqa: E731
        return grad(energy)(q @ weight).square().sum()

    weight = torch.eye(16).requires_grad_()
    with pytest.raises(fa3.Unsupported, match="no second derivatives"):
        loss(weight, q, k, v).backward()
    wide = torch.eye(16, dtype=torch.float64).requires_grad_()
    loss(wide, *(x.double() for x in (q, k, v))).backward()
    assert wide.grad.abs().max() > 1


def test_forward_mode_outside_of_a_gradient_is_refused_not_zero():
    q, k, v = tensors()
    gradient = grad(lambda x: fa3.attention(x, k, v).square().sum())
    with pytest.raises(fa3.Unsupported, match="no (forward-mode|second) derivative"):
        jvp(gradient, (q,), (q,))
    with pytest.raises(fa3.Unsupported, match="no (forward-mode|second) derivative"):
        jacfwd(gradient)(q)


@pytest.mark.parametrize("level", ["grad", "autograd"])
def test_merge_has_every_derivative_on_every_level(level):
    torch.manual_seed(0)
    o_partial, lse_partial = torch.randn(2, 1, 3, 4, 16), torch.randn(2, 1, 4, 3)

    def call(o_partial, lse_partial):
        gradient = grad(lambda x: fa3.merge(o_partial, x)[0].square().sum())
        if level == "grad":
            return grad(lambda x: gradient(x).square().sum())(lse_partial)
        leaf = lse_partial.clone().requires_grad_()
        return torch.autograd.grad(gradient(leaf).square().sum(), leaf)[0]

    agree(call, o_partial, lse_partial)


def test_rotated_queries_have_their_gradient_on_every_level():
    torch.manual_seed(0)
    q, angle = torch.randn(1, 3, 2, 16), torch.rand(8, 8)

    def rotated(q):
        caches = [torch.zeros(1, 8, 2, 16) for _ in range(2)]
        new, seqused = torch.zeros(1, 3, 2, 16), torch.zeros(1, dtype=torch.int32)
        tables = {"rotary_cos": angle.cos(), "rotary_sin": angle.sin()}
        return fa3.append(*caches, new, new, q=q, seqused=seqused, **tables)

    expected = grad(lambda q: (rotated(q) ** 4).sum())(q)
    outer = grad(lambda q: vjp(rotated, q)[0].pow(4).sum())
    torch.testing.assert_close(outer(q), expected)
    inner = lambda q: grad(lambda x: (rotated(x) ** 2).sum())(q)  # noqa: E731
    torch.testing.assert_close(grad(lambda q: inner(q).square().sum())(q), 8 * q)

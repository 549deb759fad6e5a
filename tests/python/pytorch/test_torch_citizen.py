# SPDX-License-Identifier: Apache-2.0
"""What torch expects of operators: any gradient, versions, second derivatives, never zeros."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("fa3.torch")

from torch_tensors import tensors  # noqa: E402

from fa3 import _native  # noqa: E402
from fa3.torch import operators  # noqa: E402

SHAPES = (2, 9, 4, 16), (2, 12, 2, 16), (2, 12, 2, 16)


@pytest.fixture
def qkv(device):
    return [a.requires_grad_() for a in tensors(device, *SHAPES)]


def ones_of(device, *shape):
    return torch.ones(shape, device=device, dtype=tensors(device, (1,))[0].dtype)


# Losses whose gradient autograd hands over in a layout of its own.
LOSSES = {
    "sum": lambda out: out.sum(),
    "over batch": lambda out: out.sum(0).square().sum(),
    "over rows": lambda out: out.sum(1).square().sum(),
    "over heads": lambda out: out.sum(2).square().sum(),
    "over channels": lambda out: out.sum(3).square().sum(),
    "sliced": lambda out: out[:, 1:, ::2, :3].square().sum(),
    "one more column": lambda out: (
        torch.cat([out.flatten(2), ones_of(out.device.type, 2, 9, 1)], -1).square().sum()
    ),
    "one column before": lambda out: (
        torch.cat([ones_of(out.device.type, 2, 9, 1), out.flatten(2)], -1).square().sum()
    ),
    "transposed": lambda out: (out.transpose(1, 3) @ out.transpose(1, 3).mT).sum(),
    "negated": lambda out: torch.complex(*[out.float()] * 2).conj().imag.square().sum(),
}


def is_readable_by_tma(tensor):
    unit = 16 // tensor.element_size()
    steps = [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1][:-1]
    whole = tensor.data_ptr() % 16 == 0 and all(s > 0 and s % unit == 0 for s in steps)
    return whole and tensor.stride(-1) == 1


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_gradients_of_every_layout_reach_the_library_as_it_reads_them(qkv, loss, monkeypatch):
    reached = []

    def watched(lend, do, *rest):
        reached.append(do)
        return run(lend, do, *rest)

    run = _native.backward
    monkeypatch.setattr(_native, "backward", watched)
    out = fa3.attention(*qkv, causal=True)
    (do,) = torch.autograd.grad(loss(out), out, retain_graph=True)
    expected = torch.autograd.grad(
        out, qkv, do.resolve_neg().clone(memory_format=torch.contiguous_format), retain_graph=True
    )
    actual = torch.autograd.grad(loss(out), qkv)
    assert len(reached) == 2 and all(map(is_readable_by_tma, reached))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_keys_that_are_expanded_along_heads_have_heads_of_their_own_in_a_backward(
    device, monkeypatch
):
    """A forward takes them as one head that queries share; each has a gradient."""
    q, k, v = tensors(device, (2, 9, 4, 32), (2, 9, 1, 32), (2, 9, 1, 32))
    k, v = (x.expand(2, 9, 4, 32).requires_grad_() for x in (k, v))
    assert k.stride(-2) == v.stride(-2) == 0
    copies = [x.detach().contiguous().requires_grad_() for x in (k, v)]
    expected = torch.autograd.grad(fa3.attention(q, *copies).sum(), copies)
    reached = []

    def watched(lend, do, q, k, v, *rest):
        reached.extend((k, v))
        return run(lend, do, q, k, v, *rest)

    run = _native.backward
    monkeypatch.setattr(_native, "backward", watched)
    actual = torch.autograd.grad(fa3.attention(q, k, v).sum(), (k, v))
    assert len(reached) == 2 and all(map(is_readable_by_tma, reached))
    torch.testing.assert_close(actual, expected)
    of_flex = torch.autograd.grad(fa3.flex_attention(q, k, v).sum(), (k, v))
    torch.testing.assert_close(of_flex, expected)


def layouts(do):
    """The numbers of `do` in layouts that TMA cannot read, by name."""
    wide = do.new_zeros((*do.shape[:-1], do.shape[-1] + 1))
    wide[..., :-1] = do
    moved = do.new_zeros(do.numel() + 1)
    moved[1:] = do.flatten()
    yield "rows apart", wide[..., :-1]
    yield "unaligned", moved[1:].view(do.shape)
    yield "columns apart", do.repeat_interleave(2, -1)[..., ::2]
    yield "negated", torch._neg_view(-do)
    yield "one row", do[:, :1].expand_as(do)


def test_attention_backward_reads_gradients_of_every_layout(qkv):
    q, k, v = (a.detach() for a in qkv)
    out, lse = fa3.attention(q, k, v, return_lse=True)
    for name, do in layouts(torch.randn_like(out)):
        assert name == "negated" or not is_readable_by_tma(do), name
        copied = do.resolve_neg().clone(memory_format=torch.contiguous_format)
        actual = fa3.attention_backward(do, q, k, v, out, lse)
        expected = fa3.attention_backward(copied, q, k, v, out, lse)
        assert all(map(torch.equal, actual[:3], expected[:3])), name


@pytest.mark.parametrize("columns", [7, 16, 59])
def test_a_copy_for_tma_has_the_numbers_and_the_layout(device, columns):
    (do,) = tensors(device, (2, 5, 3, columns))
    for name, odd in layouts(do):
        if name != "negated":  # those come resolved
            copy = operators.readable_by_tma(odd)
            assert torch.equal(copy, odd) and is_readable_by_tma(copy), name
    (whole,) = tensors(device, (2, 5, 3, 64))
    assert operators.readable_by_tma(whole) is whole


def test_merges_take_gradients_of_every_layout(device):
    o_partial = torch.randn(3, 2, 9, 4, 16, device=device, requires_grad=True)
    lse_partial = torch.randn(3, 2, 4, 9, device=device, requires_grad=True)
    out, _ = fa3.merge(o_partial, lse_partial)
    for name, do in layouts(torch.randn_like(out)):
        copied = do.resolve_neg().clone(memory_format=torch.contiguous_format)
        leaves = o_partial, lse_partial
        actual = torch.autograd.grad(out, leaves, do, retain_graph=True)
        expected = torch.autograd.grad(out, leaves, copied, retain_graph=True)
        assert all(map(torch.equal, actual, expected)), name


# In-place writes


def appended(k_cache, v_cache, k, v, **how):
    seqused = torch.zeros(2, dtype=torch.int32, device=k.device)
    return fa3.append(k_cache, v_cache, k, v, seqused=seqused, **how)


@pytest.mark.parametrize("write", ["attention", "forward_out", "append"])
def test_what_autograd_saved_and_fa3_overwrote_is_noticed(qkv, write):
    q, k, v = (a.detach() for a in qkv)
    buffer = torch.ones_like(q if write != "append" else k)
    factor = torch.ones_like(buffer, requires_grad=True)
    product = buffer * factor  # saves buffer
    version = buffer._version
    if write == "attention":
        fa3.attention(q, k, v, out=buffer)
    elif write == "forward_out":
        torch.ops.fa3.forward_out(q, k, v, buffer)
    else:
        appended(buffer, torch.zeros_like(v), k, v)
    assert buffer._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


NUMBERS = {
    "scale": (0.5, 2.0),
    "softcap": (1.0, 9.0),
    "dropout_p": (0.5, 0.125),
    "causal": (True, False),
    "attention_chunk": (3, 5),
    "window": ((2, 1), (0, 0)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_tensors_are_those_of_the_forward(qkv, name):
    """A schedule writes the next step's number into its tensor, before or after the backward."""
    now, later = NUMBERS[name]
    options = {"dropout_seed": (1, 2)} if name == "dropout_p" else {}
    out = fa3.attention(*qkv, **options, **{name: now})
    expected = torch.autograd.grad(out.sum(), qkv)
    held = torch.tensor(now)
    out = fa3.attention(*qkv, **options, **{name: held})
    held.copy_(torch.tensor(later))
    actual = torch.autograd.grad(out.sum(), qkv)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_writes_into_inference_tensors_need_no_version(qkv):
    q, k, v = (a.detach() for a in qkv)
    with torch.inference_mode():
        buffer, caches = torch.empty_like(q), [torch.zeros_like(k), torch.zeros_like(v)]
        fa3.attention(q, k, v, out=buffer)
        appended(*caches, k, v)
    assert torch.equal(buffer, fa3.attention(q, k, v)) and torch.equal(caches[0], k)


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "result"])
def test_what_needs_a_gradient_is_not_written(qkv, leaf):
    q, k, v = (a.detach() for a in qkv)

    def needing(tensor):
        tensor = torch.zeros_like(tensor).requires_grad_()
        return tensor if leaf else tensor * 2

    for write in (
        lambda: fa3.attention(q, k, v, out=needing(q)),
        lambda: torch.ops.fa3.forward_out(q, k, v, needing(q)),
    ):
        with pytest.raises(fa3.InvalidArgument, match="^out: expected a tensor that needs no grad"):
            write()
    for name, caches in (
        ("k_cache", (needing(k), torch.zeros_like(v))),
        ("v_cache", (torch.zeros_like(k), needing(v))),
    ):
        with pytest.raises(fa3.InvalidArgument, match=f"^{name}: expected a tensor that needs no"):
            appended(*caches, k, v)
        with torch.no_grad():
            appended(*caches, k, v)
            assert torch.equal(caches[0], k)


@pytest.mark.parametrize("name", ["k", "v"])
def test_rows_that_need_a_gradient_are_not_lost_in_a_cache(qkv, name):
    rows = dict(zip(("k", "v"), (a.detach() for a in qkv[1:]), strict=True))
    rows[name].requires_grad_()
    caches = [torch.zeros_like(x) for x in rows.values()]
    with pytest.raises(fa3.InvalidArgument, match=f"^{name}: expected a tensor that needs no grad"):
        appended(*caches, **rows)


# Second derivatives


def penalty(q, call):
    """A gradient penalty over a loss that is linear in the results."""
    out = call(q)
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    return out.sum() + gradient.square().sum()


ASKED = {
    "penalty": lambda call, q: penalty(q, call).backward(),
    "hessian": lambda call, q: torch.autograd.functional.hessian(
        lambda x: call(x).square().sum(), q
    ),
    "unused": lambda call, q: torch.autograd.grad(
        torch.autograd.grad(call(q).sum(), q, create_graph=True)[0].sum(), q, allow_unused=True
    ),
    "func": lambda call, q: torch.func.grad(lambda x: penalty(x, call))(q),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("lse", [False, True], ids=["out", "lse"])
def test_second_derivatives_raise_where_they_are_asked_for(qkv, ask, lse):
    q, k, v = (a.detach() for a in qkv)

    def call(x):
        result = fa3.attention(x, k, v, return_lse=True)[lse]
        return result.float()

    with pytest.raises(fa3.Unsupported, match="no second derivatives"):
        ask(call, q.requires_grad_())


def test_the_bare_backward_has_no_silent_derivative(qkv):
    q, k, v = qkv
    out, lse = fa3.attention(q.detach(), k.detach(), v.detach(), return_lse=True)
    for call in (torch.ops.fa3.backward, fa3.attention_backward):
        dq = call(torch.ones_like(out), q, k.detach(), v.detach(), out, lse)[0]
        with pytest.raises(fa3.Unsupported, match="no second derivatives"):
            dq.sum().backward()


def test_the_bare_operators_are_differentiable(qkv):
    expected = torch.autograd.grad(fa3.attention(*qkv, causal=True).square().sum(), qkv)
    out, _ = torch.ops.fa3.forward(*qkv, True)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), qkv), expected)


@pytest.mark.filterwarnings("ignore:Input #.* requires gradient and is not a double")
def test_the_second_derivative_of_merge_is_that_of_differences():
    torch.manual_seed(0)
    leaves = [torch.randn(s, requires_grad=True) for s in ((2, 1, 2, 1, 2), (2, 1, 1, 2))]
    tolerances = {"eps": 1e-2, "atol": 5e-3, "rtol": 2e-3}
    assert torch.autograd.gradgradcheck(fa3.merge, leaves, **tolerances)


def test_quantize_refuses_gradients(qkv):
    for quantize in (fa3.quantize, torch.ops.fa3.quantize):
        with pytest.raises(fa3.InvalidArgument, match="^x: expected a tensor that needs no grad"):
            quantize(qkv[0])


def test_the_library_says_what_has_no_gradient():
    q, k, v = tensors("cpu", *SHAPES)
    assert _native.backward_supported(q, k, v, True) is None
    with pytest.raises(fa3.InvalidArgument, match="k: expected"):
        _native.backward_supported(q, k[..., :8], v)
    cuda, strides = 2, (59 * 2 * 9, 59 * 2, 59, 1)
    on_gpu = 0, "float16", cuda, 0, (2, 9, 2, 59), strides
    with pytest.raises(fa3.Unsupported):
        _native.backward_supported(on_gpu, on_gpu, on_gpu)


def test_head_dims_without_gradient_are_refused_at_the_forward(device):
    if device == "cpu":
        pytest.skip("the CPU engine has gradients for every head dim")
    q, k, v = (a.requires_grad_() for a in tensors(device, *[(1, 8, 2, d) for d in (64, 64, 320)]))
    fa3.attention(q.detach(), k.detach(), v.detach())
    with pytest.raises(fa3.Unsupported, match="no backward kernel for head dims 64 and 320"):
        fa3.attention(q, k, v)


# append(q=)


def rotated(q, cos, sin, positions):
    """In plain torch: pairs are columns i and i + rotary_dim / 2."""
    at = positions[:, None] + torch.arange(q.shape[1], device=q.device)
    cos, sin = (table[at][:, :, None] for table in (cos, sin))
    half = cos.shape[-1]
    a, b, rest = q[..., :half], q[..., half : 2 * half], q[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def test_append_keeps_the_gradient_of_the_queries(qkv):
    q, k, v = (a.detach() for a in qkv)
    angle = torch.rand(40, 4, device=q.device)
    cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
    used = torch.tensor([0, 3], dtype=torch.int32, device=q.device)
    caches = [a.new_zeros((2, 20, *a.shape[2:])) for a in (k, v)]
    q.requires_grad_()
    turned = fa3.append(*caches, k, v, seqused=used, rotary_cos=cos, rotary_sin=sin, q=q)
    expected = rotated(q, cos, sin, used.clone().long())
    used += 12  # as a program does before its backward
    tolerance = {"rtol": 0, "atol": 1e-6 if q.dtype == torch.float32 else 0.05}
    torch.testing.assert_close(turned, expected, **tolerance)
    weight = torch.randn_like(q)
    actual, exact = (torch.autograd.grad((x * weight).sum(), q)[0] for x in (turned, expected))
    torch.testing.assert_close(actual, exact, **tolerance)


def test_tables_of_a_rotation_need_no_gradient(qkv):
    q, k, v = (a.detach() for a in qkv)
    tables = [torch.rand(40, 4, device=q.device, dtype=q.dtype) for _ in range(2)]
    caches = [torch.zeros_like(k), torch.zeros_like(v)]
    tables[0].requires_grad_()
    with pytest.raises(fa3.InvalidArgument, match="^rotary_cos: expected a tensor that needs no"):
        appended(*caches, k, v, rotary_cos=tables[0], rotary_sin=tables[1], q=q)


# merge


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_partial_without_keys_counts_for_nothing_whatever_it_holds(dtype):
    torch.manual_seed(0)
    o = torch.randn(3, 1, 4, 2, 8, dtype=dtype)
    lse = torch.randn(3, 1, 2, 4, dtype=dtype)
    lse[1], lse[:, :, :, 0] = -torch.inf, -torch.inf
    o[1], o[:, :, 0] = torch.nan, torch.inf
    weight = torch.randn(1, 4, 2, 8, dtype=dtype)

    def gradients(o, lse):
        leaves = [a.clone().requires_grad_() for a in (o, lse)]
        out, total = fa3.merge(*leaves)
        loss = (out * weight).sum() + total.where(total != -torch.inf, 0.0).square().sum()
        return torch.autograd.grad(loss, leaves)

    d_o, d_lse = gradients(o, lse)
    assert not d_o[1].any() and not d_lse[1].any()
    assert not d_o[:, :, 0].any() and not d_lse[:, :, :, 0].any()
    kept = gradients(o[::2].nan_to_num(posinf=0.0), lse[::2])
    torch.testing.assert_close((d_o[::2], d_lse[::2]), kept)

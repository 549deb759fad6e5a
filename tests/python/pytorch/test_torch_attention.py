# SPDX-License-Identifier: Apache-2.0
"""fa3.attention on torch tensors: values and gradients, on every device that torch has."""

import error_model
import numpy as np
import oracle
import pytest
from cases import CASES, inputs_for
from checks import assert_within

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def to_torch(x, dtype, device):
    """q, k, v as leaves that want a gradient, do, and the options, on `device`."""
    q, k, v, do = (torch.tensor(a, dtype=DTYPES[dtype], device=device) for a in x[:4])
    options = dict(x.options)
    if options.get("sink") is not None:
        sink = torch.tensor(options["sink"], dtype=torch.float32, device=device)
        options["sink"] = sink.requires_grad_()
    return [a.requires_grad_() for a in (q, k, v)], do, options


def to_numpy(tensor):
    return tensor.detach().to(torch.float64).cpu().numpy()


@pytest.fixture
def qkv(device):
    dtype = "bfloat16" if device == "cuda" else "float32"
    return to_torch(inputs_for("gqa", dtype), dtype, device)[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients_equal_the_oracle(device, name, dtype):
    x = inputs_for(name, dtype)
    leaves, do, options = to_torch(x, dtype, device)
    out, lse = fa3.attention(*leaves, return_lse=True, **options)
    out.backward(do)
    score_dtype = error_model.score_dtype_of("hopper" if device == "cuda" else "auto", dtype)
    bound = error_model.bounds(*x[:4], dtype=dtype, score_dtype=score_dtype, **x.options)
    expected_out, expected_lse = oracle.forward(x.q, x.k, x.v, **x.options)
    assert_within("out", to_numpy(out), expected_out, bound.o)
    assert_within("lse", to_numpy(lse), expected_lse, bound.lse)
    expected = oracle.backward(*x[:4], **x.options)
    gradients = [a.grad for a in (*leaves, *filter(torch.is_tensor, [options.get("sink")]))]
    for name, actual, exact in zip(("dq", "dk", "dv", "dsink"), gradients, expected, strict=False):
        assert_within(name, to_numpy(actual), exact, getattr(bound, name))


def test_gradients_flow_through_a_model_like_those_of_math_in_float64(device):
    """A projection before and after, a residual, and the scalar loss whose gradient is expanded."""
    torch.manual_seed(0)
    x = torch.randn(2, 10, 24, device=device, requires_grad=True)
    w_in, w_out = (torch.randn(s, device=device) / 5 for s in ((24, 72), (24, 24)))
    if device == "cuda":
        x, w_in, w_out = (a.bfloat16() for a in (x, w_in, w_out))
        x = x.detach().requires_grad_()

    def model(attend, x, w_in, w_out):
        q, k, v = (x @ w_in).view(2, 10, 3, 3, 8).unbind(2)
        return (attend(q, k, v).flatten(2) @ w_out + x).sum()

    def math(q, k, v):
        q, k, v = (a.transpose(1, 2) for a in (q, k, v))
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        hidden = torch.ones(10, 10, dtype=torch.bool, device=device).triu(1)
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)

    model(lambda *a: fa3.attention(*a, causal=True), x, w_in, w_out).backward()
    exact = x.detach().double().requires_grad_()
    model(math, exact, w_in.double(), w_out.double()).backward()
    tolerance = 1e-5 if device == "cpu" else 0.1
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=0, atol=tolerance)


def test_packed_sequences_equal_separate_ones(device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    q, k, v = (torch.randn(12, h, 16, device=device, dtype=dtype) for h in (4, 2, 2))
    leaves = [a.requires_grad_() for a in (q, k, v)]
    cuts = [0, 5, 5, 12]
    cu_seqlens = torch.tensor(cuts, dtype=torch.int32, device=device)
    packing = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), cu_seqlens)
    packing |= dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), 7)
    out, lse = fa3.attention(*leaves, causal=True, return_lse=True, **packing)
    out.square().sum().backward()
    packed = [a.grad.clone() for a in leaves]
    for a in leaves:
        a.grad = None
    for start, end in ((0, 5), (5, 12)):
        part = [a[None, start:end] for a in leaves]
        one, one_lse = fa3.attention(*part, causal=True, return_lse=True)
        torch.testing.assert_close(out[start:end], one[0])
        torch.testing.assert_close(lse[:, start:end], one_lse[0])
        one.square().sum().backward()
    for a, gradient in zip(leaves, packed, strict=True):
        torch.testing.assert_close(gradient, a.grad)


@pytest.mark.parametrize("dim, dim_v", [(59, 59), (64, 7), (100, 128)])
def test_rows_of_any_head_dim_need_no_copy_where_they_lie_whole_copies_apart(device, dim, dim_v):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    wide = [torch.randn(2, 12, heads, 128, device=device, dtype=dtype) for heads in (4, 2, 2)]
    columns = (dim, dim, dim_v)
    q, k, v = (x[..., :n] for x, n in zip(wide, columns, strict=True))
    out = fa3.attention(q, k, v, causal=True)
    # Further columns of zeros change no score, and are not looked at.
    for x, n in zip(wide, columns, strict=True):
        x[..., n:] = 0
    expected = fa3.attention(*wide, causal=True, scale=dim**-0.5)[..., :dim_v]
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-6 if device == "cpu" else 0.02)


def test_the_output_may_be_float32(device):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 12, 4, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    out = torch.full(q.shape, torch.nan, device=device)
    fa3.attention(q, k, v, causal=True, out=out)
    torch.testing.assert_close(out.bfloat16(), fa3.attention(q, k, v, causal=True))
    assert (out != out.bfloat16()).any()


def test_transposed_tensors_need_no_copy(qkv):
    swapped = [a.detach().transpose(1, 2).contiguous().transpose(1, 2) for a in qkv]
    plain = [a.detach() for a in qkv]
    torch.testing.assert_close(fa3.attention(*swapped), fa3.attention(*plain), rtol=0, atol=0)


def test_parameters_and_views_are_tensors_too(qkv):
    q, k, v = (torch.nn.Parameter(a.detach()) for a in qkv)
    out = fa3.attention(q[:, 2:], k, v)
    assert out.requires_grad
    expected = fa3.attention(qkv[0][:, 2:], *qkv[1:])
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


def test_out_is_written_without_a_gradient(qkv):
    out = torch.full_like(qkv[0], torch.nan)
    with torch.no_grad():
        assert fa3.attention(*qkv, out=out) is out
        torch.testing.assert_close(out, fa3.attention(*qkv), rtol=0, atol=0)
    with pytest.raises(fa3.InvalidArgument, match="^q: .* since out= is written in place"):
        fa3.attention(*qkv, out=out)


def test_nothing_is_recorded_where_no_gradient_is_wanted(qkv):
    assert not fa3.attention(*(a.detach() for a in qkv)).requires_grad
    with torch.no_grad():
        assert not fa3.attention(*qkv).requires_grad
    with torch.inference_mode():
        assert fa3.attention(*qkv).is_inference()


def math_attention(q, k, v, causal=False):
    """In plain torch: out (b, s, h, d) and lse (b, h, s). Rows without a key: 0 and -inf."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (a.transpose(1, 2) for a in (q, *(a.repeat_interleave(group, 2) for a in (k, v))))
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~visible.tril(k.shape[2] - q.shape[2]), -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v, scores.logsumexp(-1)


def z_loss(out, lse):
    """A loss that reads both results, each row with another weight."""
    weight = torch.linspace(0.5, 1.5, lse.numel(), device=lse.device).view_as(lse)
    seen = lse != -torch.inf
    return out.square().sum().double() + (weight * lse.where(seen, 0.0).square()).sum().double()


@pytest.mark.parametrize("loss", [z_loss, lambda out, lse: lse[0].sum()], ids=["z", "lse alone"])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_the_lse_are_those_of_math_in_float64(qkv, loss, causal):
    out, lse = fa3.attention(*qkv, causal=causal, return_lse=True)
    exact = [a.detach().double().requires_grad_() for a in qkv]
    exact_out, exact_lse = math_attention(*exact, causal=causal)
    total = loss(exact_out.transpose(1, 2), exact_lse)
    expected = torch.autograd.grad(total, exact, materialize_grads=True)
    tolerance = {"rtol": 0, "atol": 2e-5 if qkv[0].dtype == torch.float32 else 0.2}
    actual = torch.autograd.grad(loss(out, lse), qkv)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **tolerance)


@pytest.mark.filterwarnings("ignore:Input #.* requires gradient and is not a double")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "softcap": 2.0, "window": (3, 2)},
        {"attention_chunk": 2},
        {"window": (None, 0), "window_shift": -1},
    ],
    ids=["plain", "options", "chunks", "earlier"],
)
def test_gradcheck(options):
    """Against differences of the function itself, with steps that suit float32."""
    torch.manual_seed(0)
    shapes = (1, 3, 2, 4), (1, 4, 1, 4), (1, 4, 1, 3), (2,)
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]

    def call(q, k, v, sink):
        return fa3.attention(q, k, v, sink=sink, return_lse=True, engine="reference", **options)

    assert torch.autograd.gradcheck(call, leaves, eps=1e-2, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("given", [(None, 2), [2, None], None])
def test_windows_without_a_side_train_compiled_or_not(given, device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    qkv = [torch.randn(1, 9, 2, 16, device=device, dtype=dtype) for _ in range(3)]
    for x in qkv:
        x.requires_grad_()
    means = tuple(-1 if side is None else side for side in given or (None, None))
    expected = fa3.attention(*qkv, window=means)
    gradients = torch.autograd.grad(expected.square().sum(), qkv)
    compiled = torch.compile(fa3.attention, backend="eager", fullgraph=True)
    for attention in (fa3.attention, compiled):
        out = attention(*qkv, window=given, softcap=None)
        assert torch.equal(out, expected)
        torch.testing.assert_close(torch.autograd.grad(out.square().sum(), qkv), gradients)


@pytest.mark.parametrize("lse", [-torch.inf, torch.inf])
def test_a_partial_that_counts_for_nothing_may_hold_nan(lse):
    """Beside one that saw no key, and beside one that an infinite sink has filled."""
    outs = torch.randn(2, 1, 3, 2, 8)
    lses = torch.randn(2, 1, 2, 3)
    empty, full = (0, 1) if lse < 0 else (1, 0)
    lses[0 if lse < 0 else full] = lse
    outs[empty] = torch.nan
    outs, lses = outs.requires_grad_(), lses.requires_grad_()
    out, merged = fa3.merge(outs, lses)
    torch.testing.assert_close(out, outs.detach()[full])
    (out.sum() + merged[merged.isfinite()].sum()).backward()
    assert (outs.grad[full] == 1).all() and (outs.grad[empty] == 0).all()
    assert lses.grad.isfinite().all() and (lses.grad[empty] == 0).all()


def test_training_through_merged_parts_is_training_on_all_keys(qkv):
    """Causal attention in two parts; the first query sees no key of the second."""
    q, k, v = qkv
    whole = fa3.attention(q, k, v, causal=True, return_lse=True)
    parts = [
        fa3.attention(q, k[:, :12], v[:, :12], return_lse=True),
        fa3.attention(q, k[:, 12:], v[:, 12:], causal=True, return_lse=True),
    ]
    assert (parts[1][1] == -torch.inf).any()
    outs, lses = zip(*parts, strict=True)
    merged = fa3.merge(torch.stack(outs).float(), torch.stack(lses))
    tolerance = {"rtol": 0, "atol": 2e-5 if q.dtype == torch.float32 else 0.2}
    torch.testing.assert_close(merged[1], whole[1], **tolerance)
    expected = torch.autograd.grad(z_loss(*whole), qkv)
    for a, b in zip(torch.autograd.grad(z_loss(*merged), qkv), expected, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def test_merge_of_rows_without_any_key_has_no_gradient():
    o_partial = torch.zeros(2, 1, 3, 2, 4, requires_grad=True)
    lse_partial = torch.full((2, 1, 2, 3), -torch.inf, requires_grad=True)
    out, lse = fa3.merge(o_partial, lse_partial)
    for gradient in torch.autograd.grad(z_loss(out, lse), (o_partial, lse_partial)):
        assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_that_an_infinite_sink_took_share_the_row(dtype):
    o_partial = torch.randn(3, 1, 1, 2, 4, dtype=dtype, requires_grad=True)
    lse = [[torch.inf, torch.inf], [1.0, -torch.inf], [torch.inf, 2.0]]
    lse_partial = torch.tensor(lse, dtype=dtype).view(3, 1, 2, 1).requires_grad_()
    out, merged = fa3.merge(o_partial, lse_partial)
    expected = torch.stack([o_partial[::2, 0, 0, 0].mean(0), o_partial[0, 0, 0, 1]])
    torch.testing.assert_close(out[0, 0], expected)
    assert (merged == torch.inf).all()
    for gradient in torch.autograd.grad(out.sum(), (o_partial, lse_partial)):
        assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore:Input #.* requires gradient and is not a double")
def test_gradcheck_of_merge():
    torch.manual_seed(0)
    leaves = [torch.randn(s, requires_grad=True) for s in ((3, 1, 2, 2, 3), (3, 1, 2, 2))]
    assert torch.autograd.gradcheck(fa3.merge, leaves, eps=1e-2, atol=2e-3, rtol=1e-3)


def test_only_wanted_gradients_are_returned(qkv):
    q, k, v = qkv
    out = fa3.attention(q, k.detach(), v.detach())
    out.sum().backward()
    assert q.grad is not None and k.grad is None


def test_deterministic_gradients_repeat_bit_by_bit(qkv):
    def gradients():
        return torch.autograd.grad(fa3.attention(*qkv, deterministic=True).square().sum(), qkv)

    for a, b in zip(gradients(), gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_decides_the_type(device, dtype):
    x = inputs_for("gqa", "float32")
    leaves, _, _ = to_torch(x, "float32", device)
    with torch.autocast(device, dtype=dtype):
        out = fa3.attention(*leaves)
    assert out.dtype == dtype
    expected = fa3.attention(*(a.detach().to(dtype) for a in leaves))
    torch.testing.assert_close(out.detach(), expected, rtol=0, atol=0)
    out.float().sum().backward()
    assert leaves[0].grad.dtype == torch.float32


def test_backward_merge_and_plan_take_tensors(qkv):
    q, k, v = (a.detach() for a in qkv)
    out, lse = fa3.attention(q, k, v, return_lse=True)
    gradients = fa3.attention_backward(torch.ones_like(out), q, k, v, out, lse)
    fa3.attention(*qkv).sum().backward()
    torch.testing.assert_close(gradients.dq, qkv[0].grad)
    merged, _ = fa3.merge(out.float()[None], lse[None])
    torch.testing.assert_close(merged, out.float())
    assert "engine" in fa3.plan(q, k, v)


def test_numpy_and_torch_give_the_same_bits():
    arrays = [a.astype(np.float32) for a in inputs_for("everything", "float32")[:3]]
    tensors = [torch.from_numpy(a) for a in arrays]
    np.testing.assert_array_equal(fa3.attention(*tensors).numpy(), fa3.attention(*arrays))


def test_meta_tensors_give_the_shapes_of_the_results(qkv):
    meta = [a.detach().to("meta") for a in qkv]
    out, lse = fa3.attention(*meta, return_lse=True)
    assert out.is_meta and out.shape == meta[0].shape and lse.shape == (2, 6, 20)
    for position in range(3):
        mixed = [a.detach() for a in qkv]
        mixed[position] = meta[position]
        for options in ({}, {"sink": torch.zeros(6, device=qkv[0].device)}):
            with pytest.raises(fa3.InvalidArgument, match="tensor .* on meta|all tensors on meta"):
                fa3.attention(*mixed, **options)
    with pytest.raises(fa3.InvalidArgument, match="expected a dense tensor .* on meta"):
        fa3.validate(*meta)


def test_plans_take_meta_tensors_in_place_of_memory(device):
    shapes = (1, 4096, 8, 64), (1, 4096, 2, 64), (1, 4096, 2, 64)
    real = [torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes]
    options = {"causal": True, "seqused_k": torch.ones(1, dtype=torch.int32, device=device)}
    described = {**options, "seqused_k": options["seqused_k"].to("meta", torch.int64)}
    meta = [x.to("meta") for x in real]
    expected = fa3.plan(*real, **options)
    assert fa3.plan(*meta, device=device, **described) == expected
    if device == "cuda" or not torch.cuda.is_available():
        assert fa3.plan(*meta, **described) == expected
    huge = torch.empty(1, 1 << 29, 8, 128, dtype=torch.bfloat16, device="meta")  # 1 TiB
    assert "engine cpu\n" in fa3.plan(huge, huge, huge, device="cpu")
    with pytest.raises(fa3.InvalidArgument, match="^device: expected None"):
        fa3.plan(*real, device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_of_no_sequences_has_gradients(dtype):
    q, k, v = (torch.randn(0, n, 2, 8, dtype=dtype, requires_grad=True) for n in (3, 5, 5))
    sink = torch.zeros(2, requires_grad=True)
    out, lse = fa3.attention(q, k, v, sink=sink, return_lse=True)
    (out.sum() + lse.sum()).backward()
    assert all(x.grad.shape == x.shape for x in (q, k, v))
    assert torch.equal(sink.grad, torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_rows_of_no_sequence_have_gradients(dtype):
    q, k, v = (torch.full((3, 2, 8), torch.nan, dtype=dtype, requires_grad=True) for _ in range(3))
    none = torch.zeros(1, dtype=torch.int32)
    fa3.attention(q, k, v, cu_seqlens_q=none, cu_seqlens_k=none).sum().backward()
    assert all(torch.equal(x.grad, torch.zeros_like(x)) for x in (q, k, v))

# SPDX-License-Identifier: Apache-2.0
"""The output gate and the max logit in torch: gradients, compilers, operators, FP8, refusals."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import fa3  # noqa: E402
import fa3.torch  # noqa: E402

CU = torch.tensor([0, 5, 5, 17], dtype=torch.int32)


def tensors(*shapes, dtype=torch.float32, grad=True):
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)
        for s in shapes
    ]


def inputs(dtype=torch.float32, grad=True, packed=False, per_row=False):
    """q, k, v and a gate."""
    rows = (17,) if packed else (2, 17)
    gate = (*rows, 4) if per_row else (*rows, 4, 24)
    shapes = (*rows, 4, 16), (*rows, 2, 16), (*rows, 2, 24), gate
    return tensors(*shapes, dtype=dtype, grad=grad)


def lengths(packed):
    return {"cu_seqlens_q": CU, "cu_seqlens_k": CU} if packed else {}


def gated(out, gate):
    gate = gate if gate.ndim == out.ndim else gate[..., None]
    return (out.float() * gate.float().sigmoid()).to(out.dtype)


@pytest.mark.parametrize("per_row", [False, True], ids=["full", "row"])
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_gate_is_a_sigmoid_behind_attention(packed, per_row):
    *qkv, gate = inputs(packed=packed, per_row=per_row)
    options = {"causal": True, **lengths(packed)}
    out, lse = fa3.attention(*qkv, gate=gate, return_lse=True, **options)
    plain, plain_lse = fa3.attention(*qkv, return_lse=True, **options)
    want = gated(plain, gate)
    torch.testing.assert_close(out, want)
    assert torch.equal(lse, plain_lse)
    do, dlse = torch.randn_like(out), torch.randn_like(lse)
    seen = lse.isfinite()
    losses = [
        (x * do).sum() + (y.where(seen, 0) * dlse).sum() for x, y in ((out, lse), (want, plain_lse))
    ]
    got, wanted = (torch.autograd.grad(loss, [*qkv, gate]) for loss in losses)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("per_row", [False, True], ids=["full", "row"])
def test_gate_passes_gradcheck(per_row):
    of_gate = (1, 3, 2) if per_row else (1, 3, 2, 3)
    small = tensors((1, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 3), of_gate, dtype=torch.float64)

    def call(q, k, v, gate):
        return fa3.attention(q, k, v, gate=gate, causal=True)

    assert torch.autograd.gradcheck(call, small)


def test_gate_gradient_follows_finite_differences():
    """Of the engine itself, in float32."""
    *qkv, gate = inputs(per_row=True)
    out = fa3.attention(*qkv, gate=gate)
    do = torch.randn_like(out)
    (dgate,) = torch.autograd.grad(out, gate, do)
    step = 1e-2 * torch.randn_like(gate)
    with torch.no_grad():
        ends = [(fa3.attention(*qkv, gate=gate + x) * do).sum().double() for x in (step, -step)]
    torch.testing.assert_close(
        (ends[0] - ends[1]) / 2, (dgate * step).sum().double(), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gate_gives_what_eager_gives_in_16_bits(dtype):
    *qkv, gate = inputs(dtype)
    do = torch.randn_like(qkv[2].repeat_interleave(2, 2))
    got = torch.autograd.grad(fa3.attention(*qkv, gate=gate), [*qkv, gate], do)
    want = torch.autograd.grad(fa3.attention(*qkv) * gate.sigmoid(), [*qkv, gate], do)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)


def largest(q, k, packed, causal=True, scale=None):
    """(sequences, heads), in float64."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    starts = CU.tolist() if packed else [0, q.shape[1]]
    rows = [slice(a, b) for a, b in itertools.pairwise(starts)]
    pairs = [(q[r], k[r]) for r in rows] if packed else list(zip(q, k, strict=True))
    found = []
    for a, b in pairs:
        b = b.repeat_interleave(a.shape[1] // b.shape[1], 1)
        logits = scale * torch.einsum("ihd,jhd->hij", a.double(), b.double())
        if causal:
            logits = logits.masked_fill(torch.ones(logits.shape[1:]).triu(1).bool(), -torch.inf)
        found.append(logits.flatten(1).amax(1) if len(a) else logits.new_full((4,), -torch.inf))
    return torch.stack(found).float()


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_max_logit_is_that_of_seen_pairs_before_the_softcap(packed, softcap):
    q, k, v, _ = inputs(packed=packed)
    options = {"causal": True, "softcap": softcap, **lengths(packed)}
    for dtype in (torch.float32, torch.float64):
        given = [x.detach().to(dtype) for x in (q, k, v)]
        out, _, max_logit = fa3.attention(*given, return_lse=True, return_max_logit=True, **options)
        torch.testing.assert_close(max_logit.float(), largest(q, k, packed))
        torch.testing.assert_close(out, fa3.attention(*given, **options))
        assert torch.equal(fa3.attention(*given, return_max_logit=True, **options)[1], max_logit)
    assert max_logit.shape == ((3, 4) if packed else (2, 4))


def test_max_logit_has_no_gradient_and_disturbs_none():
    q, k, v, gate = inputs()
    out, max_logit = fa3.attention(q, k, v, gate=gate, return_max_logit=True)
    assert not max_logit.requires_grad
    got = torch.autograd.grad(out.square().sum(), [q, k, v, gate])
    out = fa3.attention(q, k, v, gate=gate)
    for a, b in zip(got, torch.autograd.grad(out.square().sum(), [q, k, v, gate]), strict=True):
        torch.testing.assert_close(a, b)


def test_both_are_traced_by_compilers_without_a_break():
    q, k, v, gate = inputs(per_row=True)

    def step(q, k, v, gate):
        out, max_logit = fa3.attention(q, k, v, gate=gate, causal=True, return_max_logit=True)
        return out.square().sum(), max_logit

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    results = []
    for run in (step, compiled):
        loss, max_logit = run(q, k, v, gate)
        results.append([max_logit, *torch.autograd.grad(loss, [q, k, v, gate])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_operators_pass_opcheck():
    q, k, v, gate = inputs(per_row=True)
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    for op in (torch.ops.fa3.forward, torch.ops.fa3.forward_max_logit):
        torch.library.opcheck(op.default, (q, k, v), {"gate": gate}, test_utils=utils)


def test_shapes_are_known_on_meta():
    *qkv, gate = (x.to("meta") for x in inputs(packed=True, grad=False))
    found = fa3.attention(
        *qkv,
        gate=gate,
        return_max_logit=True,
        **{name: x.to("meta") for name, x in lengths(True).items()},
    )
    assert [x.shape for x in found] == [(17, 4, 24), (3, 4)]


def test_fp8_takes_both():
    *qkv, gate = inputs(torch.bfloat16, grad=False)
    out, max_logit = fa3.attention_fp8(*qkv, gate=gate, return_max_logit=True)
    want, exact = fa3.attention(*qkv, gate=gate, return_max_logit=True)
    assert (out - want).float().norm() < 0.1 * want.float().norm()
    torch.testing.assert_close(max_logit, exact, rtol=0.1, atol=0.1)


def test_arrays_without_autograd_take_both():
    import numpy as np

    *qkv, gate = inputs(packed=True)
    do = torch.randn(17, 4, 24)
    out, lse, max_logit = fa3.attention(
        *qkv, gate=gate, return_lse=True, return_max_logit=True, **lengths(True)
    )
    want = torch.autograd.grad(out, [*qkv, gate], do)
    arrays = [x.detach().numpy() for x in (*qkv, gate)]
    options = {"gate": arrays[3], **{name: x.numpy() for name, x in lengths(True).items()}}
    found = fa3.attention(*arrays[:3], return_lse=True, return_max_logit=True, **options)
    for a, b in zip(found, (out, lse, max_logit), strict=True):
        np.testing.assert_array_equal(a, b.detach().numpy())
    gradients = fa3.attention_backward(do.numpy(), *arrays[:3], found[0], found[1], **options)
    for a, b in zip((*gradients[:3], gradients.dgate), want, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


def test_what_cannot_be_is_refused_with_a_sentence():
    q, k, v, gate = inputs(grad=False)
    with pytest.raises(fa3.InvalidArgument, match=r"gate: expected a last dimension of 24.*got 5"):
        fa3.attention(q, k, v, gate=gate[..., :5])
    with pytest.raises(TypeError, match="gate"):
        fa3.attention(q, k, v, gate=3.0)
    with pytest.raises(fa3.Unsupported, match="return_max_logit: expected False with bias"):
        fa3.attention(q, k, v, bias=torch.zeros(17, 17), return_max_logit=True)
    with pytest.raises(fa3.Unsupported, match="gate"):
        fa3.attention(q, k, v, bias=torch.zeros(17, 17), gate=gate)
    learns = gate.clone().requires_grad_()
    with pytest.raises(fa3.InvalidArgument, match="gate"):
        fa3.attention(q, k, v, gate=learns, out=torch.empty(2, 17, 4, 24))

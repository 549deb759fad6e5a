# SPDX-License-Identifier: Apache-2.0
"""Gradients of fa3.attention_fp8.

Numbers that e4m3 holds exactly have the gradients of fa3.attention. Of the tensors that were saved
quantized these are known, so they are compared with no less care. What is left is how far rounding
moves gradients of a transformer's own Q, K and V.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("fa3.torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from fa3.fp8 import SAVED  # noqa: E402
from fa3.torch import switch  # noqa: E402
from fa3.torch.fp8 import turned_back  # noqa: E402
from fa3.torch.quantize import dequantize_together  # noqa: E402

DATA = Path(__file__).parents[3] / "examples" / "data"
ROWS, LENGTHS = 70, (30, 40)  # more than a block of scales
CU = torch.tensor([0, 30, 70], dtype=torch.int32)
PACKED = {"cu_seqlens_q": CU, "cu_seqlens_k": CU, "max_seqlen_q": 40, "max_seqlen_k": 40}

CALLS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (5, 3)},
    "chunks": {"attention_chunk": 16},
    "rows without keys": {"window": (None, 0), "window_shift": -40},
    "softcap": {"softcap": 3.0},
    "scale": {"scale": 0.3},
    "sink": {"sink": True},
    "gate": {"gate": True},
    "block mask": {"block_mask": fa3.masks.from_dense(torch.rand(1, 1, ROWS, ROWS) < 0.7)},
    "used rows": {"seqused_k": torch.tensor([40, 20], dtype=torch.int32)},
    "packed": PACKED,
    "packed and causal": PACKED | {"causal": True},
    "packed, used rows": PACKED | {"seqused_k": torch.tensor([20, 40], dtype=torch.int32)},
}


def lossless(rows, heads, dim, mean, seed):
    """Integers up to 7 in float32, of which a block's largest is 7: its scale is 2^-6. Runs of ten
    rows have the mean zero, so that every sequence here has the mean `mean`."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(-7, 8, (rows // 10, 5, heads, dim), generator=generator).float()
    half[:, 0, :, 0] = 7
    return torch.cat((half, -half), 1).flatten(0, 1) + mean


def inputs_of(options, k_mean=3.0, v_mean=2.0):
    """q, k, v and the options, whose sink and gate need gradients as the rest does."""
    shapes = (4, 32, 0.0), (2, 32, k_mean), (2, 48, v_mean)
    batch = 1 if "cu_seqlens_k" in options else 2
    leaves = []
    for i, (heads, dim, mean) in enumerate(shapes):
        x = torch.stack([lossless(ROWS, heads, dim, mean, 10 * i + b) for b in range(batch)])
        leaves.append((x[0] if batch == 1 else x).mul(0.25).requires_grad_())
    given = dict(options)
    if given.get("sink"):
        given["sink"] = torch.randn(4, requires_grad=True)
    if given.get("gate"):
        given["gate"] = torch.randn((2, ROWS, 4, 48), requires_grad=True)
    leaves += [given[name] for name in ("sink", "gate") if name in given]
    return leaves, given


def gradients_of(attend, leaves, given):
    """Of a loss that reads the output and the LSE."""
    out, lse = attend(*leaves[:3], return_lse=True, **given)
    torch.manual_seed(3)
    loss = (out * torch.randn_like(out)).sum() + (
        torch.where(lse.isfinite(), lse, 0) * torch.randn_like(lse)
    ).sum()
    return out.detach(), lse.detach(), *torch.autograd.grad(loss, leaves)


def agree(found, wanted, tolerance=2e-5):
    for a, b in zip(found, wanted, strict=True):
        largest = b[b.isfinite()].abs().max()
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("name", CALLS)
def test_numbers_that_e4m3_holds_have_the_gradients_of_attention(name, saved):
    leaves, given = inputs_of(CALLS[name])
    wanted = gradients_of(fa3.attention, leaves, given)

    def attend(*inputs, **options):
        return fa3.attention_fp8(*inputs, hadamard=False, saved=saved, **options)

    agree(gradients_of(attend, leaves, given), wanted)


def dequantized(x, hadamard, center, scaling, cu_seqlens):
    """What fa3.quantize(x) stands for, turned if it is, in float32; row by row."""
    packed = cu_seqlens is not None
    numbers, descale, mean = fa3.quantize(
        x, scaling=scaling, hadamard=hadamard, center=center, cu_seqlens=cu_seqlens, seed=9
    )
    found = numbers.float()
    cu = cu_seqlens.tolist() if packed else [0]
    sequences = [found[a:b] for a, b in itertools.pairwise(cu)] if packed else found
    for n, rows in enumerate(sequences):
        for i in range(len(rows)):
            for h in range(rows.shape[1]):
                at = {"block": (n, h, i // 64), "head": (n, h), "tensor": (0,)}[scaling]
                rows[i, h] *= descale[at]
                if center:
                    rows[i, h] += mean[n, h]
    return found


@pytest.mark.parametrize("scaling", ["block", "head", "tensor"])
@pytest.mark.parametrize("name", ["plain", "softcap", "packed and causal"])
def test_quantized_tensors_give_the_gradients_at_their_numbers(name, scaling):
    """A Hadamard transform of both changes no score, and its gradients turn back with it."""
    leaves, given = inputs_of(CALLS[name])
    torch.manual_seed(1)
    leaves = [torch.randn_like(x).requires_grad_() for x in leaves]
    cu = given.get("cu_seqlens_k")
    how = [(True, False), (True, True), (False, True)]
    small = [dequantized(x.detach(), *h, scaling, cu) for x, h in zip(leaves, how, strict=True)]
    small = [x.requires_grad_() for x in small]
    wanted = gradients_of(fa3.attention, small, given)

    def attend(*inputs, **options):
        how = {"scaling": scaling, "seed": 9, "saved": "quantized"}
        return fa3.attention_fp8(*inputs, **how, **options)

    found = gradients_of(attend, leaves, given)
    units = torch.eye(32)[:, None, None]
    turn = fa3.quantize(units, center=True, hadamard=True, seed=9).mean[:, 0]
    *others, dq, dk, dv = wanted
    agree(found[2:], (dq @ turn.T, dk @ turn.T, dv))
    torch.testing.assert_close(found[0], others[0], rtol=1e-4, atol=1e-4)


def rounded_gradients(attend, leaves, do):
    leaves = [x.detach().requires_grad_() for x in leaves]
    found = torch.autograd.grad(attend(*leaves), leaves, do.to(leaves[0].dtype))
    return [x.double() for x in found]


def errors(found, exact):
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


def errors_of(q, k, v, **options):
    """Relative errors of dq, dk and dv: of bf16, of FP8 by what is saved, and of the inputs' own
    rounding to e4m3."""
    torch.manual_seed(5)
    inputs = [x.bfloat16() for x in (q, k, v)]
    do = torch.randn_like(inputs[0])
    wide = [x.double() for x in inputs]
    exact = rounded_gradients(lambda *x: fa3.attention(*x, **options), wide, do)
    found = {"bf16": rounded_gradients(lambda *x: fa3.attention(*x, **options), inputs, do)}
    for name, how in {"default": {}, **{saved: {"saved": saved} for saved in SAVED}}.items():
        attend = lambda *x, how=how: fa3.attention_fp8(*x, **how, **options)  # noqa: E731
        found[name] = rounded_gradients(attend, inputs, do)
    how = [(False, False), (False, True), (False, True)]
    small = [dequantized(x, *h, "block", None).double() for x, h in zip(inputs, how, strict=True)]
    found["rounding"] = rounded_gradients(lambda *x: fa3.attention(*x, **options), small, do)
    return {name: errors(gradients, exact) for name, gradients in found.items()}


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=["full", "causal"])
def test_a_mean_of_keys_and_values_costs_no_more_than_in_bf16(options):
    """The LSE of keys with a mean beside those without makes P wrong by that factor, and keys with
    a mean in dq multiply by it what rounding leaves: 29% here."""
    torch.manual_seed(2)
    q, k, v = torch.randn(3, 1, 256, 2, 64)
    found = errors_of(q, k + 3 * torch.randn(2, 64), 2 + v / 2, **options)
    within = 1.0 if not options else 4.0  # a causal pass begins with rows of few keys
    for of_fp8, of_bf16 in zip(found["inputs"], found["bf16"], strict=True):
        assert of_fp8 < within * (of_bf16 + 2.0**-7)


@pytest.mark.parametrize("layer", [0, 2, 5])
def test_gradients_of_a_trained_transformer_err_by_the_rounding_of_its_inputs(layer):
    """Sharp rows multiply a score's error: what quantized inputs alone cost is the measure."""
    q, k, v = (torch.from_numpy(np.load(DATA / f"minilm_layer{layer}_{x}.npy")) for x in "qkv")
    found = errors_of(q, k, v)
    for i, name in enumerate(("dq", "dk", "dv")):
        assert found["quantized"][i] < 1.5 * found["rounding"][i], name
        assert found["inputs"][i] < 4 * found["rounding"][i], name


def test_the_default_has_the_forwards_weights_where_attention_is_sharp():
    """Weights of q and k as given, beside the LSE of what the forward read, do not sum to 1."""
    q, k, v = (torch.from_numpy(np.load(DATA / f"minilm_layer0_{x}.npy")) for x in "qkv")
    found = errors_of(q, k, v)
    for default, inputs in zip(found["default"], found["inputs"], strict=True):
        assert default < 0.6 * inputs
    assert found["default"] == found["quantized"]


@pytest.fixture
def qkv():
    torch.manual_seed(4)
    shapes = (2, 40, 4, 32), (2, 40, 2, 32), (2, 40, 2, 32)
    return [(1 + torch.randn(shape)).bfloat16().requires_grad_() for shape in shapes]


def loss_of(q, k, v):
    out, lse = fa3.attention_fp8(q, k, v, causal=True, return_lse=True)
    return out.float().square().sum() + lse.square().sum()


def test_a_recorded_call_returns_what_one_without_gradients_does(qkv):
    """But for the LSE, whose part of k's mean is from q as given."""
    recorded = fa3.attention_fp8(*qkv, return_lse=True)
    plain = fa3.attention_fp8(*(x.detach() for x in qkv), return_lse=True)
    assert torch.equal(recorded[0], plain[0])
    torch.testing.assert_close(recorded[1], plain[1], rtol=0, atol=0.25)
    assert fa3.attention_fp8(*(x.detach() for x in qkv)).grad_fn is None
    with torch.no_grad():
        assert torch.equal(fa3.attention_fp8(*qkv), plain[0])


def test_bf16_gradients_have_the_type_of_their_inputs(qkv):
    for saved in SAVED:
        out = fa3.attention_fp8(*qkv, saved=saved)
        gradients = torch.autograd.grad(out.float().sum(), qkv)
        assert [x.dtype for x in (out, *gradients)] == [torch.bfloat16] * 4


def test_quantized_tensors_halve_what_is_kept(qkv):
    def kept(**options):
        total = {}

        def pack(x):
            total[x.data_ptr()] = x.numel() * x.element_size()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out = fa3.attention_fp8(*qkv, center=False, **options)
        return sum(total.values()) - out.numel() * out.element_size() - 4 * out[..., 0].numel()

    inputs = sum(x.numel() * x.element_size() for x in qkv)
    assert kept(saved="inputs") == inputs
    scales = 4 * 2 * (4 + 2 + 2)
    assert kept() == kept(saved="quantized") == inputs // 2 + scales


@pytest.mark.parametrize("saved", SAVED)
def test_compiled_programs_have_the_same_gradients(qkv, saved):
    def loss(q, k, v):
        return fa3.attention_fp8(q, k, v, causal=True, saved=saved).float().square().sum()

    torch._dynamo.reset()
    traced = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(traced(*qkv), qkv)
    wanted = torch.autograd.grad(loss(*qkv), qkv)
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_the_same_gradients(qkv, reentrant):
    wanted = torch.autograd.grad(loss_of(*qkv), qkv)
    loss = checkpoint(loss_of, *qkv, use_reentrant=reentrant)
    loss.backward()
    assert all(torch.equal(x.grad, want) for x, want in zip(qkv, wanted, strict=True))


def test_autocast_gives_its_type_with_and_without_gradients(qkv):
    wide = [x.detach().float().requires_grad_() for x in qkv]
    with torch.autocast("cpu", torch.bfloat16):
        out = fa3.attention_fp8(*wide)
        assert fa3.attention_fp8(*(x.detach() for x in wide)).dtype == torch.bfloat16
    wanted = fa3.attention_fp8(*qkv)
    assert torch.equal(out, wanted)
    found = torch.autograd.grad(out.float().sum(), wide)
    for a, b in zip(found, torch.autograd.grad(wanted.float().sum(), qkv), strict=True):
        assert a.dtype == torch.float32 and torch.equal(a.bfloat16(), b)


def test_transforms_of_torch_func_have_the_gradients_of_autograd(qkv):
    inputs = [x.detach() for x in qkv]
    found = torch.func.grad(loss_of, argnums=(0, 1, 2))(*inputs)
    assert all(map(torch.equal, found, torch.autograd.grad(loss_of(*qkv), qkv)))


def test_transforms_in_any_order_have_it(qkv):
    x = torch.stack([qkv[1], qkv[2]]).detach()
    each = torch.stack([fa3.attention_fp8(y, y, y) for y in x])
    alone = torch.func.vmap(lambda y: fa3.attention_fp8(y, y, y))
    torch.testing.assert_close(alone(x), each, rtol=2**-7, atol=2**-7)
    outside = torch.func.grad(lambda z: alone(z).float().sum())(x)
    inside = torch.func.vmap(torch.func.grad(lambda y: fa3.attention_fp8(y, y, y).float().sum()))(x)
    torch.testing.assert_close(outside, inside, rtol=2**-6, atol=2**-6)  # sums round by levels
    assert inside.any()


def test_numbers_that_learn_and_mixed_types_are_refused_by_name(qkv):
    for name in ("scale", "softcap"):
        with pytest.raises(fa3.Unsupported, match=f"^{name}: expected a number"):
            fa3.attention_fp8(*qkv, **{name: torch.tensor(0.5, requires_grad=True)})
    q, k, v = qkv
    with pytest.raises(fa3.InvalidArgument, match="^k: expected the type of q"):
        fa3.attention_fp8(q, k.float() if k.dtype != torch.float32 else k.half(), v)


def test_second_derivatives_are_refused(qkv):
    (dq,) = torch.autograd.grad(loss_of(*qkv), qkv[0], create_graph=True)
    with pytest.raises(fa3.Unsupported, match="no second derivatives of attention"):
        dq.float().sum().backward()


def test_one_input_alone_may_need_a_gradient(qkv):
    wanted = torch.autograd.grad(loss_of(*qkv), qkv)
    for i, want in enumerate(wanted):
        inputs = [x.detach() for x in qkv]
        inputs[i].requires_grad_()
        (found,) = torch.autograd.grad(loss_of(*inputs), inputs[i])
        assert torch.equal(found, want)


@pytest.mark.parametrize(
    "options, error, sentence",
    [
        ({"saved": "q8"}, fa3.InvalidArgument, "^saved: expected one of inputs, quantized, got"),
        ({"out": torch.empty(2, 40, 4, 32)}, fa3.InvalidArgument, "^out: .*in place"),
        ({"return_max_logit": True}, fa3.Unsupported, "^return_max_logit: .*gradient"),
        (
            {"left_padding": torch.zeros(2, dtype=torch.int32)},
            fa3.Unsupported,
            "^left_padding: .*gradient",
        ),
        ({"dropout_p": 0.1}, fa3.Unsupported, "^dropout_p: expected 0 with"),
        ({"bias": torch.zeros(1)}, fa3.Unsupported, "^bias: not with attention_fp8"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_has_no_gradient_is_refused_by_name(qkv, options, error, sentence):
    with pytest.raises(error, match=sentence):
        fa3.attention_fp8(*qkv, **options)


def test_flops_are_counted_as_those_of_attention(qkv):
    def flops(attend):
        with FlopCounterMode(display=False) as counter:
            torch.autograd.grad(attend(*qkv).float().sum(), qkv)
        return counter.get_total_flops()

    assert flops(lambda *x: fa3.attention_fp8(*x, hadamard=False)) == flops(fa3.attention) > 0


def test_the_operator_tells_compilers_the_truth(qkv):
    q8, k8, v8 = (fa3.quantize(x.detach(), center=i > 0) for i, x in enumerate(qkv))
    small = q8.x, k8.x, v8.x, q8.descale, k8.descale, v8.descale, k8.mean, v8.mean
    # Not test_schema, which multiplies float8: torch cannot do that on a CPU.
    knows_float8 = "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
    torch.library.opcheck(
        torch.ops.fa3.forward_fp8.default,
        (*qkv, *small, True, False, 0, False, False, 0),
        test_utils=knows_float8,
    )


def heads_first(tensors):
    return [x.detach().transpose(1, 2).requires_grad_() for x in tensors]


def run_sdpa(inputs, **options):
    out = F.scaled_dot_product_attention(*inputs, enable_gqa=True, **options)
    return out, *torch.autograd.grad(out.float().square().sum(), inputs)


@pytest.fixture
def sdpa_in_fp8():
    if not switch.can_register():
        pytest.skip("this torch has no registry of flash attentions")
    with fa3.torch.sdpa(fp8=True):
        yield


def test_the_switch_runs_fp8_with_its_gradients(qkv, sdpa_in_fp8):
    inputs = heads_first(qkv)
    out = fa3.attention_fp8(*(x.transpose(1, 2) for x in inputs), causal=True, scale=0.2)
    wanted = out.transpose(1, 2), *torch.autograd.grad(out.float().square().sum(), inputs)
    found = run_sdpa(inputs, is_causal=True, scale=0.2)
    assert all(map(torch.equal, found, wanted))
    with torch.no_grad():
        evaluated = F.scaled_dot_product_attention(*inputs, enable_gqa=True)
        plain = fa3.attention_fp8(*(x.transpose(1, 2) for x in inputs))
    assert torch.equal(evaluated, plain.transpose(1, 2))


def test_the_switch_keeps_to_16_bits_where_fp8_does_not_go(qkv, sdpa_in_fp8):
    q, k, v = heads_first(qkv)
    seen = torch.ones(40, 40, dtype=torch.bool)
    for inputs, options in (((q, k, v), {"attn_mask": seen}), ((q[:, :, :3], k, v), {})):
        found = run_sdpa(inputs, **options)
        wanted = fa3.attention(*(x.transpose(1, 2) for x in inputs)).transpose(1, 2)
        # A call with a mask may differ in its last bits; FP8 differs by percents.
        assert (found[0] - wanted).norm() < 0.005 * wanted.norm()


def test_the_switch_goes_back_to_what_it_was(qkv, sdpa_in_fp8):
    inputs = heads_first(qkv)
    in_fp8 = F.scaled_dot_product_attention(*inputs, enable_gqa=True)
    with fa3.torch.sdpa():
        plain = F.scaled_dot_product_attention(*inputs, enable_gqa=True)
        wanted = fa3.attention(*(x.transpose(1, 2) for x in inputs)).transpose(1, 2)
        assert torch.equal(plain, wanted)
    assert torch.equal(F.scaled_dot_product_attention(*inputs, enable_gqa=True), in_fp8)
    fa3.torch.disable_sdpa()
    assert not torch.equal(F.scaled_dot_product_attention(*inputs, enable_gqa=True), in_fp8)


@pytest.mark.parametrize("saved", SAVED)
def test_rows_of_no_sequence_have_gradients_of_zero(saved):
    cu = torch.zeros(1, dtype=torch.int32)
    lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 5, "max_seqlen_k": 5}
    q, k, v = (torch.randn(5, 2, 64, requires_grad=True) for _ in range(3))
    out = fa3.attention_fp8(q, k, v, saved=saved, **lengths)
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert not any(x.any() for x in (out, *gradients))


def dequantized_together(q8, k8, v8, dtype, hadamard, cu, longest):
    """What torch.ops.fa3.dequantize_together makes of them, with the means of k and v."""
    of_k, of_v = (k8.x, k8.descale, k8.mean), (v8.x, v8.descale, v8.mean)
    lengths = cu, None, longest
    how = dtype, hadamard, 9, *lengths, *lengths, False, 0
    return dequantize_together(q8.x, q8.descale, *of_k, *of_v, *how)


@pytest.mark.parametrize("dim", [64, 96, 128, 160])
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("cu", [None, CU])
def test_dequantized_numbers_are_rounded_once(dim, hadamard, cu):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, *((2, ROWS) if cu is None else (ROWS + 3,)), 2, dim)
    longest = 0 if cu is None else 40
    lengths = {"cu_seqlens": cu, "max_seqlen": longest}
    how = {"hadamard": hadamard, "seed": 9} | lengths
    q8 = fa3.quantize(q, **how)
    k8 = fa3.quantize(k + 3, center=True, **how)
    v8 = fa3.quantize(v, center=True, **lengths)
    found = dequantized_together(q8, k8, v8, torch.float16, hadamard, cu, longest)
    units = torch.eye(dim)[:, None, None]
    turn = fa3.quantize(units, hadamard=hadamard, center=True, seed=9).mean[:, 0].double()
    inputs = (q, hadamard, False), (k + 3, hadamard, True), (v, False, True)
    for x, (wide, turned, center) in zip(found, inputs, strict=True):
        exact = dequantized(wide, turned, center, "block", cu).double()
        exact = exact @ turn.T if turned else exact
        if cu is not None:
            assert not x[ROWS:].any()  # of no sequence
            x, exact = x[:ROWS], exact[:ROWS]
        spacing = (
            torch.maximum(exact.abs(), torch.tensor(2.0**-14)).log2().floor().exp2() * 2.0**-10
        )
        assert ((x.double() - exact).abs() <= 0.5001 * spacing + 2.0**-22 * exact.abs().max()).all()


def test_the_inverse_tells_compilers_the_truth(qkv):
    q8, k8, v8 = (fa3.quantize(x.detach(), center=i > 0) for i, x in enumerate(qkv))
    tensors = q8.x, q8.descale, k8.x, k8.descale, k8.mean, v8.x, v8.descale, v8.mean
    lengths = None, None, 0
    torch.library.opcheck(
        torch.ops.fa3.dequantize_together.default,
        (*tensors, torch.bfloat16, True, 0, *lengths, *lengths, False, 0),
        test_utils=("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_means_are_turned_back_in_full_under_autocast():
    mean, turn = torch.randn(2, 64), torch.randn(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(turned_back(mean, turn), turned_back(mean.clone(), turn))
        exact = mean.double() @ turn.T.double()
    assert torch.equal(turned_back(mean, turn), exact.float())


def test_a_nan_in_q_is_no_row_of_zeros(qkv):
    q, k, v = (x.clone() for x in qkv)
    with torch.no_grad():
        q[0, 5, 0, 0] = torch.nan
    out = fa3.attention_fp8(q.requires_grad_(), k, v)
    assert out[0, 5, 0].isnan().all() and out[0, 6, 0].isfinite().all()


@pytest.mark.parametrize("asked", [{}, {"return_lse": True}, {"softcap": 9.0}])
def test_k_mean_is_read_only_where_scores_are_seen(monkeypatch, asked):
    """For the LSE alone a GPU reads all of q once more (docs/lab/fp8.md)."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 70, 2, 64) for _ in range(3))
    given = []
    attention = fa3.fp8.attention
    monkeypatch.setattr(
        fa3.fp8, "attention", lambda *x, **named: given.append(named) or attention(*x, **named)
    )
    fa3.attention_fp8(q, k + 1, v, **asked)
    assert (given[0]["k_mean"] is not None) == bool(asked)

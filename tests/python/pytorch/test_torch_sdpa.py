# SPDX-License-Identifier: Apache-2.0
"""The switch that puts fa3 under torch.nn.functional.scaled_dot_product_attention."""

import inspect
import warnings
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import torch.nn.functional as F  # noqa: E402
from torch.nn import attention as registry  # noqa: E402

front = pytest.importorskip("fa3.torch")
overrides = pytest.importorskip("fa3.torch.switch")

if not hasattr(registry, "register_flash_attention_impl"):
    pytest.skip("this torch has no registry of flash attentions", allow_module_level=True)


@pytest.fixture
def calls(monkeypatch):
    """Names of our kernels that ran to their end, in order."""
    seen = []

    def recorded(name, kernel):
        def run(**arguments):
            result = kernel(**arguments)
            seen.append(name)
            return result

        return run

    for table in ("KERNELS", "BACKWARDS"):
        kernels = {
            name: (key, recorded(name, kernel), *more)
            for name, (key, kernel, *more) in getattr(overrides, table).items()
        }
        monkeypatch.setattr(overrides, table, kernels)
    overrides.warned.clear()
    return seen


def qkv(device, length_q=33, length_k=33, heads_k=4, wants_gradient=True):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = (2, 4, length_q, 32), (2, heads_k, length_k, 32), (2, heads_k, length_k, 32)
    made = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]
    return [a.requires_grad_(wants_gradient) for a in made]


def run(tensors, **options):
    with registry.sdpa_kernel(registry.SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(*tensors, **options)
        return out, *torch.autograd.grad(out.square().sum(), tensors)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.2}], ids=str)
def test_values_gradients_and_strides_are_those_of_torch(device, calls, options):
    tensors = qkv(device)
    expected = run(tensors, **options)
    assert not calls
    with front.sdpa():
        actual = run(tensors, **options)
    forward = "_scaled_dot_product_flash_attention" + ("_for_cpu" if device == "cpu" else "")
    assert calls == [forward, forward + "_backward"]
    tolerance = {"rtol": 0, "atol": 2e-5} if device == "cpu" else {"rtol": 0, "atol": 0.1}
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    assert [a.stride() for a in actual] == [b.stride() for b in expected]


ORDERS = {
    "torch's own": None,  # on Hopper cuDNN first
    "torchtitan's": ("CUDNN_ATTENTION", "FLASH_ATTENTION", "MATH"),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_fa3_runs_in_whichever_order_torch_asks_its_kernels(device, calls, order):
    tensors = qkv(device)
    backends = order and [getattr(registry.SDPBackend, name) for name in order]
    preferring = registry.sdpa_kernel(backends, set_priority=True) if order else nullcontext()
    with front.sdpa(), preferring:
        out = F.scaled_dot_product_attention(*tensors, is_causal=True)
        torch.autograd.grad(out.square().sum(), tensors)
    assert len(calls) == 2 and "backward" in calls[1]


def test_nothing_is_active_until_asked_for_and_nothing_stays(calls):
    tensors = qkv("cpu")
    assert registry.current_flash_attention_impl() is None
    front.enable_sdpa()
    assert registry.current_flash_attention_impl() == "fa3"
    run(tensors)
    assert len(calls) == 2
    front.disable_sdpa()
    front.disable_sdpa()
    assert registry.current_flash_attention_impl() is None
    run(tensors)
    assert len(calls) == 2


def test_context_restores_what_was_active_before(calls):
    with front.sdpa():
        with front.sdpa():
            pass
        assert registry.current_flash_attention_impl() == "fa3"
        run(qkv("cpu"))
    assert len(calls) == 2
    assert registry.current_flash_attention_impl() is None


@pytest.mark.parametrize(
    "shape, options, words",
    [
        ({"length_q": 20}, {"is_causal": True}, "is_causal with different lengths"),
        ({}, {"attn_mask": torch.ones(33, 33)}, "attn_mask of other numbers than 0 and -inf"),
    ],
    ids=["top_left_causal", "mask"],
)
def test_what_fa3_does_not_do_runs_on_torch_with_one_warning(calls, shape, options, words):
    tensors = qkv("cpu", wants_gradient=False, **shape)
    expected = F.scaled_dot_product_attention(*tensors, **options)
    with front.sdpa():
        with pytest.warns(UserWarning, match=words):
            actual = F.scaled_dot_product_attention(*tensors, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            F.scaled_dot_product_attention(*tensors, **options)
    assert not calls
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def hidden_pairs(*shape):
    """A mask of which query 3 sees no key."""
    seen = torch.rand(shape, generator=torch.Generator().manual_seed(5)) > 0.4
    seen[..., 3 : 3 + (shape[-2] > 1), :] = False
    return seen


@pytest.mark.parametrize("shape", [(33, 150), (1, 1, 33, 150), (2, 1, 1, 150), (2, 4, 33, 150)])
@pytest.mark.parametrize("floats", [False, True], ids=["booleans", "floats"])
def test_masks_that_hide_keys_are_those_of_torch_with_gradients(calls, shape, floats):
    tensors, mask = qkv("cpu", length_k=150), hidden_pairs(*shape)
    if floats:
        mask = torch.zeros(shape).masked_fill(~mask, -torch.inf)
    with registry.sdpa_kernel(registry.SDPBackend.MATH):
        out = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
        expected = out, *torch.autograd.grad(out.square().sum(), tensors)
    with front.sdpa():
        actual = run(tensors, attn_mask=mask)
    assert len(calls) == 2
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert shape[-2] == 1 or (actual[0][:, :, 3] == 0).all()


@pytest.mark.parametrize("forward_on", ["fa3", "torch"])
@pytest.mark.parametrize("backward_on", ["fa3", "torch"])
def test_on_the_cpu_either_backward_takes_either_forward(calls, forward_on, backward_on):
    """Without dropout there; the mask hides every key of a query."""
    tensors, mask = qkv("cpu"), torch.ones(33, 33, dtype=torch.bool).tril()
    mask[3] = False
    switches = {"fa3": front.sdpa, "torch": nullcontext}
    with switches[forward_on]():
        out = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
    with switches[backward_on]():
        actual = torch.autograd.grad(out.square().sum(), tensors)
    assert len(calls) == (forward_on, backward_on).count("fa3")
    expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
    expected = torch.autograd.grad(expected.square().sum(), tensors)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def arguments_of(name):
    """Arguments of a call of torch's operator: every one that has no default, small and plain."""
    (q,) = qkv("cpu", wants_gradient=False)[:1]
    made = {"is_causal": False, "dropout_p": 0.0, "return_debug_mask": False, "max_q": 33}
    made |= {"max_k": 33, "cum_seq_q": None, "cum_seq_k": None, "logsumexp": torch.zeros(2, 4, 33)}
    made |= {"attn_bias": None, "compute_log_sumexp": True}
    if "_scaled" not in name:
        q = q.transpose(1, 2)
    if name.startswith("_cudnn"):  # packed alone
        cu = torch.tensor([0, 33, 66], dtype=torch.int32)
        q = q.flatten(0, 1)
        made |= {"cum_seq_q": cu, "cum_seq_k": cu, "logsumexp": torch.zeros(4, 66)}
    wanted = {
        a.name: a.default_value for a in getattr(torch.ops.aten, name).default._schema.arguments
    }
    return {n: made.get(n, q.clone() if n in TENSORS else x) for n, x in wanted.items()}


TENSORS = ("query", "key", "value", "out", "grad_out")


KERNELS = overrides.KERNELS | overrides.BACKWARDS


@pytest.fixture(params=KERNELS)
def name(request):
    """The name of an operator that fa3 replaces and this torch has."""
    if not hasattr(torch.ops.aten, request.param):
        pytest.skip(f"this torch has no aten::{request.param}")
    return request.param


def test_arguments_of_a_later_torch_are_refused_unless_they_are_off(name):
    _, kernel, *_ = KERNELS[name]
    kernel(**arguments_of(name), of_tomorrow=None)
    for value in (1, torch.zeros(1), "x"):
        with pytest.raises(overrides.Refused, match="of_tomorrow is not supported"):
            kernel(**arguments_of(name), of_tomorrow=value)


def test_arguments_that_fa3_cannot_obey_are_refused(name):
    _, kernel, *_ = KERNELS[name]
    on = {"dropout_p": 0.1, "return_debug_mask": True, "attn_mask": torch.ones(33, 33)}
    on |= {"alibi_slopes": torch.ones(4), "attn_bias": torch.zeros(33, 33)}
    if "for_cpu" not in name:  # the others drop out
        del on["dropout_p"]
    for argument in arguments_of(name).keys() & on.keys():
        with pytest.raises(overrides.Refused, match=f"{argument} .*is not supported"):
            kernel(**{**arguments_of(name), argument: on[argument]})


def test_a_backward_without_the_forwards_random_state_is_refused(name):
    _, kernel, *_ = KERNELS[name]
    given = arguments_of(name)
    states = {n: None for n in given if n in ("rng_state", "philox_seed", "philox_offset")}
    if "backward" not in name or "for_cpu" in name:
        pytest.skip("no state comes with this operator")
    with pytest.raises(overrides.Refused, match="dropout_p without the random state"):
        kernel(**{**given, **states, "dropout_p": 0.1})


@pytest.mark.parametrize("more", ["plain", "masked", "dropped"])
@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_scales_that_fa3_refuses_and_torch_takes_stay_with_torch(calls, scale, more):
    tensors = qkv("cpu")
    options = {"scale": scale, "dropout_p": 0.3 if more == "dropped" else 0.0}
    if more == "masked":
        options["attn_mask"] = torch.ones(33, 33, dtype=torch.bool).tril()

    def both_passes():
        torch.manual_seed(1)
        out = F.scaled_dot_product_attention(*tensors, **options)
        return out, *torch.autograd.grad(out.square().sum(), tensors)

    expected = both_passes()
    with front.sdpa(), pytest.warns(UserWarning, match="scale: expected a finite number > 0"):
        actual = both_passes()
    assert not calls
    if more != "dropped":
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_double_precision_stays_with_torch(calls):
    tensors = [a.double() for a in qkv("cpu", wants_gradient=False)]
    with front.sdpa(), pytest.warns(UserWarning, match="q: expected float32"):
        actual = F.scaled_dot_product_attention(*tensors)
    torch.testing.assert_close(actual, F.scaled_dot_product_attention(*tensors))


def test_compiled_models_use_it_too(calls):
    tensors = qkv("cpu")

    def model(q, k, v):
        return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    expected = model(*tensors)
    with front.sdpa():
        actual = torch.compile(model, fullgraph=True)(*tensors)
    assert "_scaled_dot_product_flash_attention_for_cpu" in calls
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.fixture
def varlen():
    """torch's packed attention; test_torch_switch.py calls it on CPU tensors, with stand-ins."""
    if not torch.cuda.is_available():
        pytest.skip("torch.nn.attention.varlen has kernels for CUDA only; no CUDA device here")
    return pytest.importorskip("torch.nn.attention.varlen")


def window_of(module, window):
    """The option by which this torch takes a window."""
    if "window_size" in inspect.signature(module.varlen_attn).parameters:
        return {"window_size": window}
    if window == (3, 0):
        pytest.skip("varlen_attn of this torch has no window_size")
    return {"is_causal": window == (-1, 0)}


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0)], ids=str)
def test_packed_attention_on_cuda_uses_it_in_both_passes(calls, varlen, window):
    torch.manual_seed(0)
    made = torch.randn(3, 20, 4, 64, device="cuda", dtype=torch.bfloat16)
    tensors = [x.clone().requires_grad_() for x in made]
    cu = torch.tensor([0, 7, 20], dtype=torch.int32, device="cuda")
    options = window_of(varlen, window)
    results = []
    for switch in (nullcontext, front.sdpa):
        with switch():
            out = varlen.varlen_attn(*tensors, cu, cu, 13, 13, **options)
            gradients = torch.autograd.grad(out.square().sum(), tensors)
        results.append([out, *gradients])
    assert len(calls) == 2 and "forward" in calls[0] and "backward" in calls[1]
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0.1)


def test_pages_of_torchs_packed_attention_on_cuda(calls, varlen):
    if "block_table" not in inspect.signature(varlen.varlen_attn).parameters:
        pytest.skip("varlen_attn of this torch has no block_table")
    torch.manual_seed(0)
    made = {"device": "cuda", "dtype": torch.bfloat16}
    q, (k, v) = torch.randn(4, 4, 64, **made), torch.randn(2, 6, 16, 2, 64, **made)
    cu = torch.tensor([0, 1, 4], dtype=torch.int32, device="cuda")
    used = torch.tensor([9, 29], dtype=torch.int32, device="cuda")
    table = torch.tensor([[3, 0], [5, 1]], dtype=torch.int32, device="cuda")
    options = {"window_size": (-1, 0), "enable_gqa": True, "seqused_k": used, "block_table": table}
    with front.sdpa(), torch.no_grad():
        actual = varlen.varlen_attn(q, k, v, cu, None, 3, 32, **options)
    assert len(calls) == 1
    same = {"cu_seqlens_q": cu, "max_seqlen_q": 3, "seqused_k": used, "page_table": table}
    torch.testing.assert_close(actual, fa3.attention(q, k, v, causal=True, **same))


@pytest.mark.parametrize("name", ["expanded", "sliced", "unaligned", "negated"])
def test_gradients_of_every_layout_are_taken(calls, device, name):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (
        torch.randn(2, 4, 9, 16, device=device, dtype=dtype, requires_grad=True) for _ in range(3)
    )
    with front.sdpa(), registry.sdpa_kernel(registry.SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v)
    wide = torch.randn(2, 4, 9, 17, device=device, dtype=dtype)
    do = {
        "expanded": wide[:, :, :1, :16].expand_as(out),
        "sliced": wide[..., :16],
        "unaligned": wide.flatten()[1 : 1 + out.numel()].view(out.shape),
        "negated": torch._neg_view(wide[..., :16]),
    }[name]
    with front.sdpa():
        copied = do.resolve_neg().clone(memory_format=torch.contiguous_format)
        expected = torch.autograd.grad(out, (q, k, v), copied, retain_graph=True)
        actual = torch.autograd.grad(out, (q, k, v), do)
    assert sum("backward" in call for call in calls) == 2
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)

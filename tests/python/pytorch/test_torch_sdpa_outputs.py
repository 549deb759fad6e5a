# SPDX-License-Identifier: Apache-2.0
"""The results of fa3's kernels under torch's operators look as torch's meta functions promise.

A compiled program relies on it: it checks shapes, strides, types and alignment of every result.
Here the CPU's tensors stand for a GPU's.
"""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import torch.nn.functional as F  # noqa: E402

front = pytest.importorskip("fa3.torch")
switch = pytest.importorskip("fa3.torch.switch")
aten_kernels = pytest.importorskip("fa3.torch.aten_kernels")
if not switch.can_register():
    pytest.skip("this torch has no registry of flash attentions", allow_module_level=True)
from switch_on_cpu import operators_on_cpu  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, HEADS, ROWS, DIM = 2, 4, 24, 16
ALIGNMENT = 16  # bytes; Inductor expects it of every result
ORDERS = [(*order, 3) for order in itertools.permutations(range(3))]
KERNELS = switch.KERNELS | switch.BACKWARDS
DENSE = [
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
]
PACKED = ["_flash_attention_forward", "_flash_attention_forward_no_dropout_inplace"]


def in_order(shape, order):
    """A tensor of the shape whose dimensions lie in memory in that order."""
    made = torch.randn([shape[axis] for axis in order])
    return made.permute([order.index(axis) for axis in range(len(shape))])


def assert_like(actual, promised):
    if not isinstance(promised, torch.Tensor):
        assert actual == promised
        return
    assert (actual.shape, actual.stride()) == (promised.shape, promised.stride())
    assert (actual.dtype, actual.storage_offset()) == (promised.dtype, promised.storage_offset())
    assert actual.storage_offset() * actual.element_size() % ALIGNMENT == 0


def assert_as_promised(name, given):
    """The results of our kernel, which are like those of torch's operator."""
    results = KERNELS[name][1](**given)
    on_meta = {n: x.to("meta") if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    promised = getattr(torch.ops.aten, name)(**on_meta)
    if isinstance(results, torch.Tensor):
        results, promised = (results,), (promised,)
    assert len(results) == len(promised)
    for actual, expected in zip(results, promised, strict=True):
        assert_like(actual, expected)
    memory = [x.untyped_storage().data_ptr() for x in results if isinstance(x, torch.Tensor)]
    memory = [pointer for pointer in memory if pointer]
    assert len({*memory}) == len(memory), "results share memory"
    return results


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("is_causal", [False, True])
def test_of_dense_operators_and_their_backwards(name, order, dropout_p, is_causal):
    if "cpu" in name and dropout_p:
        pytest.skip("torch's operator for the CPU has no dropout")
    tensors = [in_order((BATCH, HEADS, ROWS, DIM), order) for _ in range(3)]
    given = dict(zip(("query", "key", "value"), tensors, strict=True))
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": None}
    more = {} if "cpu" in name else {"return_debug_mask": False}
    if "cudnn" in name:
        options["attn_bias"] = None
        more["compute_log_sumexp"] = True
    elif "cpu" in name:
        options["attn_mask"] = None
    out, lse, *rest = assert_as_promised(name, given | options | more)
    do = torch.randn(BATCH, HEADS, ROWS, DIM)
    saved = {"grad_out": do, "out": out, "logsumexp": lse}
    if rest:
        names = ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset")
        saved |= dict(zip(names, rest[:6], strict=True))
    assert_as_promised(f"{name}_backward", given | options | saved)


def test_of_cudnns_operator_where_values_are_wider():
    name = "_scaled_dot_product_cudnn_attention"
    for order in ORDERS:
        tensors = [in_order((BATCH, HEADS, ROWS, dim), order) for dim in (DIM, DIM, 2 * DIM)]
        given = dict(zip(("query", "key", "value"), tensors, strict=True))
        options = {"dropout_p": 0.1, "is_causal": True, "scale": None, "attn_bias": None}
        more = {"return_debug_mask": False, "compute_log_sumexp": True}
        assert_as_promised(name, given | options | more)


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)], ids=str)
@pytest.mark.parametrize("name", PACKED)
def test_of_packed_operators(name, order, dropout_p):
    into = name.endswith("inplace")
    if not hasattr(torch.ops.aten, name) or (into and dropout_p):
        pytest.skip("this torch, or this operator, has no such call")
    tensors = [in_order((BATCH * ROWS, HEADS, DIM), order) for _ in range(3)]
    starts = torch.tensor([0, ROWS, 2 * ROWS], dtype=torch.int32)
    given = dict(zip(("query", "key", "value"), tensors, strict=True))
    given |= {"cum_seq_q": starts, "cum_seq_k": starts, "max_q": ROWS, "max_k": ROWS}
    given |= {"is_causal": True, "scale": None, "return_debug_mask": False}
    given["dropout_p"] = dropout_p
    if into:
        given["out"] = torch.empty_like(tensors[0])
        kernel = {n: x for n, x in given.items() if n not in ("dropout_p", "return_debug_mask")}
        lse = KERNELS[name][1](**kernel)
        on_meta = {n: x.to("meta") if isinstance(x, torch.Tensor) else x for n, x in given.items()}
        return assert_like(lse, getattr(torch.ops.aten, name)(**on_meta))
    out, lse, state, offset, _ = assert_as_promised(name, given)
    do = torch.randn(out.shape)
    saved = {"grad_out": do, "out": out, "logsumexp": lse, "rng_state": state, "unused": offset}
    del given["return_debug_mask"]
    gradients = KERNELS["_flash_attention_backward"][1](**given, **saved)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        assert_like(gradient, torch.empty_like(tensor))


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", DENSE[:2])
def test_a_training_step_compiled_by_inductor(monkeypatch, name, dynamic, dropout_p):
    """The first pass makes the program, the others with it."""
    torch._dynamo.reset()
    more = [None, True] if "cudnn" in name else []

    def torchs_own(name):
        return lambda *arguments: pytest.fail(f"torch's own {name} ran")

    @torch.compile(fullgraph=True, dynamic=dynamic)
    def step(q, k, v):
        q, k, v = (x.view(1, -1, HEADS, DIM).transpose(1, 2) for x in (q * 1, k, v))
        out, *_ = getattr(torch.ops.aten, name)(q, k, v, *more, dropout_p=dropout_p, is_causal=True)
        return out

    with operators_on_cpu(monkeypatch, torchs_own) as ran, front.sdpa():
        for rows in (24, 24, 40):
            tensors = [torch.randn(rows, HEADS * DIM, requires_grad=True) for _ in range(3)]
            out = step(*tensors)
            do = torch.randn(out.shape)
            (gradient,) = torch.autograd.grad(out, tensors[2:], do)
            assert ((gradient * tensors[2]).sum() - (do * out).sum()).abs() < 1e-3
    assert ran == [name, f"{name}_backward"] * 3


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_training_step_of_scaled_dot_product_attention(device, mode, checkpointed, dynamic):
    if device == "cpu" and (mode != "default" or checkpointed):
        pytest.skip("the CPU has no CUDA graphs, and compiles no checkpoints around this operator")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q * 1, k, v, is_causal=True)

    def step(*tensors):
        if checkpointed:
            out = torch.utils.checkpoint.checkpoint(attend, *tensors, use_reentrant=False)
        else:
            out = attend(*tensors)
        return out.float().square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, mode=mode, dynamic=dynamic)
    for rows in (64, 64, 64, 96):
        tensors = [torch.randn(2, 4, rows, 64, device=device, dtype=dtype) for _ in range(3)]
        tensors = [x.requires_grad_() for x in tensors]
        expected = torch.autograd.grad(step(*tensors), tensors)
        with front.sdpa():
            actual = torch.autograd.grad(compiled(*tensors), tensors)
        for a, b in zip(actual, expected, strict=True):
            tolerance = 0.02 * b.abs().max().item() if device == "cuda" else 1e-4
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance)

# SPDX-License-Identifier: Apache-2.0
"""Under torch's operators with dropout, the backward of a call runs where its forward ran.

Both draw a mask of their own, so the gradient of V shows a mixture: the output is linear in V, so
sum(dO O) = sum(dV V) for one mask, and for no others. Here torch's own kernels are stand-ins.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from torch.nn import attention as registry  # noqa: E402

front = pytest.importorskip("fa3.torch")
switch = pytest.importorskip("fa3.torch.switch")
aten_dropout = pytest.importorskip("fa3.torch.aten_dropout")
if not switch.can_register():
    pytest.skip("this torch has no registry of flash attentions", allow_module_level=True)
from switch_on_cpu import NAMES, operators_on_cpu  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

P = 0.3
ROWS, HEADS, DIM = 24, 3, 16
torchs = []  # names of the stand-ins that ran


def weights(q, k, seed, dropout_p):
    """(h, s, s) of q and k (s, h, d), with the mask that the stand-ins draw."""
    probabilities = (torch.einsum("ihd,jhd->hij", q, k) * DIM**-0.5).softmax(-1)
    draw = torch.Generator().manual_seed(int(seed) % 1000)
    keep = torch.rand(probabilities.shape, generator=draw) >= dropout_p
    return probabilities * keep / (1 - dropout_p)


def rows(name, x):
    """(s, h, d) of a tensor as the operator has it, and back."""
    return x[0].transpose(0, 1) if name.startswith("_scaled") else x


def operator_rows(name, x):
    return x.transpose(0, 1)[None].contiguous() if name.startswith("_scaled") else x


def torchs_own(name):
    """A kernel that stands for torch's, whose state is (1, 2)."""
    schema = getattr(torch.ops.aten, name).default._schema.arguments
    names = [argument.name for argument in schema]
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}

    def kernel(*args, **keywords):
        torchs.append(name)
        given = defaults | dict(zip(names, args, strict=False)) | keywords
        q, k, v = (rows(name, given[x]) for x in ("query", "key", "value"))
        p = given["dropout_p"]
        if name.endswith("_backward"):
            state = given.get("philox_seed", given.get("rng_state")).view(torch.int64)
            do = rows(name, given["grad_out"])
            kept = weights(q, k, state.flatten()[0], p)
            zeros = torch.zeros_like(given["query"])
            return zeros, zeros.clone(), operator_rows(name, torch.einsum("hij,ihd->jhd", kept, do))
        out = operator_rows(name, torch.einsum("hij,jhd->ihd", weights(q, k, 1, p), v))
        lse = q.new_zeros(HEADS, ROWS)
        if name.startswith("_scaled"):
            lse = lse[None, ..., None] if "cudnn" in name else lse[None]
        if "cudnn" in name:
            return out, lse, None, None, ROWS, ROWS, torch.tensor(1), torch.tensor(2), None
        state = torch.tensor([1, 2]).view(torch.uint64)
        extra = state, torch.tensor(0).view(torch.uint64), out.new_empty(0)
        return (
            (out, lse, None, None, ROWS, ROWS, *extra) if "_scaled" in name else (out, lse, *extra)
        )

    return kernel


@pytest.fixture
def ran(monkeypatch):
    torchs.clear()
    monkeypatch.setattr(aten_dropout.seen, "dropout", False)
    with operators_on_cpu(monkeypatch, torchs_own) as ran:
        yield ran


class Call:
    """A forward of one of torch's operators, and later its backward with what autograd saves."""

    def __init__(self, name, p=P, **more):
        torch.manual_seed(0)
        self.name, self.p, self.is_packed = name, p, not name.startswith("_scaled")
        made = torch.randn(3, ROWS, HEADS, DIM)
        self.given = dict(
            zip(("query", "key", "value"), (operator_rows(name, x) for x in made), strict=True)
        )
        starts = torch.tensor([0, ROWS], dtype=torch.int32) if self.is_packed else None
        self.named = {"dropout_p": p, "is_causal": False}
        self.lengths = dict.fromkeys(("cum_seq_q", "cum_seq_k"), starts)
        self.lengths |= {"max_q": ROWS, "max_k": ROWS}
        more = {"return_debug_mask": False} | more
        if "cudnn" in name:
            self.named["attn_bias"] = None
            more["compute_log_sumexp"] = True
        if self.is_packed:
            self.named |= self.lengths
        call = getattr(torch.ops.aten, name + ("_forward" if self.is_packed else ""))
        self.out, self.lse, *rest = call(**self.given, **self.named, **more)
        self.state = rest[:2] if len(rest) == 3 else rest[4:6]

    def copied(self):
        """Hooks of saved tensors may move them to another device and back."""
        self.state = [x.clone() for x in self.state]
        return self

    def is_of_one_mask(self):
        """Runs the backward."""
        do = torch.randn(self.out.shape, generator=torch.Generator().manual_seed(1))
        names = ("philox_seed", "philox_offset")
        if self.is_packed and "flash" in self.name:
            names = ("rng_state", "unused")
        state = dict(zip(names, self.state, strict=True))
        call = getattr(torch.ops.aten, self.name + "_backward")
        given = self.given | self.named | self.lengths
        gradients = call(do, **given, **state, out=self.out, logsumexp=self.lse)
        expected = (do * self.out).sum()
        difference = (gradients[2] * self.given["value"]).sum() - expected
        assert expected.abs() > 1
        return difference.abs() < 1e-3


PAIRS = [
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention",
    "_flash_attention",
    "_cudnn_attention",
]
PAIRS = [name for name in PAIRS if f"{name}_backward" in NAMES]
every_pair = pytest.mark.parametrize("name", PAIRS)
every_copy = pytest.mark.parametrize("copy", [False, True], ids=["saved", "copied"])


def forward_left_to_torch(name):
    """Inside of the switch: a call that fa3 refuses, but whose backward it would take."""
    if "flash" in name:
        return Call(name, return_debug_mask=True)
    with registry.sdpa_kernel(registry.SDPBackend.CUDNN_ATTENTION):
        return Call(name)


@every_copy
@every_pair
def test_forward_inside_of_the_switch_backward_behind_it(ran, name, copy):
    with front.sdpa():
        call = Call(name)
    call = call.copied() if copy else call
    assert call.is_of_one_mask()
    assert len(ran) == 2 and not torchs


@every_copy
@every_pair
def test_forward_before_the_switch_backward_inside_of_it(ran, name, copy):
    call = Call(name)
    with front.sdpa():
        Call(name)
        call = call.copied() if copy else call
        assert call.is_of_one_mask()
    assert len(ran) == 1 and len(torchs) == 2


@every_copy
@every_pair
@pytest.mark.filterwarnings("ignore:fa3 leaves")
def test_forward_left_to_torch_backward_inside_of_the_switch(ran, name, copy):
    with front.sdpa():
        Call(name)
        call = forward_left_to_torch(name)
        call = call.copied() if copy else call
        assert call.is_of_one_mask()
    assert len(ran) == 1 and len(torchs) == 2


@every_pair
def test_both_inside_of_the_switch_and_both_outside(ran, name):
    with front.sdpa():
        assert Call(name).is_of_one_mask()
        assert Call(name).copied().is_of_one_mask()
    assert len(ran) == 4 and not torchs
    assert Call(name).is_of_one_mask()
    assert len(ran) == 4 and len(torchs) == 2


@every_pair
@pytest.mark.parametrize("ours", [False, True], ids=["torch's", "fa3's"])
def test_copies_in_a_cuda_graph_are_told_apart_by_the_gpu(ran, monkeypatch, name, ours):
    with front.sdpa():
        Call(name)
        call = Call(name) if ours else None
    call = (call or Call(name)).copied()
    monkeypatch.setattr(aten_dropout, "cannot_wait", lambda tensor: True)
    with front.sdpa():
        assert call.is_of_one_mask()


@every_pair
def test_a_backward_that_fa3_has_to_run_and_cannot_is_refused(ran, name):
    with front.sdpa():
        call = Call(name)
    call.named["is_causal"], call.given["key"] = True, call.given["key"][..., :7]
    with pytest.raises(fa3.Error, match="no other kernel draws its dropout"):
        call.is_of_one_mask()


@every_pair
def test_without_dropout_dense_calls_stay_where_their_forward_was(ran, name):
    torch_had_it = Call(name, p=0.0)
    with front.sdpa():
        fa3_had_it = Call(name, p=0.0)
        if name.startswith("_scaled"):
            assert torch_had_it.is_of_one_mask() and len(ran) == 1
    before = len(torchs)
    assert fa3_had_it.is_of_one_mask() and len(ran) == 2 and len(torchs) == before


def through_autograd(name):
    """(q, k, v, out) of a dense operator, recorded by autograd."""
    tensors = [x.detach().requires_grad_() for x in torch.randn(3, 1, HEADS, ROWS, DIM)]
    more = [None, True] if "cudnn" in name else []
    out, *_ = getattr(torch.ops.aten, name)(*tensors, *more, dropout_p=P)
    return tensors, out


@pytest.mark.parametrize("name", [name for name in PAIRS if name.startswith("_scaled")])
@pytest.mark.parametrize("hooks", [False, True], ids=["saved", "offloaded"])
def test_through_autograd_and_its_hooks(ran, name, hooks):
    with front.sdpa():
        if hooks:
            with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
                tensors, out = through_autograd(name)
        else:
            tensors, out = through_autograd(name)
    do = torch.randn_like(out)
    out.backward(do)
    assert ((tensors[2].grad * tensors[2]).sum() - (do * out).sum()).abs() < 1e-3
    assert ran == [name, f"{name}_backward"] and not torchs


@pytest.mark.parametrize("name", [name for name in PAIRS if name.startswith("_scaled")])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("first", ["fa3", "torch"])
def test_compiled_programs_however_the_switch_is_turned(ran, name, backend, first):
    """One program, compiled once: whoever runs its forward runs that backward."""
    torch._dynamo.reset()
    more = [None, True] if "cudnn" in name else []

    @torch.compile(fullgraph=True, backend=backend)
    def program(q, k, v):
        return getattr(torch.ops.aten, name)(q * 1, k, v, *more, dropout_p=P)[0]

    for who in (first, "torch" if first == "fa3" else "fa3"):
        tensors = [x.detach().requires_grad_() for x in torch.randn(3, 1, HEADS, ROWS, DIM)]
        if who == "fa3":
            with front.sdpa():
                out = program(*tensors)
        else:
            out = program(*tensors)
        do = torch.randn_like(out)
        if who == "fa3":
            out.backward(do)
        else:
            with front.sdpa():
                out.backward(do)
        assert ((tensors[2].grad * tensors[2]).sum() - (do * out).sum()).abs() < 1e-3
    assert len(ran) == 2 and len(torchs) == 2

# SPDX-License-Identifier: Apache-2.0
"""What fa3.attention refuses of torch tensors and numbers, and by which sentence."""

import numpy as np
import pytest
from cases import inputs_for

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"q": lambda q: q.double()}, fa3.InvalidArgument, "q: expected float32"),
        ({"q": lambda q: q[0]}, fa3.InvalidArgument, "q: expected rank 4"),
        ({"k": lambda k: k.mT.contiguous().mT}, fa3.InvalidArgument, "k: expected stride 1"),
        ({"v": lambda v: v.half()}, fa3.InvalidArgument, "v: expected the dtype of q"),
        ({"scale": -1.0}, fa3.InvalidArgument, "scale: expected a finite number > 0"),
        ({"engine": "abacus"}, fa3.InvalidArgument, "engine: expected one of"),
        ({"engine": []}, fa3.InvalidArgument, "engine: expected one of"),
        ({"window": 3}, fa3.InvalidArgument, "window: expected"),
        ({"window": (1, 2, 3)}, fa3.InvalidArgument, "window: expected"),
        ({"window": "ab"}, TypeError, r"window\[0\]: expected an integer, got 'a'"),
        ({"window": (2**70, 0)}, fa3.InvalidArgument, r"window\[0\]: .* 64 bits"),
        ({"softcap": "x"}, TypeError, "softcap: expected a number"),
        ({"causal": "no"}, TypeError, "causal: expected True or False"),
        ({"num_threads": 1.5}, TypeError, "num_threads: expected an integer, got 1.5"),
        ({"attention_chunk": -1}, fa3.InvalidArgument, "attention_chunk: expected 0"),
        ({"attention_chunk": "x"}, TypeError, "attention_chunk: expected an integer, got 'x'"),
        ({"batch_invariant": "no"}, TypeError, "batch_invariant: expected True or False"),
        ({"num_threads": 2**70}, fa3.InvalidArgument, "num_threads: .* 64 bits"),
        ({"k": lambda k: k.detach().numpy()}, TypeError, "k: expected a torch.Tensor"),
        ({"k": lambda k: (1, 2)}, TypeError, "k: expected a torch.Tensor"),
        ({"v": lambda v: None}, TypeError, "v: expected a torch.Tensor"),
        ({"sink": [0.0] * 6}, TypeError, "sink: expected a torch.Tensor"),
        ({"sink": torch.zeros(6).double()}, fa3.InvalidArgument, "sink: .*float32, got float64"),
        ({"cu_seqlens_q": [0, 4]}, TypeError, "cu_seqlens_q: expected a torch.Tensor"),
        ({"seqused_k": torch.ones(2)}, fa3.InvalidArgument, "seqused_k: .*int32, got float32"),
        ({"q": lambda q: q[0]}, fa3.InvalidArgument, "q: .*or cu_seqlens_q beside packed rows"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_wrong_calls_raise_the_sentence_of_the_library(change, error, words, wants_gradient):
    leaves = [torch.tensor(a, dtype=torch.float32) for a in inputs_for("gqa", "float32")[:3]]
    arguments = {n: a.requires_grad_() for n, a in zip("qkv", leaves, strict=True)}
    for name, value in change.items():
        arguments[name] = value(arguments[name]) if callable(value) else value
    if not wants_gradient:
        tensors = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor)}
        arguments |= {name: tensor.detach() for name, tensor in tensors.items()}
    with pytest.raises(error, match=words):
        fa3.attention(**arguments)


def nested(layout):
    return torch.nested.nested_tensor([torch.randn(3, 2, 8), torch.randn(5, 2, 8)], layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_tensor_is_refused_by_what_to_pass_instead(layout):
    x, dense = nested(layout), torch.randn(2, 5, 2, 8)
    for arguments, name in (((x, x, x), "q"), ((dense, x, x), "k"), ((dense, dense, x), "v")):
        for attend in (fa3.attention, fa3.flex_attention):
            with pytest.raises(
                fa3.InvalidArgument, match=f"{name}: expected .* nested .*cu_seqlens"
            ):
                attend(*arguments)


def test_what_a_nested_tensor_is_told_to_pass_works():
    x = nested(torch.jagged)
    cu = x.offsets().int()
    out = fa3.attention(*[x.values()] * 3, cu_seqlens_q=cu, cu_seqlens_k=cu)
    for part, whole in zip(out.split([3, 5]), x.unbind(), strict=True):
        torch.testing.assert_close(part[None], fa3.attention(*[whole[None]] * 3))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_sparse_tensor_is_refused(name):
    tensors = {x: torch.randn(1, 4, 2, 8) for x in "qkv"}
    tensors[name] = tensors[name].to_sparse()
    with pytest.raises(fa3.InvalidArgument, match=f"{name}: expected .*to_dense"):
        fa3.attention(**tensors)


INT32 = {"dtype": torch.int32}
WRONG = {
    "scale": ({"scale": 0}, "scale: expected a finite number > 0"),
    "negative scale": ({"scale": -1.0}, "scale: expected a finite number > 0"),
    "softcap": ({"softcap": -1}, "softcap: expected 0"),
    "window": ({"window": (-5, 0)}, "window.*expected"),
    "chunk": ({"attention_chunk": -3}, "attention_chunk: expected 0"),
    "length": ({"seqused_k": torch.tensor([9, 1], **INT32)}, "seqused_k: expected a length"),
    "type of lengths": ({"seqused_k": torch.ones(2)}, "seqused_k: expected int32"),
    "number of lengths": ({"seqused_k": torch.tensor([3], **INT32)}, "seqused_k: expected entries"),
    "sink": ({"sink": torch.zeros(3)}, "sink: expected query heads"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_float64_refuses_what_float32_does(wrong):
    """Its attention is a textbook's, in torch's operators, which would compute something."""
    options, sentence = WRONG[wrong]
    for dtype in (torch.float32, torch.float64):
        q, k, v = (torch.randn(2, n, h, 8, dtype=dtype) for n, h in ((3, 4), (5, 2), (5, 2)))
        with pytest.raises(fa3.InvalidArgument, match=sentence):
            fa3.attention(q, k, v, **options)


def test_float64_refuses_shapes_that_do_not_fit():
    q, k, v = (torch.randn(2, n, h, 8, dtype=torch.float64) for n, h in ((3, 4), (5, 2), (5, 2)))
    for arguments, sentence in (
        ((q, k, v[:, :3]), "v: expected seq = 5"),
        ((q, k[:1], v[:1]), "k: expected batch = 2"),
        ((q[:, :, :3], k, v), "q: expected a number of query heads"),
        ((q, k[..., :4], v), "k: expected the head dim"),
    ):
        with pytest.raises(fa3.InvalidArgument, match=sentence):
            fa3.attention(*arguments)


@pytest.mark.parametrize(
    "name, instead",
    [("scale", "multiply q"), ("softcap", "flex_attention"), ("dropout_p", "detach")],
)
def test_a_number_that_learns_is_refused_where_its_gradient_would_be_lost(name, instead):
    q = torch.ones(1, 4, 2, 8)
    learned = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(fa3.Unsupported, match=f"^{name}: expected a number.*{instead}"):
        fa3.attention(q, q, q, **{name: learned})
    with pytest.raises(fa3.Unsupported, match=f"^{name}: expected a number"):
        fa3.attention(torch._neg_view(q), q, q, **{name: learned})  # which goes another way
    seed = {"dropout_seed": (1, 2)} if name == "dropout_p" else {}
    expected = fa3.attention(q, q, q, **seed, **{name: 0.5})
    with torch.no_grad():
        assert torch.equal(fa3.attention(q, q, q, **seed, **{name: learned}), expected)
    assert torch.equal(fa3.attention(q, q, q, **seed, **{name: learned.detach()}), expected)


def test_a_scale_of_chosen_rows_that_learns_is_refused_too():
    q, kv, rows = torch.ones(3, 2, 576), torch.ones(5, 576), torch.zeros(3, 1, dtype=torch.int32)
    learned = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(fa3.Unsupported, match="^scale: expected a number.*multiply q"):
        fa3.mla.sparse_attention(q, kv, rows, scale=learned)


@pytest.mark.parametrize("holds", [np.ones, torch.ones])
def test_a_number_is_not_several(holds):
    q = torch.ones(1, 4, 2, 8, requires_grad=True)
    for x in (q, torch._neg_view(q)):
        with pytest.raises(TypeError, match="^scale: expected a number, got"):
            fa3.attention(x, q, q, scale=holds(2))


def test_a_float8_that_is_not_taken_is_named():
    q = torch.ones(1, 4, 2, 8).to(torch.float8_e4m3fnuz)
    with pytest.raises(fa3.InvalidArgument, match="^q: expected .*, got float8_e4m3fnuz; convert"):
        fa3.attention(q, q, q)

# SPDX-License-Identifier: Apache-2.0
"""What fa3.flex_attention does not take is refused by a sentence that names it."""

import pytest
from flex_functions import inputs

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.flex import device  # noqa: E402
from fa3.flex.call import EVERY_KEY  # noqa: E402
from fa3.flex.decisions import Decision  # noqa: E402
from fa3.flex.function.trace import trace  # noqa: E402

SLOPES = torch.tensor([0.5, 0.25])


def test_packed_rows_without_their_lengths_are_told_so():
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises(fa3.InvalidArgument, match="^k: .*; packed rows come with cu_seqlens_k"):
        fa3.flex_attention(q, k[0], v[0], score_mod=lambda s, b, h, i, j: s * 2)


@pytest.mark.parametrize(
    "result, got",
    [
        (lambda i, j: i - j, "a tensor of torch.int32"),
        (lambda i, j: 1, "1"),
        (lambda i, j: None, "None"),
    ],
)
def test_a_mask_that_is_no_boolean_is_refused(result, got):
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises(fa3.InvalidArgument, match=f"mask_mod: expected a boolean, .*, got {got}"):
        fa3.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: result(i, j))


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"scale": 0}, "scale: expected a finite number > 0"),
        ({"scale": -1.0}, "scale: expected a finite number > 0"),
        ({"scale": "1"}, "scale: expected a number"),
        ({"causal": "no"}, "causal: expected True or False"),
        ({"seqused_k": [3, 4]}, "seqused_k: expected a torch.Tensor"),
        ({"seqused_k": torch.tensor([3.0, 4.0])}, "seqused_k: expected int32 .*float32"),
    ],
)
def test_wrong_options_are_named(options, sentence):
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises((fa3.InvalidArgument, TypeError), match=sentence):
        fa3.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 1, **options)


@pytest.mark.parametrize(
    "call",
    [
        lambda q, **given: fa3.flex_attention(q, q, q, score_mod=lambda s, *_: s * 2, **given),
        lambda q, **given: fa3.flex_attention(q, q, q, mask_mod=lambda b, h, i, j: i > j, **given),
        lambda q, **given: fa3.attention(q, q, q, alibi_slopes=torch.ones(q.shape[2]), **given),
    ],
)
def test_a_number_that_learns_is_refused(call):
    q, _, _ = inputs(dtype=torch.float32)
    learned = torch.tensor(0.5, requires_grad=True)
    expected = call(q, scale=0.5)
    for _ in range(2):  # also where the same has been decided
        with pytest.raises(fa3.Unsupported, match="^scale: expected a number.*multiply q by it"):
            call(q, scale=learned)
        assert torch.equal(call(q, scale=learned.detach()), expected)
    with torch.no_grad():
        assert torch.equal(call(q, scale=learned), expected)


def test_a_softcap_that_learns_is_refused_beside_a_bias():
    q, k, v = inputs(dtype=torch.float32)
    learned = torch.tensor(5.0, requires_grad=True)
    with pytest.raises(fa3.Unsupported, match="^softcap: expected a number.*fa3.flex_attention"):
        fa3.attention(q, k, v, bias=torch.ones(1, 1), softcap=learned)


WITHOUT_STRIDES = {
    "torch.sparse_coo": torch.Tensor.to_sparse,
    "torch.sparse_csr": torch.Tensor.to_sparse_csr,
    "nested": lambda x: torch.nested.nested_tensor([x], layout=torch.jagged),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("kind", WITHOUT_STRIDES)
def test_tensors_without_strides_are_named(kind):
    q, k, v = inputs(dtype=torch.float32)
    without = WITHOUT_STRIDES[kind](torch.ones(2, 2))
    with pytest.raises(fa3.InvalidArgument, match=f"^bias: expected a tensor with.* {kind}"):
        fa3.attention(q, k, v, bias=without)
    if kind != "torch.sparse_csr":
        slopes = WITHOUT_STRIDES[kind](torch.ones(q.shape[2]))
        with pytest.raises(fa3.InvalidArgument, match=f"^alibi_slopes: expected .* {kind}"):
            fa3.attention(q, k, v, alibi_slopes=slopes)
    with pytest.raises(fa3.Unsupported, match=f"^score_mod: a captured tensor that is {kind}"):
        fa3.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + without[h, i])


REFUSED = {
    "reads the value": lambda s, b, h, q, k: s if q > k else -s,
    "aten.i0": lambda s, b, h, q, k: torch.special.i0(s),
    "a whole captured tensor of shape": lambda s, b, h, q, k: s + torch.ones(3)[None].sum(0)[:2],
    "captured tensor without elements": lambda s, b, h, q, k: s + torch.ones(3, 0).t()[h, q],
    "a row of a captured tensor": lambda s, b, h, q, k: s + torch.ones(3, 2).neg()[h],
    "a captured tensor of 5 dimensions": lambda s, b, h, q, k: s + torch.ones(1, 1, 1, 1, 1)[0 * h],
    "aten.add_": lambda s, b, h, q, k: s.add_(1),
    "computes with a NoneType": lambda s, b, h, q, k: None,
}


@pytest.mark.parametrize(
    "window, sentence",
    [
        (3, r"^window: expected \(left, right\)"),
        ((3.5, 0), r"^window\[0\]: expected an integer, got 3.5"),
        (torch.tensor([3.0, 0.0]), r"^window\[0\]: expected an integer, got 3.0"),
        ((0, -2), r"^window\[1\]: expected -1, None or keys >= 0, got -2"),
    ],
)
def test_a_wrong_window_is_named(window, sentence):
    q, k, v = inputs(dtype=torch.float32)
    bias = torch.zeros(q.shape[1], k.shape[1])
    with pytest.raises((fa3.InvalidArgument, TypeError), match=sentence):
        fa3.attention(q, k, v, bias=bias, window=window)
    with pytest.raises((fa3.InvalidArgument, TypeError), match=sentence):
        fa3.flex_attention(q, k, v, score_mod=lambda s, *_: s, window=window)


@pytest.mark.parametrize("window", [torch.tensor([3, 1]), [3, 1], None])
def test_a_window_may_be_a_tensor(window):
    q, k, v = inputs(dtype=torch.float32)
    expected = fa3.attention(q, k, v, window=window)
    biased = fa3.attention(q, k, v, bias=torch.zeros(q.shape[1], k.shape[1]), window=window)
    flexible = fa3.flex_attention(q, k, v, score_mod=lambda s, *_: s, window=window)
    for found in (biased, flexible):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_translated_is_named(sentence):
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises(fa3.Unsupported, match=sentence):
        fa3.flex_attention(q, k, v, score_mod=REFUSED[sentence])


@pytest.mark.parametrize(
    "options, sentence",
    [
        (
            {"score_mod": lambda s: s},
            r"^score_mod: expected a function \(score, b, h, q_idx, kv_idx",
        ),
        (
            {"mask_mod": lambda i, j: i >= j},
            r"^mask_mod: expected a function \(b, h, q_idx, kv_idx\)",
        ),
        ({"mask_mod": torch.ones(2, 2)}, r"^mask_mod: expected a function .*got Tensor$"),
        ({"block_mask": torch.ones(2, 2)}, "^block_mask: .*got Tensor; fa3.masks.from_dense makes"),
    ],
    ids=["score_mod of one", "mask_mod of two", "a tensor", "a dense block_mask"],
)
def test_what_is_no_such_function_is_named(options, sentence):
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises(fa3.InvalidArgument, match=sentence):
        fa3.flex_attention(q, k, v, **options)


@pytest.mark.parametrize("only_kernels", [False, True])
def test_a_kernel_that_refuses_leaves_the_call_to_torch_or_says_why(monkeypatch, only_kernels):
    function, tensors = trace(lambda s, b, h, i, j: s + SLOPES[h % 2])
    own = [False, -1, -1, 0.0, 0.5]
    here = Decision(function, 0.5, EVERY_KEY, 0, False, True, only_kernels=only_kernels)
    here = here._replace(options=own)
    q, k, v = (x.detach().bfloat16() for x in inputs(dtype=torch.float32))
    asked = []

    def kernel(lend, score, *given):
        asked.append(score)
        assert all(a is b for a, b in zip(given[:3], (q, k, v), strict=True))
        assert score[3][0] is SLOPES and [*given[5:]] == own
        given[3].fill_(len(asked))
        if len(asked) > 1:
            raise fa3.Unsupported("not this")

    monkeypatch.setattr(device._native, "forward_with_score", kernel)
    out, lse = device.forward(here, q, k, v, tensors, None, True)
    assert (out == 1).all() and lse.shape == (q.shape[0], q.shape[2], q.shape[1])
    if only_kernels:
        with pytest.raises(fa3.Unsupported, match="not this"):
            device.forward(here, q, k, v, tensors, None, False)
    else:
        with pytest.warns(device.SlowScores, match="torch operations, which is slow: not this"):
            out, _ = device.forward(here, q, k, v, tensors, None, False)
        by_torch, _ = device.forward_by_torch(here, q, k, v, tensors, None)
        assert torch.equal(out, by_torch)
    assert len(asked) == 2

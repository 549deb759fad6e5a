# SPDX-License-Identifier: Apache-2.0
"""What fa3.flex_attention does not take is refused by a sentence that names it."""

import pytest
from flex_functions import inputs

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")


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
        ({"seqused_k": torch.tensor([3, 4])}, "seqused_k: expected int32 .*int64"),
    ],
)
def test_wrong_options_are_named(options, sentence):
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises((fa3.InvalidArgument, TypeError), match=sentence):
        fa3.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 1, **options)


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


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_translated_is_named(sentence):
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises(fa3.Unsupported, match=sentence):
        fa3.flex_attention(q, k, v, score_mod=REFUSED[sentence])

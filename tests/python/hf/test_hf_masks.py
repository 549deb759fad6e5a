# SPDX-License-Identifier: Apache-2.0
"""Mask functions of Transformers that no option of fa3 describes, though each part has one: "fa3"
refuses them, "fa3_flex" obeys them.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from transformers import masking_utils  # noqa: E402

from fa3 import hf  # noqa: E402

if hf.VERSION < (5, 5):
    pytest.skip("masks of Transformers 5.5 are called by lengths", allow_module_level=True)

CAUSAL = masking_utils.causal_mask_function
BIDIRECTIONAL = masking_utils.bidirectional_mask_function
TWO_IN_A_ROW = [[0, 0, 0, 1, 1, 1, 1, 1]]
PART, PADDING, CACHE = (
    "got sequences in several parts",
    "got padding besides",
    "got 2 queries among",
)


def packed(numbers, other=BIDIRECTIONAL):
    """As by `and_mask_function=packed_sequence_mask_function(numbers)`."""
    return masking_utils.and_masks(
        other, masking_utils.packed_sequence_mask_function(torch.tensor(numbers))
    )


def in_chunks(size):
    return masking_utils.chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.long))


def within(window):
    return masking_utils.sliding_window_bidirectional_mask_function(window)


# mask function, queries, keys, position of the first query, tokens that count, words of the refusal
CASES = {
    "parts": (packed([[0, 0, 1, 1, 1, 0, 0, 0]]), 8, 8, 0, None, PART),
    "causal parts": (packed([[2, 2, 1, 1, 1, 2, 2, 2]], CAUSAL), 8, 8, 0, None, PART),
    "padding": (packed(TWO_IN_A_ROW), 8, 8, 0, [[1, 1, 0, 1, 1, 1, 1, 1]], PADDING),
    "short mask": (packed(TWO_IN_A_ROW), 8, 8, 0, [[1, 1, 1, 1, 1, 1]], PADDING),
    "cache": (packed(TWO_IN_A_ROW), 2, 8, 6, None, CACHE),
    "padding before a chunk": (
        in_chunks(4),
        6,
        11,
        5,
        [[1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1]],
        "expected no padding between",
    ),
    "static cache": (within(2), 3, 12, torch.tensor(4), None, "a static cache end"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_parts_do_not_say_alone_is_refused_and_obeyed_by_flex(one_thread, case):
    function, queries, keys, offset, tokens, words = CASES[case]
    tokens = None if tokens is None else torch.tensor(tokens, dtype=torch.bool)
    given = {"batch_size": 1, "q_length": queries, "kv_length": keys, "q_offset": offset}
    given |= {"mask_function": function, "attention_mask": tokens, "device": "cpu"}
    with pytest.raises(fa3.Unsupported, match=words):
        hf.mask.attention_mask(**given)
    q, k, v = (torch.randn(1, 2, n, 8) for n in (queries, keys, keys))
    out, _ = hf.flex.attention_forward(None, q, k, v, hf.flex.attention_mask(**given))
    seen = hf.mask.booleans(**given)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    right = right.where(seen.any(-1, keepdim=True), 0).transpose(1, 2)
    if tokens is not None:  # rows of padding are nobody's
        real = torch.nn.functional.pad(tokens, (0, keys - tokens.shape[1]))[0, keys - queries :]
        out, right = out[:, real], right[:, real]
    torch.testing.assert_close(out, right, rtol=1e-5, atol=1e-5)


def test_packed_sequences_of_a_mask_function_run(one_thread):
    """Numbers need not go up, and -1 may stand for what follows the last sequence."""
    numbers = [[5, 5, 5, 2, 2, -1, -1, -1], [7, 7, 7, 7, 7, 7, 7, 0]]
    given = {"batch_size": 2, "q_length": 8, "kv_length": 8, "mask_function": packed(numbers)}
    given |= {"attention_mask": torch.ones(2, 8, dtype=torch.bool), "device": "cpu"}
    q, k, v = torch.randn(3, 2, 2, 8, 8)
    out, _ = hf.attention.attention_forward(None, q, k, v, hf.mask.attention_mask(**given))
    seen = hf.mask.booleans(**given)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(out, right.transpose(1, 2), rtol=1e-5, atol=1e-5)


IMPLEMENTATIONS = {"fa3": (hf.mask, hf.attention), "fa3_flex": (hf.flex, hf.flex)}


@pytest.mark.parametrize("masks, layers", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_padding_is_that_of_the_whole_batch(one_thread, masks, layers):
    def mask(tokens):
        padding = torch.tensor(tokens, dtype=torch.bool)
        given = {"batch_size": 2, "q_length": 4, "kv_length": 4, "mask_function": CAUSAL}
        return masks.attention_mask(**given, attention_mask=padding, device="cpu")

    q, k, v = torch.randn(3, 2, 2, 4, 8)
    row = [False, False, True, True]
    for_all, given = (
        layers.attention_forward(None, q, k, v, mask(tokens))[0] for tokens in ([row], [row, row])
    )
    assert torch.equal(for_all, given) and for_all[1, 2:].abs().min() > 0
    for wrong in (row, [row] * 3, [[row] * 4] * 2):
        with pytest.raises(fa3.InvalidArgument, match=r"attention_mask: expected shape \(2, posit"):
            mask(wrong)


def test_integers_are_no_mask_of_four_dimensions():
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    with pytest.raises(fa3.InvalidArgument, match="expected booleans.*got torch.int64"):
        hf.flex.attention_forward(None, q, k, v, torch.ones(1, 1, 4, 4, dtype=torch.int64))

# SPDX-License-Identifier: Apache-2.0
"""fa3 for Hugging Face Transformers: importing this module adds attn_implementation="fa3".

    import fa3.hf
    model = AutoModel.from_pretrained(path, attn_implementation="fa3")

Registers the attention function and, under the same name, the mask function: without the second,
Transformers would pass no mask and padding would silently take part. Masks stay two-dimensional
(batch, keys); padded batches and packed sequences run as packed sequences, without their padding.
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

from fa3.errors import Unsupported
from fa3.torch import attention

NAME = "fa3"


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    sliding_window=None,
    softcap=None,
    is_causal=None,
    s_aux=None,
    position_ids=None,
    cu_seq_lens_q=None,
    cu_seq_lens_k=None,
    max_length_q=None,
    max_length_k=None,
    position_bias=None,
    cache=None,
    **ignored,
):
    """The function that Transformers calls in every attention layer.

    Args:
        query: (batch, heads, queries, d). key, value: (batch, kv heads, keys, d | dv).
        attention_mask: None or (batch, keys) bool, False where there is padding.
        position_ids: (1, queries), starting anew where a packed sequence starts.
        cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: packed sequences, already
            described.

    Returns:
        (batch, queries, heads, dv), and None for the weights, which are never stored.

    Raises:
        fa3.Unsupported: dropout, a position bias, a mask of other than two dimensions, or a paged
            cache.
    """
    refuse(dropout, attention_mask, position_bias, cache)
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    side = -1 if sliding_window is None else sliding_window - 1
    options = {
        "causal": module.is_causal if is_causal is None else is_causal,
        "window": (side, side),
        "softcap": softcap or 0.0,
        "scale": scaling,
        "sink": None if s_aux is None else s_aux.float(),
    }
    if attention_mask is not None:
        return attend_unpadded(q, k, v, attention_mask, options), None
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        lengths = {
            "cu_seqlens_q": cu_seq_lens_q.to(torch.int32),
            "cu_seqlens_k": cu_seq_lens_k.to(torch.int32),
            "max_seqlen_q": int(max_length_q),
            "max_seqlen_k": int(max_length_k),
        }
        return attend_packed(q, k, v, lengths, options), None
    if is_packed(position_ids, q, k):
        return attend_packed(q, k, v, lengths_from(position_ids), options), None
    return attention(q, k, v, **options), None


def refuse(dropout, attention_mask, position_bias, cache):
    if dropout:
        raise Unsupported(f"dropout: expected 0, got {dropout}; set attention_dropout=0.0")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise Unsupported(
            "attention_mask: expected a padding mask (batch, keys), got the shape "
            f'{tuple(attention_mask.shape)}; attn_implementation="sdpa" takes any mask'
        )
    if position_bias is not None:
        raise Unsupported('position_bias: expected None; attn_implementation="sdpa" takes it')
    if cache is not None:
        raise Unsupported("cache: paged caches are not supported yet")


def attend_unpadded(q, k, v, mask, options):
    """Takes the padding out, attends to packed sequences, and puts zeros where the padding was."""
    batch, rows = q.shape[:2]
    mask = mask.bool()
    keys = mask.shape[1]  # a static cache is longer than what it holds
    is_self_attention = options["causal"] or rows == keys
    mask_q = mask[:, keys - rows :] if is_self_attention else mask.new_ones(batch, rows)
    kept_q, cu_seqlens_q, max_seqlen_q = kept(mask_q)
    kept_k, cu_seqlens_k, max_seqlen_k = kept(mask)
    k, v = (tensor[:, :keys].flatten(0, 1)[kept_k] for tensor in (k, v))
    out = attention(
        q.flatten(0, 1)[kept_q],
        k,
        v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        **options,
    )
    padded = out.new_zeros(batch * rows, *out.shape[1:])
    padded = padded.index_copy(0, kept_q, out)
    return padded.unflatten(0, (batch, rows))


def kept(mask):
    """Flat positions of what is no padding, and where each sequence starts among them."""
    lengths = mask.sum(dim=1, dtype=torch.int32)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return mask.flatten().nonzero().flatten(), cu_seqlens, int(lengths.max())


def attend_packed(q, k, v, lengths, options):
    batch, rows = q.shape[:2]
    q, k, v = (tensor.flatten(0, 1) for tensor in (q, k, v))
    return attention(q, k, v, **lengths, **options).unflatten(0, (batch, rows))


def is_packed(position_ids, q, k):
    """Several sequences in one row: positions that do not simply count up, and no cache."""
    if position_ids is None or q.shape[0] != 1 or not 1 < q.shape[1] == k.shape[1]:
        return False
    positions = position_ids.flatten()
    counting = torch.arange(positions.shape[0], device=positions.device) + positions.min()
    return positions.shape[0] == q.shape[1] and bool((positions != counting).any())


def lengths_from(position_ids):
    positions = position_ids.flatten()
    starts = (positions == positions.min()).nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(starts, (0, 1), value=positions.shape[0]).to(torch.int32)
    longest = int(cu_seqlens.diff().max())
    return {
        "cu_seqlens_q": cu_seqlens,
        "cu_seqlens_k": cu_seqlens,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, flash_attention_mask)

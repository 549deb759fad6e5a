# SPDX-License-Identifier: Apache-2.0
"""The function that Transformers calls in every attention layer. Masks: mask.py.

Padding is taken out before the call of fa3.attention, packed sequences stay packed.
"""

import torch

from fa3.errors import Unsupported
from fa3.hf import paged
from fa3.hf.mask import Mask, Pattern
from fa3.torch import attention

# What models hand to every layer and eager attention does not look at either.
HARMLESS = {
    "cache_position": "the mask has read it",
    "num_items_in_batch": "for the loss",
    "output_hidden_states": "for the model",
    "output_router_logits": "for the model",
    "return_dict": "for the model",
    "seq_idx": "for state space layers; attention gets position_ids or cu_seq_lens",
    "use_cache": "the keys already come from the cache",
}


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
    deterministic=None,
    cache=None,
    **others,
):
    """softmax(scaling * query key^T) value under the mask.

    Args:
        query: (batch, heads, queries, d).
        key, value: (batch, kv heads, keys, d | dv).
        dropout: the probability, drawn from torch's generator; 0 where a cache is paged.
        attention_mask: what mask.attention_mask() made, which says everything about who sees whom;
            or None, and then is_causal (else module.is_causal) and sliding_window say it.
        position_ids: (1, queries), starting anew where a packed sequence starts.
        cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: packed sequences, already
            described.
        cache: the paged cache of continuous batching (paged.py), with its arguments in others.
        others: None, or a name in HARMLESS.

    Returns:
        (batch, queries, heads, dv), and None for the weights, which are never stored.

    Raises:
        fa3.Unsupported: dropout with a paged cache, a mask that a model made itself, or any other
            argument that fa3 has nothing to do with; by its name.
    """
    is_paged = hasattr(cache, "cache_allocators")
    refuse_unknown(paged.without_arguments(others) if is_paged else {"cache": cache, **others})
    if is_paged:
        refuse_dropout(dropout, module)
        described = {"cu_seq_lens_k": cu_seq_lens_k, "max_length_k": max_length_k, **others}
        key, value = paged.update(cache, module.layer_idx, key, value, described)
        cu_seq_lens_k, max_length_k = described["cu_seq_lens_k"], described["max_length_k"]
        attention_mask = None  # a mask would know the new tokens alone
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if attention_mask is None:
        pattern = pattern_of_layer(module, is_causal, sliding_window, q, k)
        padding = None
    else:
        pattern = pattern_of_mask(attention_mask, q, k)
        padding = attention_mask.as_subclass(torch.Tensor) if attention_mask.is_padded else None
    k, v = (tensor[:, pattern.unseen : pattern.keys] for tensor in (k, v))
    options = {
        "causal": pattern.causal,
        "window": pattern.window,
        "attention_chunk": pattern.chunk,
        "softcap": softcap or 0.0,
        "scale": scaling,
        "sink": None if s_aux is None else s_aux.float(),
        "deterministic": bool(deterministic),
        "dropout_p": dropout,
    }
    if is_paged and "k_cache" in described:
        return paged.attend(q, k, v, described, options), None
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        if padding is not None:
            raise Unsupported("cu_seq_lens_q: expected None beside padding in attention_mask")
        cu_q, cu_k = cu_seq_lens_q.to(torch.int32), cu_seq_lens_k.to(torch.int32)
        lengths = packed_lengths(cu_q, cu_k, int(max_length_q or 0), int(max_length_k or 0))
        return attend_packed(q, k, v, lengths, options), None
    if pattern.sequences is not None:
        lengths = lengths_of_sequences(pattern.sequences, q.shape[0])
        return attend_packed(q, k, v, lengths, options), None
    if padding is not None:
        return attend_unpadded(q, k, v, padding, pattern, options), None
    refuse_restart(position_ids, pattern, q)
    return attention(q, k, v, **options), None


def refuse_unknown(others):
    for name, value in others.items():
        if value is None or name in HARMLESS or (name == "output_attentions" and not value):
            continue
        if name == "output_attentions":
            advice = 'fa3 never stores the weights; attn_implementation="eager" does'
        else:
            advice = 'fa3 does not know what it does; attn_implementation="eager" does'
        raise Unsupported(f"{name}: expected None, got {described(value)}; {advice}")


def described(value):
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def refuse_dropout(dropout, module):
    if not dropout:
        return
    config = getattr(module, "config", None)
    fields = [f for f, x in vars(config).items() if "drop" in f and x == dropout] if config else []
    fields.sort(key=lambda field: "att" not in field)
    change = f"{fields[0]}=0.0 in the model's config" if fields else "the model's dropout to 0"
    raise Unsupported(
        f"dropout: expected 0, got {dropout}; set {change}, or call model.eval() to only evaluate"
    )


def pattern_of_layer(module, is_causal, sliding_window, q, k):
    """No mask came, so the layer itself says who sees whom."""
    causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if causal is None:
        raise Unsupported(
            f"attention_mask: got None, and {type(module).__name__} has no is_causal that says "
            'whether it is causal; attn_implementation="eager" runs it'
        )
    side = -1 if sliding_window is None else sliding_window - 1
    rows, keys = q.shape[1], k.shape[1]
    return Pattern(rows, keys, keys, causal=bool(causal), window=(side, side))


def pattern_of_mask(mask, q, k):
    pattern = mask.pattern if isinstance(mask, Mask) else None
    if pattern is None:
        raise Unsupported(
            "attention_mask: expected the mask that fa3.hf makes, got one of the model's own of "
            f'shape {tuple(mask.shape)}; attn_implementation="sdpa" takes any mask'
        )
    rows, keys = q.shape[1], k.shape[1]
    if keys != pattern.length or (pattern.depends_on_position() and rows != pattern.queries):
        raise Unsupported(
            f"attention_mask: made for {pattern.queries} queries and {pattern.length} keys, got "
            f'{rows} and {keys}; attn_implementation="eager" runs this model'
        )
    return pattern


def attend_unpadded(q, k, v, mask, pattern, options):
    """Takes the padding out of the keys, and where positions matter also out of the queries.

    Where positions matter queries and keys are the same tokens: then the queries are the last rows
    of the mask. Elsewhere they may be other tokens (cross-attention), and every query attends.
    """
    kept_k, cu_seqlens_k, max_seqlen_k = kept(mask)
    k, v = (tensor.flatten(0, 1)[kept_k] for tensor in (k, v))
    lengths = {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": max_seqlen_k}
    if not pattern.depends_on_position():
        return attention(q, k, v, **lengths, **options)
    batch, rows = q.shape[:2]
    kept_q, lengths["cu_seqlens_q"], lengths["max_seqlen_q"] = kept(mask[:, -rows:])
    out = attention(q.flatten(0, 1)[kept_q], k, v, **lengths, **options)
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


def packed_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
    }


def lengths_of_sequences(sequences, batch):
    """sequences: (batch or 1, rows), a number that changes where the next sequence begins."""
    sequences = sequences.expand(batch, -1)
    begins = torch.ones_like(sequences, dtype=torch.bool)
    begins[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    starts = begins.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(starts, (0, 1), value=begins.numel()).to(torch.int32)
    longest = int(ends.diff().max())
    return packed_lengths(ends, ends, longest, longest)


def refuse_restart(position_ids, pattern, q):
    """Positions that start anew, in a mask that knows nothing of it: Transformers' flash attention
    would keep the sequences apart, its eager attention would not."""
    batch, rows = q.shape[:2]
    if position_ids is None or batch != 1 or not 1 < rows == pattern.keys or not pattern.causal:
        return
    if position_ids.shape == (batch, rows) and bool((position_ids.diff() < 0).any()):
        raise Unsupported(
            "position_ids: they start anew within the sequence, but the model's mask keeps no "
            "packed sequences apart; pass use_cache=False, or (where the mask never does) "
            "cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k"
        )

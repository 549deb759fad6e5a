# SPDX-License-Identifier: Apache-2.0
"""The function that Transformers calls in every attention layer. Masks: mask.py.

Padded batches stay where they are; fa3.attention is told which rows count. Packed sequences stay
packed.
"""

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fa3._arrays import is_fake
from fa3.errors import Unsupported
from fa3.hf import paged
from fa3.hf.later import Later
from fa3.hf.mask import Mask, Pattern, is_tracing, packed_lengths
from fa3.torch import attention, onnx

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

TAKEN_BY_FLEX = {"head_mask", "kernel_options", "position_bias", "score_mod"}


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
    gate=None,
    attend=None,
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
        gate: (batch, queries, heads, dv), or without the last dimension: logits of an output gate,
            `out = sigmoid(gate) * attention`, from a layer that does not multiply itself.
        attend: computes calls that are not over a cache instead of fa3.attention.
        cache: the paged cache of continuous batching (paged.py), with its arguments in others.
        others: None, or a name in HARMLESS.

    Returns:
        (batch, queries, heads, dv), and None for the weights, which are never stored.

    Raises:
        fa3.Unsupported: dropout with a paged cache, a mask that a model made itself, or any other
            argument that fa3 has nothing to do with; by its name.
    """
    attend = attend or attention
    is_paged = hasattr(cache, "cache_allocators")
    refuse_unknown(paged.without_arguments(others) if is_paged else {"cache": cache, **others})
    if gate is not None and (is_paged or onnx.is_exporting()):
        raise Unsupported("gate: expected None over a paged cache and in torch.onnx.export")
    if attention_mask is not None and onnx.is_exporting():
        return exported(module, query, key, value, attention_mask, dropout, scaling, softcap, s_aux)
    if is_paged:
        refuse_dropout(dropout, module, "a paged cache")
        described = {"cu_seq_lens_k": cu_seq_lens_k, "max_length_k": max_length_k, **others}
        key, value = paged.update(cache, module.layer_idx, key, value, described)
        cu_seq_lens_k, max_length_k = described["cu_seq_lens_k"], described["max_length_k"]
        attention_mask = None  # a mask would know the new tokens alone
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if attention_mask is None:
        mask = Mask(pattern_of_layer(module, is_causal, sliding_window, q, k), len(q))
    else:
        mask = mask_for(attention_mask, q, k)
    pattern = mask.pattern
    options = {"causal": pattern.causal, "scale": scaling, "gate": gate}
    rarely = {
        "window": pattern.window if pattern.window != (-1, -1) else None,
        "attention_chunk": pattern.chunk,
        "softcap": softcap,
        "deterministic": deterministic,
        "dropout_p": dropout,
    }
    options |= {name: value for name, value in rarely.items() if value}
    if s_aux is not None:
        options["sink"] = s_aux.float()
    if is_paged and "k_cache" in described:
        return paged.attend(q, k, v, described, options), None
    in_chunks = mask.packed is not None and pattern.chunk  # which cu_seq_lens_q does not say
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None and not in_chunks:
        if mask.keys.end is not None:
            raise Unsupported("cu_seq_lens_q: expected None beside padding in attention_mask")
        cu_q, cu_k = cu_seq_lens_q.to(torch.int32), cu_seq_lens_k.to(torch.int32)
        most = (known_length(x, t) for x, t in ((max_length_q, q), (max_length_k, k)))
        return attend_packed(q, k, v, packed_lengths(cu_q, cu_k, *most), options, attend), None
    if mask.packed is not None:
        return attend_packed(q, k, v, mask.packed, options, attend), None
    if mask.keys.end is not None:
        return attend_padded(q, k, v, mask, options, attend), None
    refuse_restart(position_ids, pattern, q)
    if k.shape[1] != pattern.keys:
        k, v = k[:, : pattern.keys], v[:, : pattern.keys]
    run = attend if q.shape[1] == k.shape[1] else attention
    return run(q, k, v, **options), None


def exported(module, query, key, value, mask, dropout, scaling, softcap, s_aux):
    """The layer with a mask in torch.onnx.export, which knows torch's own attention."""
    if softcap or s_aux is not None:
        name = "softcap" if softcap else "s_aux"
        raise Unsupported(f'{name}: expected None in torch.onnx.export; "eager" exports this model')
    return sdpa_attention_forward(module, query, key, value, mask, dropout, scaling)


def refuse_unknown(others):
    for name, value in others.items():
        if value is None or name in HARMLESS or (name == "output_attentions" and not value):
            continue
        if name == "output_attentions":
            advice = 'fa3 never stores the weights; attn_implementation="eager" does'
        else:
            known = "fa3_flex" if name in TAKEN_BY_FLEX else "eager"
            advice = f'fa3 does not know what it does; attn_implementation="{known}" does'
        raise Unsupported(f"{name}: expected None, got {described(value)}; {advice}")


def described(value):
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def refuse_dropout(dropout, module, beside):
    if not dropout:
        return
    config = getattr(module, "config", None)
    fields = [f for f, x in vars(config).items() if "drop" in f and x == dropout] if config else []
    fields.sort(key=lambda field: "att" not in field)
    change = f"{fields[0]}=0.0 in the model's config" if fields else "the model's dropout to 0"
    raise Unsupported(
        f"dropout: expected 0 beside {beside}, got {dropout}; set {change}, or call model.eval() "
        "to only evaluate"
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


def mask_for(mask, q, k):
    if not isinstance(mask, Mask) or mask.pattern is None:
        raise Unsupported(
            "attention_mask: expected the mask that fa3.hf makes, got one of the model's own of "
            f'shape {tuple(mask.shape)}; attn_implementation="fa3_flex" takes any mask'
        )
    pattern = mask.pattern
    rows, keys = q.shape[1], k.shape[1]
    if keys != pattern.length or (pattern.depends_on_position() and rows != pattern.queries):
        raise Unsupported(
            f"attention_mask: made for {pattern.queries} queries and {pattern.length} keys, got "
            f'{rows} and {keys}; attn_implementation="fa3_flex" runs this model'
        )
    return mask


def known_length(longest, rows):
    """What a length says to the host without a wait; 0: nothing."""
    if isinstance(longest, torch.Tensor) and (longest.is_cuda or is_tracing()):
        return rows.shape[0] * rows.shape[1]
    return int(longest or 0)


def attend_padded(q, k, v, mask, options, attend):
    """Attention of the rows that count to the keys that count, all where they lie. A cache, where
    the queries are the last tokens, is read in place."""
    rows, length = q.shape[1], k.shape[1]
    q, k, v = mask.queries.ordered(q), mask.keys.ordered(k), mask.keys.ordered(v)
    begin, end, _ = mask.keys
    if (gate := options["gate"]) is not None:
        rows_of_gate = gate if gate.ndim == q.ndim else gate[..., None]
        options = options | {"gate": mask.queries.ordered(rows_of_gate)}
    first, last, _ = mask.queries
    if rows != length and not learns(q, k, v):
        used = None if rows == 1 else last
        cache = {"seqused_q": used, "seqused_k": end, "left_padding": begin}
        return mask.queries.restored(attention(q, k, v, **cache, **options))
    if last is None:
        first, last = torch.zeros_like(begin), torch.full_like(end, rows)
    lengths = {"max_seqlen_q": 2 * rows, "max_seqlen_k": 2 * length}
    lengths["cu_seqlens_q"], lengths["seqused_q"] = within_rows(first, last, rows)
    lengths["cu_seqlens_k"], lengths["seqused_k"] = within_rows(begin, end, length)
    run = attend if rows == length else attention
    return mask.queries.restored(attend_packed(q, k, v, lengths, options, run))


def learns(*tensors):
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def within_rows(begin, end, rows):
    """(cu_seqlens, seqused) of sequences that lie from begin[n] to end[n] - 1 in batches of `rows`.

    One sequence more, the first, is what comes before; it has no rows in use.
    """
    starts = torch.arange(begin.shape[0], dtype=torch.int32, device=begin.device) * rows + begin
    last = starts.new_full((1,), begin.shape[0] * rows)
    none = torch.zeros_like(last)
    return torch.cat((none, starts, last)), torch.cat((none, end - begin))


def attend_packed(q, k, v, lengths, options, attend):
    batch, rows = q.shape[:2]
    q, k, v = (tensor.flatten(0, 1) for tensor in (q, k, v))
    if (gate := options["gate"]) is not None:
        options = options | {"gate": gate.flatten(0, 1)}
    return attend(q, k, v, **lengths, **options).unflatten(0, (batch, rows))


restarted = Later()


def starts_anew(position_ids):
    return (position_ids.diff() < 0).any()


def refuse_restart(position_ids, pattern, q):
    """Positions that start anew, in a mask that knows nothing of it: Transformers' flash attention
    would keep the sequences apart, its eager attention would not."""
    batch, rows = q.shape[:2]
    if position_ids is None or batch != 1 or not 1 < rows == pattern.keys or not pattern.causal:
        return
    if torch.compiler.is_compiling() or position_ids.shape != (batch, rows):
        return
    if position_ids.is_meta or is_fake(position_ids):
        return  # no numbers
    if position_ids.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return
        restarted.ask(position_ids, starts_anew)
        starts, call = restarted.found(), " (those of this call or of one before)"
    else:
        starts, call = bool(starts_anew(position_ids)), ""
    if starts:
        raise Unsupported(
            f"position_ids{call}: they start anew within the sequence, but the model's mask keeps "
            "no packed sequences apart; pass use_cache=False, or (where the mask never does) "
            "cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k"
        )

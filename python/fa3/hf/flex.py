# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fa3_flex": fa3 for models whose masks or scores are their own.

Where "fa3" has an option for a mask, that option is taken. Any other mask becomes a block mask,
whose hidden blocks are not computed: those of Transformers' mask functions, boolean masks that a
model made itself, and torch's BlockMask as an argument of the model. Additive masks and a
position_bias are biases of the scores, with gradients.
"""

from typing import NamedTuple

import torch

from fa3 import _backends
from fa3.errors import InvalidArgument, Unsupported
from fa3.flex.call import EVERY_KEY, NO_LENGTHS, Window
from fa3.hf.attention import attention_forward as with_options
from fa3.hf.attention import pattern_of_layer, refuse_unknown
from fa3.hf.mask import Mask, booleans, of_whole_batch
from fa3.hf.mask import attention_mask as mask_of_options
from fa3.torch import attention, onnx

NAME = "fa3_flex"
# What the masks of these layers have said already, and what Triton's kernels alone are told.
SAID = {
    *("sliding_window", "is_causal", "position_ids", "deterministic", "kernel_options"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
}


class FlexMask(Mask):
    """A mask that is written out once somebody computes with it. Its pattern is None where fa3 has
    no option for it."""

    ndim = 4

    def __init__(self, mask, made_from):
        self.pattern, self.queries, self.keys, self.packed = None, None, None, None
        if mask is not None:
            self.pattern, self.packed = mask.pattern, mask.packed
            self.queries, self.keys = mask.queries, mask.keys
        self.made_from = made_from  # arguments of attention_mask()
        self.seen = None
        self.dtype = made_from.get("dtype", torch.float32)
        rows = made_from["q_length"]  # before Transformers 5.5 there are positions
        rows = made_from["cache_position"].shape[0] if rows is None else rows
        self.shape = torch.Size((made_from["batch_size"], 1, rows, made_from["kv_length"]))

    def on(self, device):
        padding = self.made_from["attention_mask"]
        padding = padding if padding is None else padding.to(device)
        mask = super().on(device) if self.pattern is not None else None
        return FlexMask(mask, {**self.made_from, "attention_mask": padding, "device": device})

    def booleans(self):
        """(batch, 1, queries, keys): True where a query sees a key."""
        if self.seen is None:
            self.seen = booleans(**self.made_from)
        return self.seen

    def written(self, how):
        seen = self.booleans()
        zero = torch.zeros((), dtype=self.dtype, device=seen.device)
        return torch.where(seen, zero, torch.finfo(self.dtype).min)


def attention_mask(*, batch_size, q_length=None, kv_length=None, attention_mask=None, **described):
    """The mask function that Transformers calls; arguments as of mask.attention_mask()."""
    if isinstance(attention_mask, Mask):
        return attention_mask
    attention_mask = of_whole_batch(attention_mask, batch_size)
    given = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length}
    given |= {"attention_mask": attention_mask, **described}
    if onnx.is_exporting():
        return booleans(**given)
    try:
        mask = mask_of_options(**given)
    except Unsupported:  # fa3 has no option for it
        mask = None
    if isinstance(offset := given.get("q_offset"), torch.Tensor):
        given["q_offset"] = offset.clone()  # a static cache counts on in place
    return FlexMask(mask, given)


class Parts(NamedTuple):
    """What stands between the product and the softmax of a layer."""

    softcap: float | None
    bias: "torch.Tensor | None"  # (batch | 1, heads | 1, queries | 1, keys)
    score_mod: object
    seen: object  # boolean as the bias, torch's BlockMask, or None: every key

    def change_scores(self):
        return self.softcap or self.bias is not None or self.score_mod is not None


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    softcap=None,
    s_aux=None,
    head_mask=None,
    position_bias=None,
    score_mod=None,
    **others,
):
    """softmax(score_mod(softcap(scaling * query key^T)) + position_bias) value under the mask.

    Args:
        attention_mask: what attention_mask() made; torch's BlockMask; a boolean or additive mask
            (batch | 1, heads | 1, queries | 1, keys); or None, and then the layer says who sees
            whom.
        s_aux: (heads,), sinks. head_mask: (heads,), or (batch | 1, heads, 1, 1): factors of the
            heads' results.
        position_bias: (batch | 1, heads | 1, queries | 1, keys), added to the scores.
        score_mod: as of torch's flex_attention.
        others: as of "fa3".

    Returns and raises what "fa3" does.
    """
    own = head_mask is not None or position_bias is not None or score_mod is not None
    has_options = getattr(attention_mask, "pattern", None) is not None
    if not own and (onnx.is_exporting() or attention_mask is None or has_options):
        scores = {"scaling": scaling, "softcap": softcap, "s_aux": s_aux, "dropout": dropout}
        return with_options(module, query, key, value, attention_mask, **scores, **others)
    refuse_unknown({name: value for name, value in others.items() if name not in SAID})
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    seen = seen_keys(module, attention_mask, others, q, k)
    bias = position_bias
    if isinstance(seen, torch.Tensor) and seen.dtype != torch.bool:
        if not seen.is_floating_point():
            raise InvalidArgument(
                "attention_mask: expected booleans, True where a query sees a key, or floats that "
                f"are added to the scores, got {seen.dtype}"
            )
        added = seen.masked_fill(seen <= torch.finfo(seen.dtype).min / 2, -torch.inf)
        bias, seen = added if bias is None else bias + added, None
    parts = Parts(softcap, with_keys("position_bias", bias, q, k), score_mod, seen)
    out, lse = scored(q, k, v, parts, scaling, dropout)
    if s_aux is not None:  # one more logit of each row, without a value
        sink = s_aux.float()[:, None]
        out = out * (lse - sink).sigmoid().transpose(1, 2).unsqueeze(-1).to(out.dtype)
    if head_mask is not None:
        factors = head_mask[None, :, None, None] if head_mask.ndim == 1 else head_mask
        out = out * factors.transpose(1, 2).to(out.dtype)
    return out, None


def scored(q, k, v, parts, scaling, dropout):
    """(out, lse)"""
    _backends.load_flex()
    seen = parts.seen
    if isinstance(seen, torch.Tensor):
        seen = _backends.flex.lists_of_booleans(seen, EVERY_KEY, q.shape[1], k.shape[1])
    if parts.change_scores():
        masks = None, seen, False, (None, None)
        lengths = {**NO_LENGTHS, "dropout_p": dropout} if dropout else NO_LENGTHS
        return _backends.flex.attend(q, k, v, score_function(parts), masks, scaling, lengths)
    options = {"block_mask": seen, "scale": scaling, "dropout_p": dropout}
    return attention(q, k, v, return_lse=True, **options)


def score_function(parts):
    """One function of what a layer does to its scores, known again in the next layer (flex names
    functions by their code and what they capture)."""
    softcap, bias, score_mod = parts.softcap, parts.bias, parts.score_mod
    by = (False,) * 4 if bias is None else tuple(extent > 1 for extent in bias.shape)

    def changed(score, b, h, q_idx, kv_idx):
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        if score_mod is not None:
            score = score_mod(score, b, h, q_idx, kv_idx)
        if bias is not None:
            zero = kv_idx * 0
            at = b if by[0] else zero, h if by[1] else zero, q_idx if by[2] else zero, kv_idx
            score = score + bias[at]
        return score

    return changed


def seen_keys(module, mask, others, q, k):
    """The mask as one of Parts: booleans, floats that are added, torch's BlockMask, or None."""
    if mask is None:
        causal, window = others.get("is_causal"), others.get("sliding_window")
        pattern = pattern_of_layer(module, causal, window, q, k)
        if not pattern.depends_on_position():
            return None
        side = pattern.window[0] if pattern.window[0] >= 0 else None
        window = Window(side, 0 if pattern.causal else side)
        rows, keys = q.shape[1], k.shape[1]
        query = torch.arange(rows, device=q.device)[:, None]
        key = torch.arange(keys, device=q.device)
        return ~window.hides_at(query, key, keys - rows)[None, None]
    if isinstance(mask, FlexMask):
        mask = mask.booleans()
    return mask if not isinstance(mask, torch.Tensor) else with_keys("attention_mask", mask, q, k)


def with_keys(name, tensor, q, k):
    """A mask or bias of the layer's keys, as a view: those of a static cache are made for more."""
    if tensor is None:
        return None
    if tensor.ndim != 4 or tensor.shape[-1] < k.shape[1] or tensor.shape[2] not in (1, q.shape[1]):
        raise Unsupported(
            f"{name}: expected (batch | 1, heads | 1, {q.shape[1]}, {k.shape[1]} or more), got"
            f" {tuple(tensor.shape)}"
        )
    tensor = tensor[..., : k.shape[1]]
    return tensor[tuple(slice(1) if s == 0 else slice(None) for s in tensor.stride()[:3])]

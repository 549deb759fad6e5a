# SPDX-License-Identifier: Apache-2.0
"""Attention and merge in float64 on the CPU, for gradcheck: textbook formulas in torch's operators.

Every score is stored, and torch differentiates: as often as asked, forwards and backwards. The
engines have no float64.
"""

import itertools

import torch

from fa3 import _native
from fa3._dropout import dropout_mask
from fa3._options import BOTH_PASSES, DEFAULTS, ENGINES, Options
from fa3.errors import Unsupported
from fa3.torch.operators import have_memory, with_seed_viewed


def is_for(*tensors):
    return all(t.dtype == torch.float64 and t.is_cpu for t in tensors)


def attention(q, k, v, options):
    """out and lse, both float64, of fa3.attention. options: in order."""
    options = Options(*options)
    refuse_others(options)
    refuse_wrong(q, k, v, options)
    flat = [x.flatten(0, 1) if x.ndim == 4 else x for x in (q, k, v)]
    rows_q = rows_of_sequences(q, options.cu_seqlens_q, options.seqused_q)
    rows_k = rows_of_sequences(k, options.cu_seqlens_k, options.seqused_k)
    given = flat if options.sink is None else [*flat, options.sink]
    of_no_rows = sum(x[:0].sum() for x in given)  # 0: without sequences there are gradients, too
    out = q.new_zeros((*flat[0].shape[:-1], v.shape[-1])) + of_no_rows
    lse = q.new_full(flat[0].shape[:-1], -torch.inf) + of_no_rows
    for number, (at_q, at_k) in enumerate(zip(rows_q, rows_k, strict=True)):
        rows = torch.arange(at_q.start, at_q.stop, device=q.device)
        found = one_sequence(flat[0][at_q], flat[1][at_k], flat[2][at_k], options, number)
        out, lse = (x.index_copy(0, rows, y) for x, y in zip((out, lse), found, strict=True))
    out = out.unflatten(0, q.shape[:2]) if q.ndim == 4 else out
    if (gate := options.gate) is not None:
        out = out * (gate if gate.ndim == out.ndim else gate[..., None]).sigmoid()
    lse = lse.unflatten(0, q.shape[:2]) if q.ndim == 4 else lse
    return out, lse.transpose(-1, -2)


def max_logit(q, k, options):
    """(sequences, heads) in float64, of fa3.attention."""
    options = Options(*options)
    found = []
    with torch.no_grad():
        flat_q, flat_k = (x.flatten(0, 1) if x.ndim == 4 else x for x in (q, k))
        rows_q = rows_of_sequences(q, options.cu_seqlens_q, options.seqused_q)
        rows_k = rows_of_sequences(k, options.cu_seqlens_k, options.seqused_k)
        for number, (at_q, at_k) in enumerate(zip(rows_q, rows_k, strict=True)):
            logits = scores_of(flat_q[at_q], flat_k[at_k], options._replace(softcap=0.0))
            if options.block_mask is not None:
                seen = shown(options, number, *logits.shape[1:])
                logits = logits.masked_fill(~seen, -torch.inf)
            none = logits.new_full((q.shape[-2], 1), -torch.inf)
            found.append(torch.cat([logits.flatten(1), none], 1).amax(1))
    return torch.stack(found) if found else q.new_empty((0, q.shape[-2]))


def one_sequence(q, k, v, options, number):
    """q (rows, heads, d), k and v (keys, heads, d | dv): out, and lse (rows, heads).

    number: which sequence of the batch it is.
    """
    weights, lse = weights_of(q, k, options, number)
    if options.dropout_p:
        weights = weights * kept(options, number, weights.shape)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    out = torch.einsum("hij,jhd->hid", weights, v)
    return out.transpose(0, 1), lse.transpose(0, 1)


def weights_of(q, k, options, number=0):
    """The probabilities (heads, rows, keys), 0 in rows that see no key, and the LSE."""
    scores = scores_of(q, k, options)
    if options.block_mask is not None:
        seen = shown(options, number, len(q), len(k))
        scores = scores.masked_fill(~seen, -torch.inf)
    if options.sink is not None:
        sink = options.sink.to(q.dtype)[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat([scores, sink], -1)
    seen = (scores != -torch.inf).any(-1)
    scores = scores.where(seen[..., None], 0.0)  # rows without a key would be nan
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()[..., : len(k)]
    return weights.where(seen[..., None], 0.0), lse.where(seen, -torch.inf)


def scores_of(q, k, options):
    """(heads, rows, keys), -inf where a query does not see a key."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scale = q.shape[-1] ** -0.5 if options.scale is None else options.scale
    scores = scale * torch.einsum("ihd,jhd->hij", q, k)
    if options.softcap:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    return scores.masked_fill(~visible(len(q), len(k), options, q.device), -torch.inf)


def kept(options, number, shape):
    """Dropout's factors of the weights (heads, rows, keys) of one sequence, in float64."""
    units = min(max(round(options.dropout_p * 2**16), 1), 2**16 - 1)
    mask = dropout_mask(options.dropout_p, options.dropout_seed, (number + 1, *shape))[number]
    return mask.to(torch.float64) * (2**16 / (2**16 - units))


def visible(num_rows, num_keys, options, device):
    """(rows, keys): whether a query sees a key."""
    key = torch.arange(num_keys, device=device)
    here = torch.arange(num_rows, device=device)[:, None] + num_keys - num_rows
    middle = here + options.window_shift
    seen = torch.ones(num_rows, num_keys, dtype=torch.bool, device=device)
    if options.causal:
        seen &= key <= here
    if options.window_left >= 0:
        seen &= key >= middle - options.window_left
    if options.window_right >= 0:
        seen &= key <= middle + options.window_right
    if options.attention_chunk:
        seen &= key.div(options.attention_chunk, rounding_mode="floor") == here.div(
            options.attention_chunk, rounding_mode="floor"
        )
    return seen


def shown(options, number, num_rows, num_keys):
    """(heads | 1, rows, keys): what the block mask of a sequence shows."""
    entries = options.block_mask[number if len(options.block_mask) > 1 else 0]
    rows, keys = (torch.arange(n, device=entries.device) for n in (num_rows, num_keys))
    entry = entries[:, rows // 128][..., keys // 128]
    if options.block_mask_bits is None:
        return entry == -1
    words = options.block_mask_bits[entry.clamp(min=1) - 1, (rows % 128)[:, None], keys % 128 // 32]
    return (entry == -1) | ((entry > 0) & (words >> (keys % 32) & 1).bool())


def rows_of_sequences(x, cu_seqlens, used):
    """A slice of the rows of x, its batch flattened, for each sequence."""
    if cu_seqlens is None:
        starts = [n * x.shape[1] for n in range(x.shape[0] + 1)]
    else:
        starts = cu_seqlens.tolist()
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    if used is not None:
        lengths = [min(max(n, 0), most) for n, most in zip(used.tolist(), lengths, strict=True)]
    return [slice(start, start + n) for start, n in zip(starts, lengths, strict=False)]


def merge(o_partial, lse_partial):
    """out and lse of fa3.merge."""
    counts = lse_partial != -torch.inf
    seen = counts.any(0)
    infinite = lse_partial == torch.inf  # these share the row
    takes_all = infinite.any(0)
    shares = torch.zeros_like(lse_partial).where(infinite, -torch.inf)
    lse_partial = shares.where(takes_all, lse_partial)
    counts = counts & (lse_partial != -torch.inf)
    lse = lse_partial.where(seen, 0.0).logsumexp(0)
    weight = (lse_partial.where(seen, -torch.inf) - lse).exp().transpose(-1, -2)[..., None]
    rows = counts.transpose(-1, -2)[..., None]
    lse = lse.where(seen, -torch.inf).where(~takes_all, torch.inf)
    return (weight * o_partial.where(rows, 0.0)).sum(0), lse


def refuse_wrong(q, k, v, options):
    """Raises what the library raises of the same call in float32."""
    if torch.compiler.is_compiling() or not have_memory(q, k, v):
        return
    alike = (x.new_empty(x.shape, dtype=torch.float32) for x in (q, k, v))  # nobody reads them
    for name in ("sink", "gate"):
        if isinstance(tensor := getattr(options, name), torch.Tensor):
            zeros = tensor.new_zeros(tensor.shape, dtype=torch.float32)
            options = options._replace(**{name: zeros})
    _native.forward_validate(*alike, None, None, *with_seed_viewed(options))


def refuse_others(options):
    names = [*list(DEFAULTS)[len(BOTH_PASSES) :]]
    given = [name for name in names if getattr(options, name) is not DEFAULTS[name]]
    if given:
        raise Unsupported(f"{', '.join(given)}: not with float64, whose attention is a textbook's")
    o = options
    if o.dropout_sequence or o.dropout_head or o.dropout_query or o.dropout_key:
        raise Unsupported("dropout_origin: not with float64, whose masks begin at the first weight")
    if options.engine not in (ENGINES["auto"], ENGINES["reference"]):
        raise Unsupported("engine: expected auto or reference for float64, which no other has")

# SPDX-License-Identifier: Apache-2.0
"""Attention from the textbook, in numpy float64: the second opinion on everything fa3 computes.

It shares no code with the library and prefers the obvious formula to the fast one: the whole
score matrix is built. Arrays are q (b, sq, hq, d), k (b, sk, hk, d), v (b, sk, hk, dv); LSE is
(b, hq, sq), natural log. test_oracle.py holds the oracle itself to finite differences.

Meaning of the options (all keyword-only, the same for every function):
  causal      key j is visible to query i iff j <= i + sk - sq (bottom-right aligned)
  window      (left, right): i + sk - sq - left <= j <= i + sk - sq + right; -1 is unbounded; with
              causal both must hold
  window_shift  moves the window, to later keys if positive; 0 by default
  attention_chunk  key j is visible to query i iff j and i + sk - sq are in the same run of so many
              keys, counted from key 0; 0 is off
  softcap     scores become cap * tanh(scale * q.k / cap); 0 is off
  scale       default d**-0.5
  kept        (b, hq, sq, sk): factors of the probabilities after the softmax; dropout_factors() has
              those of fa3's dropout. The LSE knows nothing of them
  sink        (hq,) logits that join each row's denominator and LSE, but carry no value
Query head i reads kv head i // (hq // hk). A row that sees no key has O = 0, LSE = -inf (with a
sink: LSE = sink) and gives no gradient.
"""

from typing import NamedTuple

import numpy as np

# NaN and Inf in the inputs propagate as IEEE arithmetic says, without a warning for each.
QUIET = np.errstate(invalid="ignore", over="ignore")


class Attended(NamedTuple):
    """Everything both passes need, by head: (b, hq, sq, ...). Keys and values are per q head."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scores: np.ndarray  # scaled and capped, not masked
    visible: np.ndarray  # (sq, sk) bool
    probabilities: np.ndarray
    lse: np.ndarray
    scale: float


def visibility(
    seqlen_q, seqlen_k, *, causal=False, window=(-1, -1), window_shift=0, attention_chunk=0
):
    """Returns (seqlen_q, seqlen_k) bool: may query row i see key column j?"""
    left, right = window
    if left < -1 or right < -1:
        raise ValueError(f"window: expected -1 or a count on each side, got {window}")
    diagonal = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    kv_col = np.arange(seqlen_k)[None, :]
    visible = np.ones((seqlen_q, seqlen_k), dtype=bool)
    if causal:
        visible &= kv_col <= diagonal
    if left >= 0:
        visible &= kv_col >= diagonal + window_shift - left
    if right >= 0:
        visible &= kv_col <= diagonal + window_shift + right
    if attention_chunk:
        visible &= kv_col // attention_chunk == diagonal // attention_chunk
    return visible


@QUIET
def forward(q, k, v, *, softcap=0.0, scale=None, sink=None, kept=1.0, **mask):
    """Returns o (b, sq, hq, dv) and lse (b, hq, sq). mask: the options of visibility()."""
    at = _attend(q, k, v, softcap, scale, sink, mask)
    sees_a_key = at.visible.any(axis=-1)[:, None]
    o = np.where(sees_a_key, (at.probabilities * kept) @ at.v, 0.0)
    return _swap_heads(o), at.lse


@QUIET
def backward(q, k, v, do, *, dlse=None, softcap=0.0, scale=None, sink=None, kept=1.0, **mask):
    """Gradients of sum(o * do) + sum(lse * dlse), where dlse is 0 by default and in empty rows.

    Returns dq, dk, dv, dsink; dsink is None without a sink.
    """
    at = _attend(q, k, v, softcap, scale, sink, mask)
    do = _swap_heads(np.asarray(do, dtype=np.float64))
    d_probabilities = np.where(at.visible, kept * (do @ at.v.swapaxes(-1, -2)), 0.0)
    delta = (at.probabilities * d_probabilities).sum(axis=-1, keepdims=True)  # = sum(o * do)
    if dlse is not None:  # the gradient of the LSE by a score is its probability
        delta = delta - np.where(np.isneginf(at.lse), 0.0, dlse)[..., None]
    d_scores = at.probabilities * (d_probabilities - delta)
    if softcap:
        d_scores *= np.where(at.visible, 1.0 - (at.scores / softcap) ** 2, 0.0)  # 1 - tanh^2
    kv_heads = np.shape(k)[2]
    dq = _swap_heads(at.scale * d_scores @ at.k)
    dk = _sum_group(at.scale * d_scores.swapaxes(-1, -2) @ at.q, kv_heads)
    dv = _sum_group((at.probabilities * kept).swapaxes(-1, -2) @ do, kv_heads)
    if sink is None:
        return dq, dk, dv, None
    # The sink is a column whose value is zero: d_probability = 0, so d_score = p * (0 - delta).
    sink_probability = _exp_difference(np.asarray(sink, dtype=np.float64)[:, None], at.lse)
    return dq, dk, dv, -(sink_probability * delta[..., 0]).sum(axis=(0, 2))


def forward_varlen(
    q, k, v, *, cu_seqlens_q, cu_seqlens_k, seqused_q=None, seqused_k=None, **options
):
    """Packed q (total_q, hq, d), k and v (total_k, hk, ...). Returns o and lse (hq, total_q).

    Sequence n owns rows cu_seqlens[n] .. cu_seqlens[n+1] - 1 and uses the first seqused[n] of
    them (default all). Rows no sequence uses get O = 0 and LSE = -inf, with or without a sink.
    """
    o = np.zeros((*q.shape[:2], v.shape[2]))
    lse = np.full((q.shape[1], q.shape[0]), -np.inf)
    for rows_q, rows_k in _sequences(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
        one_o, one_lse = forward(q[None, rows_q], k[None, rows_k], v[None, rows_k], **options)
        o[rows_q], lse[:, rows_q] = one_o[0], one_lse[0]
    return o, lse


def backward_varlen(
    q, k, v, do, *, cu_seqlens_q, cu_seqlens_k, seqused_q=None, seqused_k=None, **options
):
    """Packed gradients dq, dk, dv, dsink; zero in every row that no sequence uses."""
    dq, dk, dv = (np.zeros(x.shape) for x in (q, k, v))
    dsink = None if options.get("sink") is None else np.zeros(q.shape[1])
    for rows_q, rows_k in _sequences(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
        one = (q[None, rows_q], k[None, rows_k], v[None, rows_k], do[None, rows_q])
        one_dq, one_dk, one_dv, one_dsink = backward(*one, **options)
        dq[rows_q], dk[rows_k], dv[rows_k] = one_dq[0], one_dk[0], one_dv[0]
        if dsink is not None:
            dsink += one_dsink
    return dq, dk, dv, dsink


def dropout_mask(p, seed, offset, shape):
    """(b, hq, sq, sk) bool: which probabilities dropout keeps (docs/numerics.md)."""
    low, high = (np.uint32(n & 0xFFFFFFFF) for n in (seed, seed >> 32))
    offsets = [np.uint32(n) for n in (offset & 0xFFFFFFFF, offset >> 32, 0, 0)]
    call_key = _philox(offsets, (low, high), 10)[:2]
    b, h, i, j = np.ogrid[tuple(slice(extent) for extent in shape)]
    counter = (h, j // 64 * 4 + j % 8 // 2, b, i // 16 * 8 + i % 8)
    words = _philox([x.astype(np.uint32) for x in counter], call_key, 7)
    word, number = words[0], j % 64 // 8 * 2 + i // 8 % 2
    for n in range(1, 16):
        if n >= 4:
            factor, times, plus = _DROPOUT_SUMS[n - 4]
            words.append(np.uint32(factor) * words[times] + words[plus])
        word = np.where(number == n, words[n], word)
    draw = np.where(j % 2 == 0, word & 0x7FFF, word >> 16 & 0x7FFF)
    dropped = _dropped_of_65536(p)
    rare = draw < (min(dropped, 65536 - dropped) + (words[0] >> 31)) // 2
    return rare if dropped > 32768 else ~rare


# Words 4 to 15 of a call: a factor times a word before, plus another.
_DROPOUT_SUMS = (
    (0x4C05B9A9, 0, 1),
    (0x4D9EB82B, 1, 2),
    (0xB3FA4657, 2, 3),
    (0x5AFFB0D9, 3, 0),
    (0xC7EEC7BB, 0, 2),
    (0x384637C5, 1, 3),
    (0x645C69AF, 4, 2),
    (0xB5096883, 5, 3),
    (0x449CB0E7, 6, 0),
    (0x614EC60F, 7, 1),
    (0x4E49C7D5, 4, 6),
    (0x6F016A02, 2, 0),
)


def dropout_factors(p, seed, offset, shape):
    """What dropout multiplies the probabilities by."""
    dropped = _dropped_of_65536(p)
    scale = 65536 / (65536 - dropped) if dropped < 65536 else 0.0
    return dropout_mask(p, seed, offset, shape) * scale


def _dropped_of_65536(p):
    return 0 if p == 0 else 65536 if p == 1 else min(max(round(p * 65536), 1), 65535)


def _philox(counter, key, rounds):
    """Philox-4x32 (Salmon et al., SC'11) of arrays of uint32."""
    x = [np.asarray(word, np.uint64) for word in counter]
    k = [np.uint64(word) for word in key]
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(rounds):
        a, b = np.uint64(0xD2511F53) * x[0], np.uint64(0xCD9E8D57) * x[2]
        x = [(b >> half) ^ x[1] ^ k[0], b & mask, (a >> half) ^ x[3] ^ k[1], a & mask]
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return [word.astype(np.uint32) for word in np.broadcast_arrays(*x)]


def merge(partials):
    """Joins [(o, lse), ...] over disjoint sets of keys. Batched or packed; a sink in one only."""
    outputs, lses = (np.asarray(x, dtype=np.float64) for x in zip(*partials, strict=True))
    lse = np.logaddexp.reduce(lses, axis=0)
    weights = _exp_difference(lses, lse).swapaxes(-1, -2)[..., None]
    return (weights * outputs).sum(axis=0), lse


def _attend(q, k, v, softcap, scale, sink, mask):
    q, k, v = (_swap_heads(np.asarray(x, dtype=np.float64)) for x in (q, k, v))
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"heads: {q.shape[1]} query heads are not a multiple of {k.shape[1]}")
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * (q @ k.swapaxes(-1, -2))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    visible = visibility(q.shape[2], k.shape[2], **mask)
    masked = np.where(visible, scores, -np.inf)
    lse = np.logaddexp.reduce(masked, axis=-1, initial=-np.inf)
    if sink is not None:
        lse = np.logaddexp(lse, np.asarray(sink, dtype=np.float64)[:, None])
    probabilities = _exp_difference(masked, lse[..., None])
    return Attended(q, k, v, scores, visible, probabilities, lse, scale)


def _exp_difference(logit, lse):
    """exp(logit - lse), where an empty row (lse = -inf) holds no probability at all."""
    return np.exp(logit - np.where(np.isneginf(lse), 0.0, lse))


def _swap_heads(x):
    return x.swapaxes(1, 2)


def _sum_group(per_query_head, kv_heads):
    b, hq, seqlen, d = per_query_head.shape
    grouped = per_query_head.reshape(b, kv_heads, hq // kv_heads, seqlen, d)
    return _swap_heads(grouped.sum(axis=2))


def _sequences(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
    """Yields the used rows of each sequence as (slice of q, slice of k)."""

    def rows(cu_seqlens, seqused):
        lengths = np.diff(cu_seqlens) if seqused is None else seqused
        starts = [int(start) for start in cu_seqlens[:-1]]
        return [slice(s, s + int(n)) for s, n in zip(starts, lengths, strict=True)]

    yield from zip(rows(cu_seqlens_q, seqused_q), rows(cu_seqlens_k, seqused_k), strict=True)

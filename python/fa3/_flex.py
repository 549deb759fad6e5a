# SPDX-License-Identifier: Apache-2.0
"""fa3.flex_attention: what it means. What it does is in fa3.flex, imported with the first call."""

import sys
import warnings

from fa3 import _backends
from fa3._arrays import in_int32
from fa3._options import refuse_positions, shows
from fa3.errors import InvalidArgument


def load_flex():
    """Makes _backends.flex: functions that torch.compile leaves alone, wherever it is there."""
    made = _backends.flex
    if made is None or not (made.beside_compiler or "torch._dynamo" not in sys.modules):
        from fa3.flex import entry

        _backends.flex = entry.functions()


# torch.compile cannot trace an import, so it calls this while it traces.
load_flex._dynamo_marked_constant = True
_backends.load_flex = load_flex


class LooksTurned(UserWarning):
    """q and k have more heads than rows, as tensors of another layout would."""


def in_layout(layout, q, k, v, has_lengths):
    """q, k and v as (b, s, h, d)."""
    if layout == "bhsd":
        for name, x in (("q", q), ("k", k), ("v", v)):
            if getattr(x, "ndim", 4) != 4:
                raise InvalidArgument(
                    f"{name}: expected rank 4 (b, h, s, d), since layout is 'bhsd', got shape "
                    f"{tuple(x.shape)}"
                )
        return tuple(x.transpose(1, 2) for x in (q, k, v))
    if layout not in (None, "bshd"):
        raise InvalidArgument(f"layout: expected 'bshd' or 'bhsd', got {layout!r}")
    if layout is None and not has_lengths and looks_turned(q) and looks_turned(k):
        warnings.warn(
            f"fa3.flex_attention: q has {q.shape[2]} heads and {q.shape[1]} rows, k {k.shape[2]} "
            f"and {k.shape[1]}; tensors are (b, s, h, d) unless layout='bhsd' (torch's order) is "
            "given, and layout='bshd' ends this warning",
            LooksTurned,
            stacklevel=3,
        )
    return q, k, v


def looks_turned(x):
    if getattr(x, "ndim", 0) != 4 or getattr(x, "is_nested", False):
        return False
    return x.shape[2] > x.shape[1] > 0


@shows(())
def flex_attention(
    q,
    k,
    v,
    *others,
    score_mod=None,
    mask_mod=None,
    block_mask=None,
    causal=False,
    window=(None, None),
    scale=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    max_seqlen_q=0,
    max_seqlen_k=0,
    page_table=None,
    batch_index=None,
    left_padding=None,
    num_splits=0,
    k_descale=None,
    v_descale=None,
    dropout_p=0.0,
    dropout_seed=None,
    return_lse=False,
    layout=None,
):
    """Exact attention whose scores a function of yours changes before the softmax.

    out = softmax(score_mod(scale * q k^T)) v, differentiable in q, k, v and in the tensors that the
    function captures, in O(sequence) memory. The function is called once, on scalars without data,
    and translated: so no `if`, .item() or print of the score or an index, but torch.where. What
    cannot be translated is refused by name. A number that it captures is part of it; a tensor,
    0-dim too, is data, and may change from call to call.

    Args:
        q: (b, sq, hq, d), or packed (total_q, hq, d) with cu_seqlens_q; torch tensors.
        k, v: (b, sk, hk, d | dv), or packed; hq % hk == 0.
        score_mod: score_mod(score, b, h, q_idx, kv_idx) -> the new score, as torch's flex_attention
            takes it: scalars; b counts sequences, h query heads, q_idx and kv_idx rows of a
            sequence. Captured tensors are indexed by them, at most 4 dimensions. A negative index
            counts from the end; one out of range is an IndexError on a CPU and clamped on a GPU.
            Scores are float32, float64 for float64. None: the score as it is.
        mask_mod: mask_mod(b, h, q_idx, kv_idx) -> whether the query sees the key. Evaluated once
            for every pair, until torch or NumPy writes to what it captures (writes through .data or
            DLPack are not seen): hidden blocks of 128 queries and keys are then skipped. Asked for
            each score instead where sequences have lengths of their own and there is a score_mod,
            or most are far shorter than the longest.
        block_mask: a BlockMask of torch.nn.attention.flex_attention, or of fa3.masks. Likewise.
        causal: query i sees key j iff j <= i + sk - sq (bottom-right aligned).
        window: (left, right) in keys around the diagonal; None or -1 is unbounded.
        scale: factor of q.k; None is d ** -0.5.
        cu_seqlens_q, cu_seqlens_k: (batch + 1,) int32: packed sequences, of one side or both. These
            and other lengths and tables may be int64, too.
        seqused_q, seqused_k: (batch,) int32: only the first rows of each sequence count.
        max_seqlen_q, max_seqlen_k: upper bounds of the lengths in cu_seqlens, needed on a GPU.
        page_table, batch_index, left_padding, num_splits, k_descale, v_descale: keys and values in
            a cache, as of fa3.attention. kv_idx counts from the first key that counts. No
            gradients.
        dropout_p, dropout_seed: as of fa3.attention; not beside a cache.
        return_lse: also return the LSE.
        layout: "bshd", as above, or "bhsd": q, k, v and out are (b, h, s, d), the order of torch's
            flex_attention; no packed tensors. None is "bshd", with a warning where q and k have
            more heads than rows.

    On an H100 or H200, 16-bit tensors take the library's own kernel, into which the function is
    compiled by NVRTC when it is first called: a few seconds a pass, once for a user's processes.
    All else is computed by torch operations tile by tile, which is slow.

    Returns:
        out (b, sq, hq, dv), or (out, lse); lse (b, hq, sq), natural log. A row that sees no key has
        out = 0, lse = -inf.

    Under torch.compile the call is a break of the graph: not with fullgraph=True.

    Raises:
        fa3.InvalidArgument: the call is wrong.
        IndexError: an index out of range, on a CPU.
        fa3.Unsupported: the function cannot be translated; says which operation.
    """
    if others:
        refuse_positions("flex_attention", 3, others)
    _backends.load_flex()
    lengths = _backends.flex.no_lengths
    if not (
        cu_seqlens_q is cu_seqlens_k is seqused_q is seqused_k is None
        and max_seqlen_q == max_seqlen_k == 0
        and page_table is batch_index is left_padding is k_descale is v_descale is None
        and not num_splits
    ):
        lengths = {
            "cu_seqlens_q": in_int32(cu_seqlens_q),
            "cu_seqlens_k": in_int32(cu_seqlens_k),
            "seqused_q": in_int32(seqused_q),
            "seqused_k": in_int32(seqused_k),
            "max_seqlen_q": max_seqlen_q,
            "max_seqlen_k": max_seqlen_k,
        }
        of_cache = {
            "page_table": in_int32(page_table),
            "batch_index": in_int32(batch_index),
            "left_padding": in_int32(left_padding),
            "num_splits": num_splits or None,
            "k_descale": k_descale,
            "v_descale": v_descale,
        }
        for name, value in of_cache.items():
            if value is not None:
                lengths[name] = value
    has_lengths = lengths is not _backends.flex.no_lengths
    if dropout_p:
        lengths = {**lengths, "dropout_p": dropout_p, "dropout_seed": dropout_seed}
    if layout != "bshd":
        q, k, v = in_layout(layout, q, k, v, has_lengths)
    masks = mask_mod, block_mask, causal, window
    out, lse = _backends.flex.attend(q, k, v, score_mod, masks, scale, lengths, return_lse)
    out = out.transpose(1, 2) if layout == "bhsd" else out
    return (out, lse) if return_lse else out

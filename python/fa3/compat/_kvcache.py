# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache of both generations: append, then attend, in terms of fa3.

The names of the arguments are those of the originals; what they call otherwise is renamed in the
sentences of errors too.
"""

import contextlib

import torch

import fa3
from fa3.compat._arguments import joined, length, unsupported
from fa3.errors import InvalidArgument
from fa3.flex.bias import check_slopes

OUR_NAMES = {
    "seqused_k": "cache_seqlens, with the new rows",
    "seqused": "cache_seqlens",
    "batch_index": "cache_batch_idx",
    "left_padding": "cache_leftpad",
    "cu_seqlens_new": "cu_seqlens_k_new",
    "first_position": "rotary_seqlens",
}


@torch.no_grad()
def attend(
    q,
    k_cache,
    v_cache,
    k,
    v,
    options,
    *,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    cache_seqlens,
    page_table,
    batch_index,
    left_padding=None,
    cu_seqlens_q=None,
    cu_seqlens_new=None,
    max_seqlen_q=None,
    rotary=(None, None),
    rotary_interleaved=True,
    first_position=None,
    num_splits=0,
    out=None,
    return_lse=False,
):
    """k and v, if there are any, go into the caches behind the rows in use; then q attends, with qv
    if there is one.

    A call that is refused changes nothing. No gradients, as in the originals.
    """
    if (k is None) != (v is None):
        raise InvalidArgument("k, v: expected both or neither")
    if k is None:
        unsupported(rotary_cos=(rotary[0], None, "nothing is rotated where no k is appended"))
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    used = cache_lengths(cache_seqlens, batch, k_cache.device)
    places = {"page_table": page_table, "batch_index": batch_index}
    with renamed():
        total = used
        if k is not None:
            if used is None:
                raise InvalidArgument("seqused: expected the cache's lengths where k is given")
            total = used + new_rows(k, cu_seqlens_new)
        call = {
            **options,
            **places,
            "q_descale": q_descale,
            "k_descale": k_descale,
            "v_descale": v_descale,
            "left_padding": left_padding,
            "num_splits": num_splits,
            "seqused_k": total,
            "cu_seqlens_q": cu_seqlens_q,
            "max_seqlen_q": length(max_seqlen_q),
        }
        if k is not None:
            windowed = options["window"] != (-1, -1) or options["attention_chunk"] > 0
            refuse_before_writing(*joined(q, k_cache, v_cache, qv), call)
            divides = k.dtype != k_cache.dtype  # else rows of an e4m3 cache are scaled already
            q = append(
                k_cache,
                v_cache,
                k,
                v,
                seqused=used,
                cu_seqlens_new=cu_seqlens_new,
                q=q,
                cu_seqlens_q=cu_seqlens_q,
                rotary_cos=rotary[0],
                rotary_sin=rotary[1],
                rotary_interleaved=rotary_interleaved,
                first_position=first_position,
                queries_share_position=not (options["causal"] or windowed),
                k_descale=k_descale if divides else None,
                v_descale=v_descale if divides else None,
                **places,
            )
        q, k_cache, v_cache = joined(q, k_cache, v_cache, qv)
        return fa3.attention(q, k_cache, v_cache, out=out, return_lse=return_lse, **call)


def refuse_before_writing(q, k_cache, v_cache, call):
    """Raises what the attention would."""
    slopes = call.get("alibi_slopes")
    if slopes is not None:
        check_slopes(slopes, q, call)
    fa3.plan(q, k_cache, v_cache, **{x: y for x, y in call.items() if x != "alibi_slopes"})


def append(k_cache, v_cache, k, v, *, q, rotary_cos, rotary_sin, cu_seqlens_q, **how):
    """fa3.append; returns the queries, turned if there is a rotary embedding."""
    if rotary_cos is None and rotary_sin is None:
        fa3.append(k_cache, v_cache, k, v, **how)
        return q
    rotary = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin}
    return fa3.append(k_cache, v_cache, k, v, q=q, cu_seqlens_q=cu_seqlens_q, **rotary, **how)


def new_rows(k, cu_seqlens_new):
    """How many rows each sequence gets."""
    return k.shape[1] if cu_seqlens_new is None else cu_seqlens_new.diff()


@contextlib.contextmanager
def renamed(names=OUR_NAMES):
    """Sentences about our arguments become sentences about theirs."""
    try:
        yield
    except InvalidArgument as error:
        name, colon, rest = str(error).partition(":")
        if name not in names or not colon:
            raise
        raise InvalidArgument(f"{names[name]}:{rest}") from None


def cache_lengths(cache_seqlens, batch, device):
    """cache_seqlens as an int32 tensor (batch), None if the whole cache counts."""
    if cache_seqlens is None:
        return None
    if isinstance(cache_seqlens, int):
        return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=device)
    if not isinstance(cache_seqlens, torch.Tensor):
        raise InvalidArgument(
            f"cache_seqlens: expected an int or an int32 tensor, got {cache_seqlens!r}"
        )
    if cache_seqlens.dtype != torch.int32 or cache_seqlens.shape != (batch,):
        raise InvalidArgument(
            f"cache_seqlens: expected an int or int32 of shape ({batch},), got "
            f"{cache_seqlens.dtype} of shape {tuple(cache_seqlens.shape)}"
        )
    return cache_seqlens

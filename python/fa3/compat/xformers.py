# SPDX-License-Identifier: Apache-2.0
"""xformers.ops.memory_efficient_attention by fa3: its arguments, with its own attn_bias objects.

Objects of xformers.ops.fmha.attn_bias are known by the names of their classes, so that xformers
need not be there. Keys in pages and keys with gaps have no gradients, as in the original.
"""

import torch

import fa3
from fa3.compat._arguments import unsupported
from fa3.errors import Unsupported

__all__ = ["memory_efficient_attention"]


def __dir__():
    return __all__


# By class: whether causal, whether level at the first query and key (top-left; or at the last).
DENSE = {
    "LowerTriangularMask": (True, True),
    "LowerTriangularMaskWithTensorBias": (True, True),
    "LowerTriangularFromBottomRightMask": (True, False),
    "LowerTriangularFromBottomRightLocalAttentionMask": (True, False),
    "LocalAttentionFromBottomRightMask": (False, False),
}
PACKED = {
    "BlockDiagonalMask": (False, False),
    "BlockDiagonalCausalMask": (True, True),
    "BlockDiagonalCausalFromBottomRightMask": (True, False),
    "BlockDiagonalCausalLocalAttentionMask": (True, True),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": (True, False),
    "BlockDiagonalPaddedKeysMask": (False, False),
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": (True, False),
    "BlockDiagonalLocalAttentionPaddedKeysMask": (False, False),
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask": (True, False),
    "BlockDiagonalGappyKeysMask": (False, False),
    "BlockDiagonalCausalWithOffsetGappyKeysMask": (True, False),
    "PagedBlockDiagonalPaddedKeysMask": (False, False),
    "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask": (True, False),
    "PagedBlockDiagonalGappyKeysMask": (False, False),
    "PagedBlockDiagonalCausalWithOffsetGappyKeysMask": (True, False),
}


def memory_efficient_attention(
    query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None
):
    """query (b, m, h, k), or (b, m, k), or (b, m, g, h, k) with g groups of h query heads.

    attn_bias: a tensor that is added to the scores, or an object of xformers. op is accepted and
    ignored.
    """
    unsupported(
        output_dtype=(
            output_dtype,
            None if output_dtype != query.dtype else output_dtype,
            "cast it",
        )
    )
    q, k, v = grouped(query, key, value)
    options = {"scale": scale, "dropout_p": p}
    kind = type(attn_bias).__name__  # some of its objects are tensors, too
    if attn_bias is None or (isinstance(attn_bias, torch.Tensor) and kind not in DENSE):
        options["bias"] = bias_of(attn_bias, query)
        return fa3.attention(q, k, v, **options).reshape(*query.shape[:-1], v.shape[-1])
    if kind in DENSE:
        causal, top_left = DENSE[kind]
        options |= window_of(attn_bias, causal)
        if top_left and q.shape[1] != k.shape[1]:
            options |= {"causal": False, "window": (None, 0)}
            options["window_shift"] = q.shape[1] - k.shape[1]
        added = getattr(attn_bias, "_bias", None)
        if kind == "LowerTriangularMaskWithTensorBias" and added is None:
            added = attn_bias._subtensor
        options["bias"] = bias_of(added, query)
        out = fa3.attention(q, k, v, **options)
    elif kind in PACKED:
        causal, top_left = PACKED[kind]
        of_q, of_k = attn_bias.q_seqinfo, attn_bias.k_seqinfo
        if top_left and of_q.seqstart_py != of_k.seqstart_py:
            raise Unsupported(
                f"attn_bias: expected queries and keys of equal lengths in {kind}, which is level "
                "at the first ones, got others; use the class FromBottomRight"
            )
        if q.shape[0] != 1 or k.shape[0] != 1:
            raise fa3.InvalidArgument(
                f"query, key: expected a batch of 1 beside {kind}, got {q.shape[0]} and "
                f"{k.shape[0]}"
            )
        options |= window_of(attn_bias, causal)
        options |= {"cu_seqlens_q": of_q.seqstart.to(q.device), "max_seqlen_q": of_q.max_seqlen}
        k, v, places = keys_of(attn_bias, k, v, "Gappy" in kind)
        out = fa3.attention(q[0], k, v, **options, **places)[None]
    else:
        known = ", ".join((*DENSE, *PACKED))
        raise Unsupported(f"attn_bias: expected a tensor or one of {known}, got {kind}")
    return out.reshape(*query.shape[:-1], v.shape[-1])


def grouped(query, key, value):
    """As (b, m, heads, k); keys that are one for all heads of a group stay one."""
    if query.ndim == 3:
        return query[:, :, None], key[:, :, None], value[:, :, None]
    if query.ndim != 5:
        return query, key, value
    is_shared = all(x.shape[3] == 1 or x.stride(3) == 0 for x in (key, value))
    k, v = (x[:, :, :, 0] if is_shared else x.flatten(2, 3) for x in (key, value))
    return query.flatten(2, 3), k, v


def keys_of(bias, k, v, has_gaps):
    """k, v and the options that say where in them the keys of each sequence are."""
    info = bias.k_seqinfo
    starts = info.seqstart.to(k.device)
    used = info.seqlen.to(k.device) if hasattr(info, "seqlen") else None
    table = getattr(bias, "block_tables", None)
    if table is None and not has_gaps:  # one after the other, perhaps padded to a common length
        most = max(getattr(info, "padding", 0), info.max_seqlen)
        return k[0], v[0], {"cu_seqlens_k": starts, "seqused_k": used, "max_seqlen_k": most}
    places = {}
    if table is not None:
        k, v = (x[0].unflatten(0, (-1, bias.page_size)) for x in (k, v))
        places["page_table"] = table.to(k.device, torch.int32)
    most = max(info.seqlen_py)
    if has_gaps:
        first = starts[: used.shape[0]]
        places["left_padding"] = first
        if table is None:  # starts may come in any order, and sequences may share keys
            used = first + used
            most = k.shape[1]
            places["batch_index"] = torch.zeros_like(first)
    return k, v, {"seqused_k": used, "max_seqlen_k": most, **places}


def bias_of(tensor, query):
    """A tensor as fa3.attention(bias=) takes it, (b, heads, m, n)."""
    if tensor is None:
        return None
    if tensor.ndim == 3 and query.ndim > 3:  # xformers has had two readings of it
        raise fa3.InvalidArgument(
            "attn_bias: expected rank 4, (batch, heads, queries, keys), beside queries of rank "
            f"{query.ndim}, got {tuple(tensor.shape)}"
        )
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor.flatten(1, 2) if tensor.ndim == 5 else tensor


def window_of(bias, causal):
    """causal and window of an object; its window counts the query's own key if it is causal."""
    if hasattr(bias, "window_left"):
        return {"causal": causal, "window": (bias.window_left, bias.window_right)}
    size = getattr(bias, "_window_size", None)
    return {"causal": causal, "window": (None, None) if size is None else (size - 1, None)}

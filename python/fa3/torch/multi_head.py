# SPDX-License-Identifier: Apache-2.0
"""fa3 under the operator that nn.MultiheadAttention and nn.TransformerEncoderLayer call in eval
without gradients: projections and self-attention in one, on a CPU without torch's SDPA.
"""

import torch
from torch.nn.functional import linear, pad

from fa3._options import Options
from fa3.masks import BlockMask, from_dense
from fa3.torch.aten_kernels import Refused, refuse, refuse_where_flash_is_off
from fa3.torch.operators import new_out, run_forward

NAME = "_native_multi_head_attention"
KEYS = "CPU", "CUDA", "NestedTensorCPU", "NestedTensorCUDA"


def self_attention(
    query,
    key,
    value,
    embed_dim,
    num_head,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    mask,
    need_weights,
    mask_type,
    average_attn_weights,
    **unknown,
):
    """(out, None): out as query, (b, s, e), or nested (b, any, e)."""
    refuse(**unknown)
    refuse_where_flash_is_off()
    if need_weights:
        raise Refused("need_weights=True, for fa3 stores no weights, is not supported")
    if not (query is key is value):
        raise Refused("attention of different query, key and value is not supported")
    rows, options = (sequences if query.is_nested else dense)(query, mask, mask_type)
    q, k, v = linear(rows, qkv_weight, qkv_bias).unflatten(-1, (3, num_head, -1)).unbind(-3)
    out = new_out(q, v)
    run_forward(q, k, v, out, None, options)
    out = linear(out.flatten(-2), proj_weight, proj_bias)
    if query.is_nested:
        described = query._nested_tensor_size(), query._nested_tensor_strides()
        out = torch._nested_view_from_buffer(
            out.view(-1), *described, query._nested_tensor_storage_offsets()
        )
    return out, None


def dense(query, mask, mask_type):
    """The rows, and the options of their attention. mask: not 0 where a key is hidden."""
    blocks, bits = BlockMask(None, None)
    if mask is not None:
        refuse_addends(mask)
        blocks, bits = from_dense(seen_by(mask, mask_type, *query.shape[:2]))
    return query, Options(block_mask=blocks, block_mask_bits=bits)


def refuse_addends(mask):
    """nn.TransformerEncoderLayer hands over additive masks as they are. A GPU is not asked."""
    may_be_asked = mask.is_floating_point() and mask.device.type == "cpu"
    if may_be_asked and not ((mask == 0) | (mask == -torch.inf)).all():
        raise Refused(
            "a mask that adds to scores is not supported, and torch's kernel hides each key whose "
            "addend is not 0; torch.backends.mha.set_fastpath_enabled(False) adds it"
        )


def seen_by(mask, mask_type, batch, rows):
    """(b | 1, h | 1, s, s), whose heads may share memory. mask_type: torch's number of a form."""
    seen = mask == 0
    if mask_type == 1:  # (b, s), of keys
        return seen[:, None, None].expand(batch, 1, rows, rows)
    if mask_type == 0:  # (s, s)
        return seen[None, None]
    once = [slice(1) if stride == 0 else slice(None) for stride in mask.stride()[:2]]
    return seen[tuple(once)]


def sequences(query, mask, mask_type):
    refuse(mask=mask)
    if not query.is_contiguous():
        raise Refused("a nested tensor with gaps between its rows is not supported")
    lengths = query._nested_tensor_size()[:, 0]
    ends = pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    longest = int(lengths.max()) if len(lengths) else 0
    ends = ends.to(query.device, non_blocking=True)
    named = {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    longest_of_both = {"max_seqlen_q": longest, "max_seqlen_k": longest}
    return query.values().view(-1, query.size(-1)), Options(**named, **longest_of_both)

# SPDX-License-Identifier: Apache-2.0
"""fa3 under the signatures of torch's attention operators, which switch.py puts in their place.

Each takes the operator's arguments by name and raises Refused, or one of the library's errors,
where torch's own kernel has to run. Dense tensors are (b, h, s, d) where the operator's name has
"scaled_dot_product", else (b, s, h, d) or packed (total, h, d).
"""

import functools
import math

import torch

from fa3._options import BOTH_PASSES, Options
from fa3.torch.operators import new_lse, refuse_without_backward, run_backward, run_forward


class Refused(Exception):
    """A call that fa3 leaves to torch's own kernel."""


# Arguments of torch's operators that change no result here: the state of dropout's random numbers,
# and lengths that a dense call gives again.
WITHOUT_EFFECT = {
    *("philox_seed", "philox_offset", "rng_state", "unused"),
    *("cum_seq_q", "cum_seq_k", "max_q", "max_k"),
}


def refuse(**arguments):
    """Each argument must be off (None, 0, False) or without effect: fa3 has none of them.

    Arguments that a later torch adds come here too.
    """
    for name, value in arguments.items():
        is_off = value is None or not (isinstance(value, torch.Tensor) or value)
        if not is_off and name not in WITHOUT_EFFECT:
            raise Refused(f"{name} is not supported")


def refuse_top_left_causal(is_causal, q, k):
    """SDPA's is_causal is aligned top-left, fa3's causal bottom-right: the same if square."""
    if is_causal and q.shape[1] != k.shape[1]:
        raise Refused("is_causal with different lengths of query and key is not supported")


def refuse_wide_values(query, value):
    """torch's flash operators say that the output has query's shape."""
    if query.shape[-1] != value.shape[-1]:
        raise Refused("a head dim of value that differs from query's is not supported")


def deterministic():
    return torch.are_deterministic_algorithms_enabled()


def swapped(*tensors):
    """(b, h, s, d) as (b, s, h, d), and back."""
    return [tensor.transpose(1, 2) for tensor in tensors]


def no_random_state(q):
    """rng_state, philox_offset and debug_attn_mask of a call without dropout."""
    state, offset = (q.new_empty(shape, dtype=torch.uint64) for shape in ((2,), ()))
    return state, offset, q.new_empty(0)


def new_output(query, columns):
    """(b, h, s, columns) with query's order of dimensions, as torch's own kernels make it."""
    if query.shape[-1] == columns:
        return torch.empty_like(query)
    inner_first = sorted(range(query.ndim), key=lambda axis: query.stride(axis) or math.inf)
    shape, order = (*query.shape[:-1], columns), tuple(reversed(inner_first))
    return torch.empty_permuted(shape, order, dtype=query.dtype, device=query.device)


def dense_forward(query, key, value, is_causal, scale, lse, needs_backward=False):
    """(b, h, s, d) in, the same layout out. needs_backward: refuses what has no gradient here."""
    q, k, v = swapped(query, key, value)
    refuse_top_left_causal(is_causal, q, k)
    options = Options(causal=is_causal, scale=scale)
    if needs_backward:
        refuse_without_backward(q, k, v, options[: len(BOTH_PASSES)])
    output = new_output(query, value.shape[-1])
    run_forward(q, k, v, output.transpose(1, 2), lse, options)
    return output


def dense_backward(grad_out, query, key, value, out, logsumexp, is_causal, scale, gradients):
    do, q, k, v, o = swapped(grad_out, query, key, value, out)
    refuse_top_left_causal(is_causal, q, k)
    options = Options(causal=is_causal, scale=scale, deterministic=deterministic())
    outputs = (*swapped(*gradients), None)
    run_backward(do, q, k, v, o, logsumexp, None, outputs, options[: len(BOTH_PASSES)])
    return gradients


def sdpa_cuda(query, key, value, dropout_p, is_causal, return_debug_mask, scale, **unknown):
    refuse(dropout_p=dropout_p, return_debug_mask=return_debug_mask, **unknown)
    refuse_wide_values(query, value)
    lse = new_lse(query.transpose(1, 2))
    output = dense_forward(query, key, value, is_causal, scale, lse)
    lengths = query.shape[2], key.shape[2]
    return output, lse, None, None, *lengths, *no_random_state(query)


def sdpa_cuda_backward(
    grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale, **unknown
):
    refuse(dropout_p=dropout_p, **unknown)
    gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    arguments = (grad_out, query, key, value, out, logsumexp)
    return dense_backward(*arguments, is_causal, scale, gradients)


def sdpa_cpu(query, key, value, dropout_p, is_causal, attn_mask, scale, **unknown):
    refuse(dropout_p=dropout_p, attn_mask=attn_mask, **unknown)
    refuse_wide_values(query, value)
    batch, heads, rows, _ = query.shape
    lse = query.new_empty((batch, rows, heads), dtype=torch.float32).transpose(1, 2)
    return dense_forward(query, key, value, is_causal, scale, lse), lse


def sdpa_cpu_backward(
    grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale, **unknown
):
    refuse(dropout_p=dropout_p, attn_mask=attn_mask, **unknown)
    gradients = tuple(
        torch.empty_permuted(t.shape, (0, 2, 1, 3), dtype=t.dtype, device=t.device)
        for t in (query, key, value)
    )
    arguments = (grad_out, query, key, value, out, logsumexp)
    return dense_backward(*arguments, is_causal, scale, gradients)


# What _flash_attention_forward and _backward take: their names, and ours.
PACKED = {
    "is_causal": "causal",
    "window_size_left": "window_left",
    "window_size_right": "window_right",
    "scale": "scale",
    "cum_seq_q": "cu_seqlens_q",
    "cum_seq_k": "cu_seqlens_k",
    "max_q": "max_seqlen_q",
    "max_k": "max_seqlen_k",
    "seqused_k": "seqused_k",
    "block_table": "page_table",
    "num_splits": "num_splits",
}


def packed_options(named):
    """Our options from theirs, in order; what is neither known nor off is refused."""
    refuse(**{name: value for name, value in named.items() if name not in PACKED})
    options = {PACKED[name]: value for name, value in named.items() if name in PACKED}
    for side in ("window_left", "window_right"):
        if options.get(side) is None:
            options[side] = -1
    if options.get("page_table") is not None:
        if options["seqused_k"] is None:
            raise Refused("block_table without seqused_k is not supported")
        options |= {"cu_seqlens_k": None, "max_seqlen_k": 0}  # seqused_k says it all
    parts = options.pop("num_splits", None)
    if parts == 1:  # torch's way to ask that a sequence's bits depend on no other sequence
        options["batch_invariant"] = True
    elif parts is not None:
        options["num_splits"] = parts
    return Options(**options)


def flash_forward_into(out, query, key, value, **named):
    """(b, s, h, d), or packed (total, h, d)."""
    options = packed_options(named)
    lse = new_lse(query)
    run_forward(query, key, value, out, lse, options)
    return lse


def flash_forward(query, key, value, **named):
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    lse = flash_forward_into(out, query, key, value, **named)
    return out, lse, *no_random_state(query)


def flash_backward(grad_out, query, key, value, out, logsumexp, **named):
    gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    options = packed_options(named)._replace(deterministic=deterministic())
    arguments = (grad_out, query, key, value, out, logsumexp, None)
    run_backward(*arguments, (*gradients, None), options[: len(BOTH_PASSES)])
    return gradients


# cuDNN's operators. torch takes them before flash attention on Hopper: scaled_dot_product_attention
# and varlen_attn by default, others through sdpa_kernel([CUDNN_ATTENTION, ...], set_priority=True).


def refuse_where_flash_is_off():
    """fa3 stands for flash attention: who allows cuDNN alone means cuDNN."""
    if not torch.backends.cuda.flash_sdp_enabled():
        raise Refused("flash attention, as which fa3 is registered, is switched off here")


@functools.cache
def cudnn_lse_rank():
    """Whether the LSE of torch's cuDNN operator is (b, h, s) or (b, h, s, 1): versions differ."""
    q = torch.empty((1, 1, 2, 8), dtype=torch.bfloat16, device="meta")
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, q, q, None, True)[1].ndim


def cudnn_results(query, out, lse, lengths):
    """Their nine results, of a call without dropout and without lengths to give back."""
    seed, offset = (query.new_empty((), dtype=torch.int64) for _ in range(2))
    return out, lse, None, None, *lengths, seed, offset, None


def cudnn_sdpa(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale, **unknown
):
    refuse_where_flash_is_off()
    refuse(attn_bias=attn_bias, dropout_p=dropout_p, **unknown)
    lse = new_lse(query.transpose(1, 2))
    arguments = (query, key, value, is_causal, scale, lse)
    out = dense_forward(*arguments, needs_backward=compute_log_sumexp)
    lse = lse.unsqueeze(-1) if cudnn_lse_rank() == 4 else lse
    return cudnn_results(query, out, lse, (query.shape[2], key.shape[2]))


def cudnn_sdpa_backward(
    grad_out, query, key, value, out, logsumexp, attn_bias, dropout_p, is_causal, scale, **unknown
):
    refuse(attn_bias=attn_bias, dropout_p=dropout_p, **unknown)
    lse = logsumexp.squeeze(-1) if logsumexp.ndim == 4 else logsumexp
    gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    arguments = (grad_out, query, key, value, out, lse)
    return dense_backward(*arguments, is_causal, scale, gradients)


def packed_by_cudnn(query, named):
    """Arguments of cuDNN's packed operators for packed_options."""
    if query.ndim != 3:
        raise Refused("a call that is not packed is not supported")
    q, k = named["cum_seq_q"], named["cum_seq_k"]
    same = k is not None and q.data_ptr() == k.data_ptr()
    # Only with seqused_k does cuDNN's causal diagonal end bottom-right, as ours always does.
    if named["is_causal"] and not same and named.get("seqused_k") is None:
        raise Refused("is_causal with different cum_seq_q and cum_seq_k is not supported")
    return named | {"window_size_left": -1, "window_size_right": -1}


def cudnn_forward_into(out, query, key, value, needs_backward=False, **named):
    refuse_where_flash_is_off()
    options = packed_options(packed_by_cudnn(query, named))
    if needs_backward:
        refuse_without_backward(query, key, value, options[: len(BOTH_PASSES)])
    lse = new_lse(query)
    run_forward(query, key, value, out, lse, options)
    return lse


def cudnn_forward(query, key, value, compute_log_sumexp, **named):
    cached = named.get("seqused_k") is not None or named.get("block_table") is not None
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    needs_backward = compute_log_sumexp and not cached
    lse = cudnn_forward_into(out, query, key, value, needs_backward, **named)
    return cudnn_results(query, out, lse, (named["max_q"], named["max_k"]))


def cudnn_backward(grad_out, query, key, value, out, logsumexp, **named):
    return flash_backward(
        grad_out, query, key, value, out, logsumexp, **packed_by_cudnn(query, named)
    )


KERNELS = {
    "_scaled_dot_product_flash_attention": ("CUDA", sdpa_cuda),
    "_scaled_dot_product_flash_attention_backward": ("CUDA", sdpa_cuda_backward),
    "_scaled_dot_product_flash_attention_for_cpu": ("CPU", sdpa_cpu),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("CPU", sdpa_cpu_backward),
    "_flash_attention_forward": ("CUDA", flash_forward),
    "_flash_attention_forward_no_dropout_inplace": ("CUDA", flash_forward_into),
    "_flash_attention_backward": ("CUDA", flash_backward),
    "_scaled_dot_product_cudnn_attention": ("CUDA", cudnn_sdpa),
    "_scaled_dot_product_cudnn_attention_backward": ("CUDA", cudnn_sdpa_backward),
    "_cudnn_attention_forward": ("CUDA", cudnn_forward),
    "_cudnn_attention_forward_no_dropout_inplace": ("CUDA", cudnn_forward_into),
    "_cudnn_attention_backward": ("CUDA", cudnn_backward),
}

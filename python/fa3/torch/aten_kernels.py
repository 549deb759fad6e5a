# SPDX-License-Identifier: Apache-2.0
"""fa3 under the signatures of torch's attention operators, which switch.py puts in their place.

Each takes the operator's arguments by name and raises Refused, or one of the library's errors,
where torch's own kernel has to run. Dense tensors are (b, h, s, d) where the operator's name has
"scaled_dot_product", else (b, s, h, d) or packed (total, h, d).
"""

import functools
import math

import torch

from fa3 import _backends
from fa3._options import BOTH_PASSES, Options
from fa3.masks import BlockMask, from_dense
from fa3.torch.aten_dropout import (
    WITHOUT_DROPOUT,
    Dropout,
    Refused,
    is_ours_of_cudnn,
    is_ours_of_flash,
)
from fa3.torch.operators import (
    have_memory,
    new_lse,
    refuse_without_backward,
    run_backward,
    run_forward,
)
from fa3.torch.public import attention

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


def new_output(query, columns):
    """(..., columns) with query's order of dimensions, as torch's own kernels make it."""
    if query.shape[-1] == columns:
        return torch.empty_like(query)
    inner_first = sorted(range(query.ndim), key=lambda axis: query.stride(axis) or math.inf)
    shape, order = (*query.shape[:-1], columns), tuple(reversed(inner_first))
    return torch.empty_permuted(shape, order, dtype=query.dtype, device=query.device)


def as_blocks(attn_mask, query, key):
    """The BlockMask of a mask that only hides keys: booleans, or floats 0 and -inf.

    torch's dense operators turn booleans into such floats before they come here.
    """
    if attn_mask is None:
        return BlockMask(None, None)
    seen = attn_mask
    if attn_mask.dtype != torch.bool:
        seen = attn_mask == 0
        if attn_mask.requires_grad or not (seen | (attn_mask == -math.inf)).all():
            raise Refused("an attn_mask of other numbers than 0 and -inf is not supported")
    seen = seen[(None,) * (4 - seen.ndim)]
    seen = seen.expand(*seen.shape[:2], query.shape[2], key.shape[2])
    once = [slice(1) if stride == 0 else slice(None) for stride in seen.stride()[:2]]
    return from_dense(seen[tuple(once)])


def dense_forward(
    query,
    key,
    value,
    is_causal,
    scale,
    lse,
    needs_backward=False,
    dropout=WITHOUT_DROPOUT,
    attn_mask=None,
):
    """(b, h, s, d) in, the same layout out. needs_backward: refuses what has no gradient here."""
    q, k, v = swapped(query, key, value)
    refuse_top_left_causal(is_causal, q, k)
    blocks, bits = as_blocks(attn_mask, query, key)
    masks = {"causal": is_causal, "block_mask": blocks, "block_mask_bits": bits}
    options = Options(scale=scale, **masks, **dropout.options())
    if needs_backward:
        refuse_without_backward(q, k, v, options[: len(BOTH_PASSES)])
    output = new_output(query, value.shape[-1])
    run_forward(q, k, v, output.transpose(1, 2), lse, options)
    return output


def dense_backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    is_causal,
    scale,
    gradients,
    dropout=WITHOUT_DROPOUT,
    attn_mask=None,
):
    do, q, k, v, o = swapped(grad_out, query, key, value, out)
    refuse_top_left_causal(is_causal, q, k)
    blocks, bits = as_blocks(attn_mask, query, key)
    masks = {"causal": is_causal, "block_mask": blocks, "block_mask_bits": bits}
    options = Options(scale=scale, deterministic=deterministic(), **masks, **dropout.options())
    outputs = (*swapped(*gradients), None)
    run_backward(do, q, k, v, o, logsumexp, None, outputs, options[: len(BOTH_PASSES)])
    return gradients


def sdpa_cuda(query, key, value, dropout_p, is_causal, return_debug_mask, scale, **unknown):
    refuse(return_debug_mask=return_debug_mask, **unknown)
    refuse_wide_values(query, value)
    dropout = Dropout.drawn(dropout_p, query)
    lse = new_lse(query.transpose(1, 2))
    arguments = (query, key, value, is_causal, scale, lse, dropout_p > 0, dropout)
    output = dense_forward(*arguments)
    lengths = query.shape[2], key.shape[2]
    return output, lse, None, None, *lengths, *dropout.results(query)


def sdpa_cuda_backward(
    grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, philox_seed, scale, **unknown
):
    refuse(**unknown)
    dropout = Dropout.saved(dropout_p, philox_seed)
    gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    arguments = (grad_out, query, key, value, out, logsumexp)
    return dense_backward(*arguments, is_causal, scale, gradients, dropout)


def sdpa_cpu(query, key, value, dropout_p, is_causal, attn_mask, scale, **unknown):
    refuse(dropout_p=dropout_p, **unknown)
    refuse_wide_values(query, value)
    batch, heads, rows, _ = query.shape
    lse = query.new_empty((batch, rows, heads), dtype=torch.float32).transpose(1, 2)
    arguments = (query, key, value, is_causal, scale, lse)
    output = dense_forward(*arguments, attn_mask=attn_mask)
    if attn_mask is not None:
        lse.masked_fill_(lse == -math.inf, 0.0)  # so that torch's own backward takes it too
    return output, lse


def sdpa_cpu_backward(
    grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale, **unknown
):
    refuse(dropout_p=dropout_p, **unknown)
    gradients = tuple(
        torch.empty_permuted(t.shape, (0, 2, 1, 3), dtype=t.dtype, device=t.device)
        for t in (query, key, value)
    )
    arguments = (grad_out, query, key, value, out, logsumexp)
    return dense_backward(*arguments, is_causal, scale, gradients, attn_mask=attn_mask)


def sdpa_with_dropout(
    query, key, value, attn_mask, dropout_p, is_causal, dropout_mask, scale, enable_gqa, **unknown
):
    """torch's formula for SDPA, which is all that its CPU has for dropout. Differentiable."""
    refuse(dropout_mask=dropout_mask, **unknown)
    if attn_mask is not None and not have_memory(attn_mask):
        raise Refused("dropout_p with attn_mask in a compiled program is not supported")
    if query.ndim != 4 or query.dtype == torch.float64:
        raise Refused("dropout_p with other than 4 dimensions, or in float64, is not supported")
    if not (enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
        raise Refused("dropout_p with different heads but without enable_gqa is not supported")
    q, k, v = swapped(query, key, value)
    refuse_top_left_causal(is_causal, q, k)
    masks = {"causal": is_causal, "block_mask": as_blocks(attn_mask, query, key)}
    out = attention(q, k, v, scale=scale, dropout_p=dropout_p, **masks)
    return out.transpose(1, 2), query.new_empty(0)


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


def packed_options(named, dropout=WITHOUT_DROPOUT):
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
    return Options(**options, **dropout.options())


def flash_forward_into(out, query, key, value, dropout=WITHOUT_DROPOUT, **named):
    """(b, s, h, d), or packed (total, h, d)."""
    options = packed_options(named, dropout)
    if dropout.p > 0:
        refuse_without_backward(query, key, value, options[: len(BOTH_PASSES)])
    lse = new_lse(query)
    run_forward(query, key, value, out, lse, options)
    return lse


def flash_forward(query, key, value, dropout_p, **named):
    dropout = Dropout.drawn(dropout_p, query)
    out = new_output(query, value.shape[-1])
    lse = flash_forward_into(out, query, key, value, dropout, **named)
    return out, lse, *dropout.results(query)


def flash_backward(grad_out, query, key, value, out, logsumexp, dropout_p, rng_state=None, **named):
    dropout = Dropout.saved(dropout_p, rng_state)
    gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    options = packed_options(named, dropout)._replace(deterministic=deterministic())
    arguments = (grad_out, query, key, value, out, logsumexp, None)
    run_backward(*arguments, (*gradients, None), options[: len(BOTH_PASSES)])
    return gradients


# What torch does with a mask before any of its operators sees it (booleans become floats, short
# rows are copied to longer ones) does not happen to one that fa3 takes.


def sdpa_with_mask(
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, **unknown
):
    """scaled_dot_product_attention with an attn_mask on a GPU. Differentiable, in the mask too.

    Numbers that nobody learns are torch's: cuDNN's kernel takes 0.54 of the time (docs/masks.md).
    """
    from fa3.flex.bias import attend as attend_with_bias  # with its first call

    refuse(is_causal=is_causal, **unknown)
    refuse_where_flash_is_off()
    if dropout_p > 0:
        raise Refused("attn_mask with dropout_p is not supported")
    if attn_mask.dtype != torch.bool and not attn_mask.requires_grad:
        raise Refused("an attn_mask of numbers without a gradient, which torch's own kernel adds")
    if query.ndim != 4:
        raise Refused("attn_mask with other than 4 dimensions is not supported")
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise Refused(f"attn_mask with {query.dtype} is not supported on a GPU")
    if not (enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
        raise Refused("different heads without enable_gqa are not supported")
    options = {"scale": scale, "deterministic": deterministic()}
    q, k, v = swapped(query, key, value)
    out = attend_with_bias(q, k, v, attn_mask, None, None, False, options, only_kernels=True)
    return out.transpose(1, 2)


def sdpa_in_fp8(query, key, value, is_causal, scale, enable_gqa, **unknown):
    """scaled_dot_product_attention by fa3.attention_fp8. Differentiable."""
    refuse(**unknown)
    refuse_where_flash_is_off()
    if not (enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
        raise Refused("different heads without enable_gqa are not supported")
    if not query.dtype == key.dtype == value.dtype:
        raise Refused("different types of query, key and value")
    q, k, v = swapped(query, key, value)
    return _backends.attention_fp8(q, k, v, causal=is_causal, scale=scale).transpose(1, 2)


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


def cudnn_results(query, out, lse, lengths, dropout):
    """Their nine results, of a call without lengths to give back.

    The offset has memory of its own: a compiled program wants results that begin at 16 bytes.
    """
    seed = dropout.state(query).as_strided((), ())
    offset = query.new_empty((), dtype=torch.int64)
    if dropout.seed is not None:
        offset.copy_(dropout.seed[1])
    return out, lse, None, None, *lengths, seed, offset, None


def cudnn_saved(dropout_p, philox_seed, philox_offset):
    """Dropout from what cudnn_results() gave back."""
    given = dropout_p > 0 and philox_seed is not None
    state = torch.stack([philox_seed, philox_offset]) if given else None
    return Dropout.saved(dropout_p, state)


def cudnn_sdpa(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale, **unknown
):
    refuse_where_flash_is_off()
    refuse(attn_bias=attn_bias, **unknown)
    dropout = Dropout.drawn(dropout_p, query)
    lse = new_lse(query.transpose(1, 2))
    arguments = (query, key, value, is_causal, scale, lse, compute_log_sumexp, dropout)
    out = dense_forward(*arguments)
    lse = lse.unsqueeze(-1) if cudnn_lse_rank() == 4 else lse
    return cudnn_results(query, out, lse, (query.shape[2], key.shape[2]), dropout)


def cudnn_sdpa_backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    philox_seed,
    philox_offset,
    attn_bias,
    dropout_p,
    is_causal,
    scale,
    **unknown,
):
    refuse(attn_bias=attn_bias, **unknown)
    dropout = cudnn_saved(dropout_p, philox_seed, philox_offset)
    lse = logsumexp.squeeze(-1) if logsumexp.ndim == 4 else logsumexp
    gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    arguments = (grad_out, query, key, value, out, lse)
    return dense_backward(*arguments, is_causal, scale, gradients, dropout)


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


def cudnn_forward_into(
    out, query, key, value, needs_backward=False, dropout=WITHOUT_DROPOUT, **named
):
    refuse_where_flash_is_off()
    options = packed_options(packed_by_cudnn(query, named), dropout)
    if needs_backward:
        refuse_without_backward(query, key, value, options[: len(BOTH_PASSES)])
    lse = new_lse(query)
    run_forward(query, key, value, out, lse, options)
    return lse


def cudnn_forward(query, key, value, compute_log_sumexp, dropout_p, **named):
    dropout = Dropout.drawn(dropout_p, query)
    cached = named.get("seqused_k") is not None or named.get("block_table") is not None
    out = new_output(query, value.shape[-1])
    needs_backward = compute_log_sumexp and not cached
    lse = cudnn_forward_into(out, query, key, value, needs_backward, dropout, **named)
    return cudnn_results(query, out, lse, (named["max_q"], named["max_k"]), dropout)


def cudnn_backward(
    grad_out, query, key, value, out, logsumexp, dropout_p, philox_seed, philox_offset, **named
):
    dropout = cudnn_saved(dropout_p, philox_seed, philox_offset)
    arguments = (grad_out, query, key, value, out, logsumexp)
    return flash_backward(*arguments, dropout.p, dropout.seed, **packed_by_cudnn(query, named))


# Wanted only where there is a mask. Under autograd's key alone, so not in inference mode: with a
# kernel for the device torch.compile would no longer take this operator apart, and lose gradients.
WITH_MASK = {
    "scaled_dot_product_attention": ("AutogradCUDA", sdpa_with_mask),
}
# Wanted only where dropout_p is not 0.
WITH_DROPOUT = {
    "_scaled_dot_product_attention_math": ("AutogradCPU", sdpa_with_dropout),
}
# Wanted only by enable_sdpa(fp8=True), and under autograd's keys for the reason above.
WITH_FP8 = "scaled_dot_product_attention", ("AutogradCUDA", "AutogradCPU"), sdpa_in_fp8
KERNELS = {
    "_scaled_dot_product_flash_attention": ("CUDA", sdpa_cuda),
    "_scaled_dot_product_flash_attention_for_cpu": ("CPU", sdpa_cpu),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("CPU", sdpa_cpu_backward),
    "_flash_attention_forward": ("CUDA", flash_forward),
    "_flash_attention_forward_no_dropout_inplace": ("CUDA", flash_forward_into),
    "_scaled_dot_product_cudnn_attention": ("CUDA", cudnn_sdpa),
    "_cudnn_attention_forward": ("CUDA", cudnn_forward),
    "_cudnn_attention_forward_no_dropout_inplace": ("CUDA", cudnn_forward_into),
}
# Operators that get the random state of their forward, and the function that reads from it whether
# fa3 ran that. varlen_attn keeps no state, and has no dropout: its operators are the packed ones.
BACKWARDS = {
    "_scaled_dot_product_flash_attention_backward": ("CUDA", sdpa_cuda_backward, is_ours_of_flash),
    "_flash_attention_backward": ("CUDA", flash_backward, is_ours_of_flash),
    "_scaled_dot_product_cudnn_attention_backward": (
        "CUDA",
        cudnn_sdpa_backward,
        is_ours_of_cudnn,
    ),
    "_cudnn_attention_backward": ("CUDA", cudnn_backward, is_ours_of_cudnn),
}

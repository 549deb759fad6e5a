# SPDX-License-Identifier: Apache-2.0
"""fa3 inside torch.nn.functional.scaled_dot_product_attention, only where it is switched on.

Goes through torch's registry of flash attention implementations, under the name "fa3": while
active, the kernels of the aten flash operators are ours, on CUDA and on the CPU.
A call that fa3 does not support (dropout, an attention mask, float64, ...) runs the kernel that
was there before, with one warning per reason.
"""

import contextlib
import warnings

import torch

from fa3._options import BOTH_PASSES, Options
from fa3.errors import Error
from fa3.torch.operators import new_lse, run_backward, run_forward

NAME = "fa3"


class Refused(Exception):
    """A call with an argument of torch's operator that fa3 does not have."""


def enable_sdpa():
    """Makes scaled_dot_product_attention use fa3 wherever it would use flash attention.

    Also torch.nn.attention.varlen and everything else above the same operators. On the CPU too.
    """
    registry().activate_flash_attention_impl(NAME)


def disable_sdpa():
    """Gives scaled_dot_product_attention its own kernels back."""
    if registry().current_flash_attention_impl() == NAME:
        registry().restore_flash_attention_impl()


@contextlib.contextmanager
def sdpa():
    """enable_sdpa() for a block of code; afterwards whatever was active before is active again."""
    before = registry().current_flash_attention_impl()
    enable_sdpa()
    try:
        yield
    finally:
        disable_sdpa()
        if before is not None:
            registry().activate_flash_attention_impl(before)


def registry():
    if NAME not in torch.nn.attention.list_flash_attention_impls():
        torch.nn.attention.register_flash_attention_impl(NAME, register_fn=Overrides)
    return torch.nn.attention


class Overrides:
    """Our kernels in the dispatcher, for as long as this object holds its library."""

    def __init__(self):
        self.library = torch.library.Library("aten", "IMPL")
        try:
            for name, (key, kernel) in KERNELS.items():
                override(self.library, name, key, kernel)
        except BaseException:
            self.remove()
            raise

    def remove(self):
        self.library._destroy()


def override(library, name, key, kernel):
    """Puts kernel(**arguments) before the operator's present kernel, which runs refused calls.

    Operators come and go with torch's versions; one that is not there needs no kernel.
    """
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return
    op = packet.default
    try:
        previous = torch.library.get_kernel(op, key)
    except RuntimeError:
        return  # a build of torch without this device
    schema = op._schema.arguments
    names = [argument.name for argument in schema]
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}

    def dispatch(keys, *args, **keywords):
        arguments = defaults | dict(zip(names, args, strict=False)) | keywords
        try:
            return kernel(**arguments)
        except (Refused, Error) as error:
            warn_once(f"fa3 leaves {op.name()} to torch's own kernel: {error}")
        return previous.call_boxed(keys, *args, **keywords)

    with warnings.catch_warnings():  # of replacing a kernel, which is the point
        warnings.simplefilter("ignore", UserWarning)
        library.impl(op, dispatch, key, with_keyset=True, allow_override=True)


warned = set()


def warn_once(sentence):
    if sentence not in warned:
        warned.add(sentence)
        warnings.warn(sentence, stacklevel=4)


# Arguments of torch's operators that change no result here: the state of dropout's random numbers,
# lengths that a dense call gives again, and a hint.
WITHOUT_EFFECT = {
    *("philox_seed", "philox_offset", "rng_state", "unused"),
    *("cum_seq_q", "cum_seq_k", "max_q", "max_k"),
    "num_splits",
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


def deterministic():
    return torch.are_deterministic_algorithms_enabled()


def swapped(*tensors):
    """(b, h, s, d) as (b, s, h, d), and back."""
    return [tensor.transpose(1, 2) for tensor in tensors]


def no_random_state(q):
    """rng_state, philox_offset and debug_attn_mask of a call without dropout."""
    state, offset = (q.new_empty(shape, dtype=torch.uint64) for shape in ((2,), ()))
    return state, offset, q.new_empty(0)


def dense_forward(query, key, value, is_causal, scale, lse):
    """(b, h, s, d) in, the same layout out."""
    if query.shape[-1] != value.shape[-1]:
        raise Refused("a head dim of value that differs from query's is not supported")
    q, k, v = swapped(query, key, value)
    refuse_top_left_causal(is_causal, q, k)
    output = torch.empty_like(query)
    options = Options(causal=is_causal, scale=scale)
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
}


def packed_options(named):
    """Our options from theirs, in order; what is neither known nor off is refused."""
    refuse(**{name: value for name, value in named.items() if name not in PACKED})
    options = {PACKED[name]: value for name, value in named.items() if name in PACKED}
    for side in ("window_left", "window_right"):
        options[side] = -1 if options[side] is None else options[side]
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


KERNELS = {
    "_scaled_dot_product_flash_attention": ("CUDA", sdpa_cuda),
    "_scaled_dot_product_flash_attention_backward": ("CUDA", sdpa_cuda_backward),
    "_scaled_dot_product_flash_attention_for_cpu": ("CPU", sdpa_cpu),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("CPU", sdpa_cpu_backward),
    "_flash_attention_forward": ("CUDA", flash_forward),
    "_flash_attention_forward_no_dropout_inplace": ("CUDA", flash_forward_into),
    "_flash_attention_backward": ("CUDA", flash_backward),
}

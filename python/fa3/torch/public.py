# SPDX-License-Identifier: Apache-2.0
"""fa3.torch.attention: attention of options by name, with a bias or without."""

from fa3 import _backends, masks
from fa3._options import in_order, lengths_in_int32, refuse_positions, takes_options
from fa3.errors import Unsupported
from fa3.masks import refuse_other_extents
from fa3.torch.autograd import attend, to_autocast_type
from fa3.torch.operators import is_any_autocast_enabled

LENGTHS = frozenset(masks.LENGTHS)


def attend_with_bias(q, k, v, bias, alibi_slopes, out, return_lse, options, return_max_logit=False):
    """attention() with bias or alibi_slopes. options: by name."""
    if return_max_logit:
        raise Unsupported(
            "return_max_logit: expected False with bias or alibi_slopes, whose kernels may begin "
            "with what is added to scale * q.k"
        )
    if is_any_autocast_enabled():
        q, k, v = to_autocast_type(q, k, v)
    if not LENGTHS.isdisjoint(options):
        options = lengths_in_int32(options)
    _backends.load_flex()
    given = q, k, v, bias, alibi_slopes, out, return_lse, options
    return _backends.flex.attend_with_bias(*given)


@takes_options()
def attention(
    q,
    k,
    v,
    *others,
    out=None,
    return_lse=False,
    return_max_logit=False,
    generator=None,
    bias=None,
    alibi_slopes=None,
    **options,
):
    """fa3.attention for torch tensors, differentiable in q, k, v, sink, gate, bias and
    alibi_slopes.

    Source: FlashAttention-3 (arXiv 2407.08608), Algorithm 1; its gradient, FlashAttention-2 (arXiv
    2307.08691), Algorithm 2. Traceable by torch.compile(fullgraph=True). Runs on torch's current
    stream and waits for nothing.

    Args:
        q: (b, sq, hq, d), or packed (total_q, hq, d); fp16, bf16 or float8_e4m3fn, on a CPU also
            fp32 and fp64. Under autocast, q, k and v become the autocast type.
        k, v: (b, sk, hk, d | dv), or packed; hq % hk == 0.
        out: written instead of a new tensor; none of the inputs may then need a gradient.
        return_lse: also return the LSE, which is differentiable too (a z-loss, a merge).
        return_max_logit: also return the largest logit of each head, which has no gradient.
        generator: the torch.Generator that gives the seed of dropout_p; None is the device's own.
            Not under torch.compile, which traces the device's own, and not in what a checkpoint
            computes again.
        bias, alibi_slopes: as of fa3.attention; not inside of torch.compile(fullgraph=True).
        options: all those of fa3.attention, with their shapes and units. Gradients are bitwise
            repeatable with deterministic=True or torch.use_deterministic_algorithms(True).

    Returns:
        out (b, sq, hq, dv), or (out, lse), (out, max_logit) or (out, lse, max_logit); lse
        (b, hq, sq), or (hq, total_q) if packed, float32, natural log of the sum of exp(scores);
        max_logit (sequences, hq), float32. A row that sees no key has out = 0, lse = -inf.

    Raises:
        fa3.InvalidArgument: the call is wrong. Also a ValueError.
        fa3.Unsupported: no engine does this on these tensors, or something that needs a gradient
            has none: caches, FP8, forward-mode and second derivatives. Also a NotImplementedError.
        TypeError: k, v or an option is no tensor, no number, ...
    """
    if others:
        refuse_positions("attention", 3, others)
    if bias is not None or alibi_slopes is not None:
        if generator is not None:
            raise Unsupported("generator: not together with bias and alibi_slopes")
        given = q, k, v, bias, alibi_slopes, out, return_lse, options, return_max_logit
        return attend_with_bias(*given)
    if "block_mask" in options:
        refuse_other_extents(options["block_mask"], q, k, options)
    in_order_options = in_order("attention", options)
    return attend(q, k, v, out, return_lse, in_order_options, generator, return_max_logit)

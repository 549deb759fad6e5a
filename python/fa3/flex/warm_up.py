# SPDX-License-Identifier: Apache-2.0
"""fa3.flex.warm_up: kernels are compiled before somebody waits for them."""

import fa3
from fa3.flex import device
from fa3.flex.attention import Flex


def warm_up(q, k, v, *, bias=None, alibi_slopes=None, **options):
    """Compiles the kernels of a call, and computes nothing.

    Later calls that are alike, also those of later processes of this user, find them. A server
    calls it for each kind of call before its first request; threads that do so compile at once.

    A kernel serves all lengths, batches, strides and elements that choose the same one of the
    library's configurations; types, head dims, what broadcasts, masks and the function are its own.

    Args:
        q, k, v, bias, alibi_slopes, options: those of fa3.attention with a bias or slopes, or of
            fa3.flex_attention. The elements are not read; of a mask_mod blocks are made and kept.
            If one of the tensors needs a gradient, the backward is compiled as well.

    On a CPU it checks the call alone. Warns (fa3.flex.device.SlowScores) where no kernel takes it.
    """
    if bias is None and alibi_slopes is None:
        call = fa3.flex_attention
    else:
        call, options = fa3.attention, {**options, "bias": bias, "alibi_slopes": alibi_slopes}
    with device.only_compiling():
        out, _ = call(q, k, v, **{**options, "return_lse": True})
        if out is not None and out.grad_fn is not None:
            # In this thread, and for all that needs a gradient: autograd has threads of its own.
            Flex.backward(out.grad_fn, out.detach(), None)

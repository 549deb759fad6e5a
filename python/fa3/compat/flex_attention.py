# SPDX-License-Identifier: Apache-2.0
"""flex_attention with the arguments of torch.nn.attention.flex_attention, on (b, h, s, d) tensors.

For programs that import it from there: its BlockMask and create_block_mask stay torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

import fa3
from fa3.compat._signatures import with_lse_or_aux
from fa3.errors import InvalidArgument, Unsupported

__all__ = ["flex_attention"]


def __dir__():
    return __all__


@with_lse_or_aux
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: Literal[False] = False,
    kernel_options: Any = None,
    *,
    return_aux: None = None,
):
    """torch's flex_attention by fa3.flex_attention. kernel_options, Triton's, are ignored."""
    if key.shape[1] != query.shape[1] and not enable_gqa:
        raise InvalidArgument(
            f"key: expected {query.shape[1]} heads as query, or enable_gqa=True, got {key.shape[1]}"
        )
    if getattr(return_aux, "max_scores", False):
        raise Unsupported("return_aux: max_scores, which fa3 never has as such")
    masks = {"score_mod": score_mod, "block_mask": block_mask}
    out, lse = fa3.flex_attention(
        query, key, value, **masks, scale=scale, return_lse=True, layout="bhsd"
    )
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, AuxOutput(lse=lse if return_aux.lse else None, max_scores=None)
    return (out, lse) if return_lse else out

# SPDX-License-Identifier: Apache-2.0
"""Transformers over a group of ranks: what substitute_hf_flash_attn puts into its registry."""

from collections.abc import Callable
from typing import Any

from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import fa3.hf  # noqa: F401  registers "fa3"
from fa3 import distributed
from fa3.errors import InvalidArgument, Unsupported

NAMES = "flash_attention_2", "flash_attention_3", "fa3"


def substitute(group, documents: dict[str, Any]) -> None:
    """documents: cu_seqlens and group of the batch; empty while there is none."""
    for name in NAMES:
        before = ALL_ATTENTION_FUNCTIONS[name]
        before = getattr(before, "alone", before)
        AttentionInterface.register(name, over_ranks(before, group, documents))


def over_ranks(alone: Callable, group, documents: dict[str, Any]) -> Callable:
    def attention_forward(module, query, key, value, attention_mask, **named):
        """Transformers' arguments; masks say nothing that documents do not."""
        if not documents:
            return alone(module, query, key, value, attention_mask, **named)
        if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
            raise InvalidArgument(
                "query, key: expected one packed stream, batch 1, and no cache, got queries "
                f"{tuple(query.shape)} and keys {tuple(key.shape)}; pass use_cache=False"
            )
        if getattr(attention_mask, "is_padded", False):
            raise Unsupported("attention_mask: expected no padding in a stream of documents")
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        given = {name: x for name, x in named.items() if x is not None}
        window, sink = given.get("sliding_window"), given.get("s_aux")
        out = distributed.attention(
            q,
            k,
            v,
            group=documents["group"] or group,
            method="all_gather",
            layout="contiguous",
            causal=given.get("is_causal", getattr(module, "is_causal", True)),
            window=None if window is None else (window - 1, window - 1),
            softcap=given.get("softcap", 0.0),
            scale=given.get("scaling"),
            sink=None if sink is None else sink.float(),
            cu_seqlens=documents["cu_seqlens"],
            dropout_p=given.get("dropout", 0.0),
            deterministic=given.get("deterministic", False),
        )
        return out[None], None

    attention_forward.alone = alone  # type: ignore[attr-defined]
    return attention_forward

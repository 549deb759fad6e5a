# SPDX-License-Identifier: Apache-2.0
"""A step's attention as serving engines call it: fa3's own call, vLLM's and sglang's.

Each takes the packed queries of a step, a layer's pages and the Step, and returns the output. The
keys of the step's tokens are in the pages already. All three compute the same.
"""

from dataclasses import dataclass

import torch

import fa3
from fa3.compat import sglang, vllm


@dataclass
class Step:
    """Who takes part in a step, on the tensors' device."""

    starts: torch.Tensor  # (requests + 1,): request n owns queries starts[n] .. starts[n + 1] - 1
    used: torch.Tensor  # (requests,): keys in the cache, those of this step included
    table: torch.Tensor  # (requests, pages)
    most_new: int  # queries of one request
    most_used: int


def by_fa3(q, k_pages, v_pages, step):
    return fa3.attention(
        q,
        k_pages,
        v_pages,
        causal=True,
        cu_seqlens_q=step.starts,
        max_seqlen_q=step.most_new,
        seqused_k=step.used,
        page_table=step.table,
    )


def by_vllm(q, k_pages, v_pages, step):
    output = torch.empty_like(q)
    return vllm.flash_attn_varlen_func(
        q=q,
        k=k_pages,
        v=v_pages,
        out=output,
        cu_seqlens_q=step.starts,
        max_seqlen_q=step.most_new,
        seqused_k=step.used,
        max_seqlen_k=step.most_used,
        causal=True,
        window_size=[-1, -1],
        block_table=step.table,
        fa_version=3,
    )


def by_sglang(q, k_pages, v_pages, step):
    return sglang.flash_attn_with_kvcache(
        q=q,
        k_cache=k_pages,
        v_cache=v_pages,
        page_table=step.table,
        cache_seqlens=step.used,
        cu_seqlens_q=step.starts,
        max_seqlen_q=step.most_new,
        causal=True,
        ver=3,
    )


BY_API = {"fa3": by_fa3, "vllm": by_vllm, "sglang": by_sglang}

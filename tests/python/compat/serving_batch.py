# SPDX-License-Identifier: Apache-2.0
"""A batch of vLLM's and sglang's, and attention of it as they call it, for test_serving.py."""

import numpy as np
import oracle
import torch

from fa3.compat import sglang, vllm

HEADS, HEADS_K, DIM = 4, 2, 16
NEW, USED = (5, 1, 1, 7), (37, 20, 1, 7)  # rows of queries and of keys, of each sequence
PAGE = 16


class Batch:
    """Some sequences in the middle of their answers: packed queries, keys in pages."""

    def __init__(self, device):
        generator = torch.Generator().manual_seed(0)
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.device = device

        def normal(*shape):
            return torch.randn(shape, generator=generator).to(device, self.dtype)

        self.q = normal(sum(NEW), HEADS, DIM)
        self.k_pages, self.v_pages = normal(2, 12, PAGE, HEADS_K, DIM)
        self.table = torch.randperm(12, generator=generator).view(4, 3).int().to(device)
        self.starts = torch.tensor([0, *np.cumsum(NEW)], dtype=torch.int32, device=device)
        self.used = torch.tensor(USED, dtype=torch.int32, device=device)
        self.sinks = normal(HEADS).bfloat16()

    def keys(self, sequence):
        """k and v of one sequence, in order."""
        pages = self.table[sequence].long()
        return [x[pages].flatten(0, 1)[: USED[sequence]] for x in (self.k_pages, self.v_pages)]

    def packed_keys(self):
        """k, v and cu_seqlens_k of all sequences."""
        k, v = (torch.cat(x) for x in zip(*map(self.keys, range(len(USED))), strict=True))
        starts = torch.tensor([0, *np.cumsum(USED)], dtype=torch.int32, device=self.device)
        return k, v, starts

    def expected(self, **options):
        """(out, lse) in float64: (total, heads, dim) and (heads, total)."""
        out, lse = [], []
        for sequence, rows in enumerate(self.q.split(NEW)):
            given = [x.double().cpu().numpy()[None] for x in (rows, *self.keys(sequence))]
            one_out, one_lse = oracle.forward(*given, **options)
            out.append(torch.from_numpy(one_out[0]))
            lse.append(torch.from_numpy(one_lse[0]))
        return torch.cat(out), torch.cat(lse, -1)

    def close(self, actual, expected):
        tolerance = 1e-5 if self.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(actual.double().cpu(), expected, rtol=tolerance, atol=tolerance)


def vllm_call(batch, **changes):
    """The call of vLLM's FlashAttentionImpl.forward, decoding beside prefills."""
    descale_shape = (len(NEW), HEADS_K)
    scale = torch.ones(1, device=batch.device).expand(descale_shape)
    call = {
        "q": batch.q,
        "k": batch.k_pages,
        "v": batch.v_pages,
        "out": torch.full_like(batch.q, float("nan")),
        "cu_seqlens_q": batch.starts,
        "max_seqlen_q": max(NEW),
        "seqused_k": batch.used,
        "max_seqlen_k": max(USED),
        "softmax_scale": DIM**-0.5,
        "causal": True,
        "alibi_slopes": None,
        "window_size": None,
        "block_table": batch.table,
        "softcap": 0,
        "scheduler_metadata": None,
        "fa_version": 3,
        "q_descale": scale,
        "k_descale": scale,
        "v_descale": scale,
        "num_splits": 0,
        "s_aux": None,
    }
    return vllm.flash_attn_varlen_func(**call | changes)


def sglang_call(batch, **changes):
    """The call of sglang's FlashAttentionBackend, forward_extend and forward_decode."""
    call = {
        "q": batch.q,
        "k_cache": batch.k_pages,
        "v_cache": batch.v_pages,
        "page_table": batch.table,
        "cache_seqlens": batch.used,
        "cu_seqlens_q": batch.starts,
        "cu_seqlens_k_new": batch.packed_keys()[2],
        "max_seqlen_q": max(NEW),
        "softmax_scale": DIM**-0.5,
        "causal": True,
        "window_size": (-1, -1),
        "softcap": 0.0,
        "k_descale": None,
        "v_descale": None,
        "return_softmax_lse": False,
        "num_splits": 0,
        "ver": 3,
    }
    return sglang.flash_attn_with_kvcache(**call | changes)

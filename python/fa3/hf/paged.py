# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: one layer's attention over the paged cache of generate_batch().

The tokens of all requests come packed, without a mask; their keys and values lie in the cache. It
either gathers the keys of every request, packed like the queries, or (one new token a request, on a
GPU) hands over its pages and a block table.
"""

import torch

import fa3

# What comes with the cache. The last two are for what follows the layers.
ARGUMENTS = {"read_index", "write_index", "block_table", "logits_indices", "logits_processor_args"}


def without_arguments(others):
    return {name: value for name, value in others.items() if name not in ARGUMENTS}


@torch.compiler.disable  # the cache is written in place
def update(cache, layer, key, value, described):
    """Writes the new keys and values (1, kv heads, tokens, d | dv), or leaves that to attend().

    Args:
        described: cu_seq_lens_k, max_length_k (for each kind of layer), read_index, write_index,
            block_table; the cache puts those of this layer in their place.

    Returns:
        The keys and values of all requests; with a block table only the new ones.
    """
    return cache.update(key_states=key, value_states=value, layer_idx=layer, kwargs=described)


@torch.compiler.disable
def attend(q, k, v, described, options):
    """One new token a request, (1, requests, heads, d | dv): into its page, then attention."""
    k_cache, v_cache = described["k_cache"], described["v_cache"]
    q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
    total = described["cu_seq_lens_k"].to(torch.int32).diff()
    pages = described["block_table"]
    write(k_cache, k, total - 1, pages)
    write(v_cache, v, total - 1, pages)
    out = fa3.attention(q, k_cache, v_cache, seqused_k=total, page_table=pages, **options)
    return out.transpose(0, 1)


def write(cache, new, position, pages):
    """new (requests, 1, heads, d) becomes row `position` of each request.

    Not by fa3.append: K and V of all layers are views of one tensor, and overlap. Requests that
    only fill up a CUDA graph have position and pages -1, and write into page 0, which is nobody's.
    """
    size = cache.shape[1]
    page = pages.gather(1, position.clamp(min=0)[:, None].long() // size)[:, 0]
    cache[page.clamp(min=0), position % size] = new[:, 0]

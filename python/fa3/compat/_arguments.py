# SPDX-License-Identifier: Apache-2.0
"""What both generations of flash_attn share: arguments that fa3 lacks, and their conventions."""

import torch

from fa3.errors import InvalidArgument, Unsupported


def unsupported(**reasons):
    """reasons: name -> (given, off, why). Raises for the first argument that is not off."""
    for name, (given, off, why) in reasons.items():
        if given is not off and (isinstance(given, torch.Tensor) or given != off):
            raise Unsupported(f"{name}: expected {off}, got {described(given)}; {why}")


def described(value):
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def length(value):
    """A maximal length may come as an int, a 0-d tensor, or None."""
    return 0 if value is None else int(value)


def options(softmax_scale, causal, window_size, softcap, deterministic=False):
    """The options of fa3.attention from theirs.

    window_size: None and everything below 0 are unbounded. softcap: at most 0 is off.
    """
    left, right = (-1 if side is None or side < 0 else int(side) for side in window_size)
    return {
        "scale": softmax_scale,
        "causal": causal,
        "window": (left, right),
        "softcap": max(float(softcap), 0.0),
        "deterministic": deterministic,
    }


def cache_lengths(cache_seqlens, k_cache):
    """cache_seqlens as an int32 tensor (batch), None if the whole cache counts."""
    if cache_seqlens is None or isinstance(cache_seqlens, torch.Tensor):
        return cache_seqlens
    if not isinstance(cache_seqlens, int):
        raise InvalidArgument(
            f"cache_seqlens: expected an int or an int32 tensor, got {cache_seqlens!r}"
        )
    return torch.full((k_cache.shape[0],), cache_seqlens, dtype=torch.int32, device=k_cache.device)


def append(k_cache, v_cache, k, v, used):
    """Writes k and v into the caches behind their first `used` rows; returns the new lengths."""
    if used is None:
        raise InvalidArgument("cache_seqlens: expected the cache's lengths where k is given")
    batch, rows = k.shape[:2]
    at = used.long()[:, None] + torch.arange(rows, device=k.device)
    if not k.is_cuda and int(at.max()) >= k_cache.shape[1]:  # a GPU checks the index by itself
        raise InvalidArgument(
            f"k_cache: expected room for {int(at.max()) + 1} rows, got {k_cache.shape[1]}"
        )
    row = torch.arange(batch, device=k.device)[:, None]
    k_cache[row, at] = k
    v_cache[row, at] = v
    return used + rows

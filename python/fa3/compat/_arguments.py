# SPDX-License-Identifier: Apache-2.0
"""What both generations of flash_attn share: arguments that fa3 lacks, and their conventions."""

import contextlib

import torch

from fa3._options import window_ends
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
    ends = window_ends(window_size, "window_size")
    left, right = (-1 if side is None or side < 0 else int(side) for side in ends)
    return {
        "scale": softmax_scale,
        "causal": causal,
        "window": (left, right),
        "softcap": max(float(softcap), 0.0),
        "deterministic": deterministic,
    }


def cache_lengths(cache_seqlens, k_cache):
    """cache_seqlens as an int32 tensor (batch), None if the whole cache counts."""
    if cache_seqlens is None:
        return None
    batch, device = k_cache.shape[0], k_cache.device
    if isinstance(cache_seqlens, int):
        return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=device)
    if not isinstance(cache_seqlens, torch.Tensor):
        raise InvalidArgument(
            f"cache_seqlens: expected an int or an int32 tensor, got {cache_seqlens!r}"
        )
    if cache_seqlens.dtype != torch.int32 or cache_seqlens.shape != (batch,):
        raise InvalidArgument(
            f"cache_seqlens: expected an int or int32 of shape ({batch},), got "
            f"{cache_seqlens.dtype} of shape {tuple(cache_seqlens.shape)}"
        )
    return cache_seqlens


@contextlib.contextmanager
def appended(k_cache, v_cache, k, v, cache_seqlens):
    """Writes k and v into the caches behind the rows in use; gives the new lengths for a call.

    If that call raises, the caches are as they were before.
    """
    used = cache_lengths(cache_seqlens, k_cache)
    if (k is None) != (v is None):
        raise InvalidArgument("k, v: expected both or neither")
    if k is None:
        yield used
        return
    if used is None:
        raise InvalidArgument("cache_seqlens: expected the cache's lengths where k is given")
    check_new_rows("k", k, k_cache, rows=k.shape[1:2])
    check_new_rows("v", v, v_cache, rows=k.shape[1:2])
    places = places_of(used, k.shape[1], capacity=min(k_cache.shape[1], v_cache.shape[1]))
    before = [(cache, cache[places]) for cache in (k_cache, v_cache)]
    try:
        k_cache[places] = k
        v_cache[places] = v
        yield used + k.shape[1]
    except BaseException:
        for cache, rows in before:
            cache[places] = rows
        raise


def check_new_rows(name, new, cache, rows):
    expected = (*cache.shape[:1], *rows, *cache.shape[2:])
    alike = new.dtype == cache.dtype and new.device == cache.device
    if cache.ndim != 4 or tuple(new.shape) != expected or not alike:
        raise InvalidArgument(
            f"{name}: expected {cache.dtype} of shape {expected} on {cache.device}, to go into "
            f"{name}_cache {tuple(cache.shape)}, got {new.dtype} of shape {tuple(new.shape)} on "
            f"{new.device}"
        )


def places_of(used, rows, capacity):
    """Index of the `rows` cache rows behind the first used[n] ones of every sequence n."""
    at = used.long()[:, None] + torch.arange(rows, device=used.device)
    if used.is_cuda:  # a GPU checks the index by itself, but takes -1 for the last row
        at = at.where(used[:, None] >= 0, capacity)
    elif at.numel():
        if int(used.min()) < 0:
            raise InvalidArgument(f"cache_seqlens: expected lengths >= 0, got {int(used.min())}")
        if int(at.max()) >= capacity:
            raise InvalidArgument(
                f"k_cache: expected room for {int(at.max()) + 1} rows, got {capacity}"
            )
    return torch.arange(used.shape[0], device=used.device)[:, None], at

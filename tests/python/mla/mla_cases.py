# SPDX-License-Identifier: Apache-2.0
"""Latent caches byte by byte, and attention to them in float64: a second reading of docs/mla.md.

Shares no code with the library.
"""

import ml_dtypes
import numpy as np

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
FORMATS = ("latent", "group128", "v4", "tensor", "token")
BYTES = {"group128": 656, "v4": 584, "tensor": 576, "token": 644}
SCALES = np.array([0.03, 0.07], np.float32)  # of "tensor" rows


class Cache:
    """Random rows of a format in pages that begin `gap` bytes further apart than they must."""

    def __init__(self, rows, pages, page_size, seed=0, gap=0, dim=576):
        self.rows, self.pages, self.page_size = rows, pages, page_size
        self.dim = 512 if rows == "v4" else dim
        random = np.random.default_rng(seed)
        if rows == "latent":
            numbers = random.standard_normal((pages, page_size + gap, self.dim)).astype(BF16)
            self.array, self.descale = numbers[:, :page_size], None
            return
        stride = -(-BYTES[rows] * page_size // 576) * 576 if rows == "v4" else None
        stride = (stride or -(-BYTES[rows] * page_size // 16) * 16) + 16 * gap
        self.memory = random.integers(0, 0x7E, pages * stride, np.uint8)
        self.memory += random.integers(0, 2, self.memory.size, np.uint8) * 0x80
        self.array = np.lib.stride_tricks.as_strided(
            self.memory, (pages, page_size, BYTES[rows]), (stride, BYTES[rows], 1)
        )
        self.stride = stride
        self.descale = SCALES if rows == "tensor" else None
        for slot in range(pages * page_size):
            self.write_scales(slot, random)

    def place(self, slot):
        """Where the row, its scales and its rope channels begin."""
        page, t = divmod(slot, self.page_size)
        base, whole = page * self.stride, self.page_size
        return {
            "group128": lambda: (base + 656 * t, base + 656 * t + 512, base + 656 * t + 528),
            "v4": lambda: (base + 576 * t, base + 576 * whole + 8 * t, base + 576 * t + 448),
            "tensor": lambda: (base + 576 * t, None, base + 576 * t + 512),
            "token": lambda: (base + 640 * t, base + 640 * whole + 4 * t, base + 640 * t + 512),
        }[self.rows]()

    def write_scales(self, slot, random):
        """Scales and rope channels of a common size."""
        _, scales, rope = self.place(slot)
        if self.rows == "tensor":
            return
        numbers = random.standard_normal(64).astype(BF16)
        self.memory[rope : rope + 128] = numbers.view(np.uint8)
        if self.rows == "v4":
            self.memory[scales : scales + 7] = random.integers(118, 122, 7)
            return
        count = {"group128": 4, "token": 1}[self.rows]
        numbers = (random.random(count) * 0.02 + 1e-3).astype(np.float32)
        self.memory[scales : scales + 4 * count] = numbers.view(np.uint8)

    def spoil(self, slot):
        """Makes all of a row NaN."""
        if self.rows == "latent":
            self.array[slot // self.page_size, slot % self.page_size] = np.nan
            return
        row, scales, rope = self.place(slot)
        self.memory[row : row + {"v4": 448}.get(self.rows, 512)] = 0x7F
        self.memory[rope : rope + (64 if self.rows == "tensor" else 128)] = 0xFF
        if scales is not None:
            size = {"group128": 16, "v4": 8, "token": 4}[self.rows]
            self.memory[scales : scales + size] = 0xFF

    def keys(self, slots):
        """(n, dim) float64, exactly what the rows stand for."""
        return np.array([self.key(slot) for slot in slots]).reshape(-1, self.dim)

    def key(self, slot):
        if self.rows == "latent":
            page, t = divmod(slot, self.page_size)
            return self.array[page, t].astype(np.float64)
        row, scales, rope = self.place(slot)
        latent = 448 if self.rows == "v4" else 512
        numbers = self.memory[row : row + latent].view(E4M3).astype(np.float64)
        if self.rows == "tensor":
            tail = self.memory[rope : rope + 64].view(E4M3).astype(np.float64) * float(SCALES[1])
            return np.concatenate([numbers * float(SCALES[0]), tail])[: self.dim]
        if self.rows == "v4":
            factors = 2.0 ** (self.memory[scales : scales + 7].astype(np.float64) - 127)
        else:
            size = {"group128": 16, "token": 4}[self.rows]
            factors = self.memory[scales : scales + size].view(np.float32).astype(np.float64)
        tail = self.memory[rope : rope + 128].view(BF16).astype(np.float64)
        return np.concatenate([numbers * np.repeat(factors, latent // len(factors)), tail])[
            : self.dim
        ]

    def arguments(self, extra=""):
        """What attention() is given beside q."""
        found = {f"{extra}cache" if extra else "cache": self.array, f"{extra}rows": self.rows}
        return found if self.descale is None else {**found, f"{extra}descale": self.descale}


def attend(q, keys, scale=None, sink=None):
    """(h, d), (n, d) -> o (h, 512), lse without the sink, max (h,) in float64."""
    heads = len(q)
    none = np.full(heads, -np.inf)
    if len(keys) == 0:
        return np.zeros((heads, 512)), none, none
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scores = (scale or q.shape[1] ** -0.5) * (q.astype(np.float64) @ keys.T)
        largest = scores.max(1)
        finite = np.where(np.isfinite(largest), largest, 0)
        weights = np.exp(scores - finite[:, None])
        total = weights.sum(1)
        lse = finite + np.log(total)
        out = (weights / np.where(total > 0, total, 1)[:, None]) @ keys[:, :512]
        if sink is not None:
            kept = np.where(np.isposinf(sink), 0, 1 / (1 + np.exp(sink - lse)))
            kept = np.where(np.isneginf(sink), 1, kept)
            out = out * kept[:, None]
    return out, lse, largest


def assert_close(actual, expected, dtype):
    """Each element within roundings of its type and of float32 sums."""
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    size = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(
        np.asarray(actual).astype(np.float64), expected, rtol=2 * unit, atol=1e-4 * size + 1e-30
    )

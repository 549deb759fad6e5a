# SPDX-License-Identifier: Apache-2.0
"""How many ranks' keys the stages of a schedule have: what a method's name stands for."""

Sizes = tuple[int, ...]


def ring(ranks: int) -> Sizes:
    """Each rank's keys apart: least memory, most calls and merges."""
    return (1,) * ranks


def gathered(ranks: int) -> Sizes:
    """All at once: nothing is hidden, nothing merged."""
    return (ranks,)


def growing(ranks: int) -> Sizes:
    """1, 1, 1, 2, 3, 5, 8, ...: few merges, for links that are faster than the kernels."""
    found, left = [1], ranks - 1
    while left:
        found.append(min(left, max(sum(found[:-1]), 1)))
        left -= found[-1]
    return tuple(found)


def own_first(ranks: int) -> Sizes:
    """The own keys while all others arrive."""
    return (1, ranks - 1) if ranks > 1 else (1,)


def choices(ranks: int) -> list[Sizes]:
    """What method="auto" considers."""
    return list(dict.fromkeys(of(ranks) for of in (ring, growing, own_first, gathered)))

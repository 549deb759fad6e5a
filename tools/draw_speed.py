# SPDX-License-Identifier: Apache-2.0
"""Draws the README's picture of measured speed, and prints the numbers beside it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import figures  # noqa: E402
import plot  # noqa: E402  (as figures.py found it)
import tables  # noqa: E402

RESULTS = ROOT / "docs" / "lab" / "results"
FORWARD = RESULTS / "forward-h200-2026-11-27.jsonl"
BACKWARD = RESULTS / "backward-h200-2026-11-27.jsonl"
H100_FORWARD = RESULTS / "forward-rivals-h100-2026-11-26.jsonl"
RIVALS = {"official": "fa3-official", "FlashAttention-4": "fa4-sm90", "cuDNN": "cudnn"}
PICTURE = ROOT / "docs" / "figures" / "forward-h200.svg"
HIDDEN = 2048  # heads * head dim of the picture; other rows of the file are left out


def rows(path: Path = FORWARD) -> list[dict]:
    return [
        row
        for row in plot.read([path])
        if row["heads"] * row["head_dim"] == HIDDEN and row["kv_heads"] == row["heads"]
    ]


def summary(path: Path = FORWARD) -> dict:
    """The numbers that the pages quote: fa3's speed over that of others, where they have a time."""
    speed, found = tables.speeds(rows(path)), {}
    for name, engine in RIVALS.items():
        over = {cell: speed["hopper"][cell] / x for cell, x in speed.get(engine, {}).items()}
        if ratios := list(over.values()):
            found[name] = tables.mean(ratios)
            found |= {f"{name}, lowest": min(ratios), f"{name}, highest": max(ratios)}
    return found


def main():
    with plot.style():
        figure = plot.draw(plot.newest(rows()), "Forward attention on one H200, bf16")
        plot.save(figure, PICTURE, Source=figures.source(FORWARD))
    for path in (FORWARD, BACKWARD, H100_FORWARD):
        for what, ratio in summary(path).items():
            print(f"{path.stem}: {ratio:.3f} of {what}")
    print(PICTURE)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Draws the README's picture of measured speed, and prints the numbers beside it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import figures  # noqa: E402
import plot  # noqa: E402  (as figures.py found it)

RESULTS = ROOT / "docs" / "lab" / "results"
ROWS = RESULTS / "forward-h200-2026-11-22.jsonl"
FORWARD = RESULTS / "forward-rivals-h200-2026-11-26.jsonl"  # without FlashAttention-4
BACKWARD = RESULTS / "backward-rivals-h200-2026-11-26.jsonl"  # likewise
BACKWARD_BESIDE_FA4 = RESULTS / "backward-h200-2026-11-22.jsonl"
H100_FORWARD = RESULTS / "forward-rivals-h100-2026-11-26.jsonl"
H100_BACKWARD = RESULTS / "backward-rivals-h100-2026-11-26.jsonl"
H100_BACKWARD_256 = RESULTS / "backward-pairs-rivals-h100-2026-11-26.jsonl"
RIVALS = {"official": "fa3-official", "FlashAttention-4": "fa4-sm90", "cuDNN": "cudnn"}
PICTURE = ROOT / "docs" / "figures" / "forward-h200.svg"
HIDDEN = 2048  # heads * head dim of the picture; other rows of the file are left out


def rows(path: Path = ROWS) -> list[dict]:
    return [
        row
        for row in plot.read([path])
        if row["heads"] * row["head_dim"] == HIDDEN and row["kv_heads"] == row["heads"]
    ]


def summary(path: Path = ROWS, columns: tuple = (64, 128, 256)) -> dict:
    """The numbers that the pages quote: fa3's speed over that of others, where they have a time."""
    taken = [row for row in rows(path) if row["head_dim"] in columns]
    speed, found = figures.speeds(taken), {}
    for name, engine in RIVALS.items():
        over = {cell: speed["hopper"][cell] / x for cell, x in speed.get(engine, {}).items()}
        parts = {
            "": [*over.values()],
            ", 2k and longer": [r for cell, r in over.items() if cell[2] >= 2048],
            ", 512 and 1k": [r for cell, r in over.items() if cell[2] < 2048],
            ", 256 columns": [r for cell, r in over.items() if cell[0] == 256],
        }
        found |= {name + part: figures.mean(ratios) for part, ratios in parts.items() if ratios}
        if over:
            found |= {f"{name}, lowest": min(over.values()), f"{name}, highest": max(over.values())}
    return found


def main():
    with plot.style():
        figure = plot.draw(plot.newest(rows()), "Forward attention on one H200, bf16")
        plot.save(figure, PICTURE, Source=figures.source(ROWS))
    of_h100 = H100_FORWARD, H100_BACKWARD, H100_BACKWARD_256
    for path in (ROWS, FORWARD, BACKWARD, BACKWARD_BESIDE_FA4, *of_h100):
        for what, ratio in summary(path).items():
            print(f"{path.stem}: {ratio:.3f} of {what}")
    print(PICTURE)


if __name__ == "__main__":
    main()

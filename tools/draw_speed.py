# SPDX-License-Identifier: Apache-2.0
"""Draws the README's picture of measured speed, and prints the numbers beside it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import figures  # noqa: E402
import plot  # noqa: E402  (as figures.py found it)

ROWS = ROOT / "docs" / "lab" / "results" / "forward-h200-2026-11-22.jsonl"
BACKWARD = ROOT / "docs" / "lab" / "results" / "backward-h200-2026-11-22.jsonl"
PICTURE = ROOT / "docs" / "figures" / "forward-h200.svg"
HIDDEN = 2048  # heads * head dim of the picture; other rows of the file are left out


def rows(path: Path = ROWS) -> list[dict]:
    return [
        row
        for row in plot.read([path])
        if row["heads"] * row["head_dim"] == HIDDEN and row["kv_heads"] == row["heads"]
    ]


def summary(path: Path = ROWS) -> dict:
    """The numbers that the pages quote: fa3's speed over that of others."""
    speed = figures.speeds(rows(path))

    def over(engine):
        theirs = speed[engine]
        return {cell: tflops / theirs[cell] for cell, tflops in speed["hopper"].items()}

    official, fa4, cudnn = over("fa3-official"), over("fa4-sm90"), over("cudnn")
    return {
        "official": figures.mean(official.values()),
        "official, 2k and longer": figures.mean(r for c, r in official.items() if c[2] >= 2048),
        "official, 512 and 1k": figures.mean(r for c, r in official.items() if c[2] < 2048),
        "official, lowest": min(official.values()),
        "official, highest": max(official.values()),
        "FlashAttention-4": figures.mean(fa4.values()),
        "FlashAttention-4, lowest": min(fa4.values()),
        "cuDNN": figures.mean(cudnn.values()),
        "cuDNN, lowest": min(cudnn.values()),
    }


def main():
    with plot.style():
        figure = plot.draw(plot.newest(rows()), "Forward attention on one H200, bf16")
        plot.save(figure, PICTURE, Source=figures.source(ROWS))
    for path in (ROWS, BACKWARD):
        for what, ratio in summary(path).items():
            print(f"{path.stem}: {ratio:.3f} of {what}")
    print(PICTURE)


if __name__ == "__main__":
    main()

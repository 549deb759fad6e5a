# SPDX-License-Identifier: Apache-2.0
"""Draws how much memory attention needs beside its tensors: with stored scores, and with fa3.

    python3 examples/pictures/memory_against_length.py [--out FILE.svg]    # needs matplotlib

Nothing is computed: fa3.plan says what a call would need before it runs.
"""

import argparse
import re
from pathlib import Path

import numpy as np

import fa3

HEADS, DIM = 8, 64
LENGTHS = [2**n for n in range(10, 18)]  # 1k to 128k tokens


def workspace(length):
    """Bytes that a call needs beside Q, K, V, O and the LSE: the plan's own words."""
    q = np.zeros((1, length, HEADS, DIM), np.float32)  # the plan reads shapes, no elements
    return int(re.search(r"workspace (\d+) bytes", fa3.plan(q, q, q, causal=True))[1])


def scores(length):
    """Bytes of one float32 score for each head, query and key."""
    return HEADS * length * length * 4


def readable(size):
    unit = min(3, int(np.log2(size)) // 10)
    return f"{size / 1024**unit:.0f} {('B', 'KiB', 'MiB', 'GiB')[unit]}"


def draw(path):
    from matplotlib import pyplot

    ink = "#7d8790"  # readable on white and on black pages
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = dict.fromkeys((*names, "grid.color"), ink)
    pyplot.rcParams.update(
        style | {"savefig.transparent": True, "svg.hashsalt": "fa3", "svg.fonttype": "none"}
    )
    figure, panel = pyplot.subplots(figsize=(8, 4.4), layout="constrained")
    tensors = [4 * length * HEADS * DIM * 4 for length in LENGTHS]
    panel.plot(LENGTHS, [*map(scores, LENGTHS)], "o-", color="#868e96", label="stored scores")
    panel.plot(LENGTHS, tensors, "s--", color="#3b82f6", label="Q, K, V and O")
    panel.plot(LENGTHS, [*map(workspace, LENGTHS)], "o-", color="#e8590c", label="fa3's workspace")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(LENGTHS, [f"{length // 1024}k" for length in LENGTHS])
    ticks = [2**n for n in range(16, 44, 4)]
    panel.set_yticks(ticks, [readable(tick) for tick in ticks])
    panel.set_xlabel("tokens")
    panel.grid(alpha=0.35)
    panel.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("memory-against-length.svg"))
    out = parser.parse_args().out
    print("tokens  stored scores  fa3's workspace")
    for length in LENGTHS:
        sizes = readable(scores(length)), readable(workspace(length))
        print(f"{length:6d} {sizes[0]:>14} {sizes[1]:>16}")
    draw(out)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Draws the README's picture of measured speed, and prints the numbers beside it.

    python3 tools/draw_speed.py [ROWS.jsonl [PICTURE.svg]]

One panel for each head dim and mask, one line for each library, TFLOP/s over the sequence length.
Every point is a row of docs/results. The colours stand out on white and on black pages.
"""

import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs" / "results" / "forward-h200-2026-11-21.jsonl"
PICTURE = ROOT / "docs" / "figures" / "forward-h200.svg"

LIBRARIES = {  # engine of a row -> name, colour
    "hopper": ("fa3", "#e8590c"),
    "fa3-official": ("FlashAttention-3, official", "#3b82f6"),
    "cudnn": ("cuDNN", "#2f9e44"),
    "fa2": ("FlashAttention-2", "#9a6bd0"),
}
INK, GRID = "#74808c", "#74808c"
HEAD_DIMS, LENGTHS = (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)
HIDDEN = 2048  # heads * head dim of the table; other rows of the file are left out

WIDTH, PANEL_W, PANEL_H = 960, 270, 170
LEFT, TOP, GAP_X, GAP_Y = 52, 84, 34, 52
MOST = 900  # TFLOP/s at a panel's top


def read(path: Path) -> dict:
    """(engine, head dim, causal, length) -> TFLOP/s."""
    speed = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["heads"] * row["head_dim"] != HIDDEN or row["kv_heads"] != row["heads"]:
            continue
        if row["dtype"] == "bf16" and "q_scale" not in row and row["engine"] in LIBRARIES:
            key = row["engine"], row["head_dim"], row["causal"], row["seqlen_q"]
            speed[key] = row["tflops"]
    return speed


def ratios(speed: dict, other: str) -> dict:
    """(head dim, causal, length) -> how many times as fast as the other library fa3 is."""
    return {key[1:]: speed[key] / speed[(other, *key[1:])] for key in speed if key[0] == "hopper"}


def mean(values) -> float:
    """The geometric mean, which is right for ratios."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def summary(speed: dict) -> dict:
    """The numbers that the pages quote."""
    official, cudnn = ratios(speed, "fa3-official"), ratios(speed, "cudnn")
    return {
        "official": mean(official.values()),
        "official, 2k and longer": mean(r for key, r in official.items() if key[2] >= 2048),
        "official, 512 and 1k": mean(r for key, r in official.items() if key[2] < 2048),
        "official, lowest": min(official.values()),
        "official, highest": max(official.values()),
        "cuDNN": mean(cudnn.values()),
        "cuDNN, lowest": min(cudnn.values()),
    }


def text(x, y, words, size=12, anchor="start", fill=INK, weight="normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{fill}" font-weight="{weight}">{words}</text>'
    )


def panel(speed: dict, head_dim: int, causal: bool, x0: float, y0: float) -> list[str]:
    def at(index, tflops):
        return x0 + 14 + index * (PANEL_W - 28) / (len(LENGTHS) - 1), y0 + height(tflops)

    def height(tflops):
        return PANEL_H * (1 - tflops / MOST)

    title = f"head dim {head_dim}, {'causal' if causal else 'no mask'}"
    drawn = [text(x0, y0 - 8, title, 13, weight="bold")]
    for tflops in range(0, MOST + 1, 300):
        y = y0 + height(tflops)
        drawn.append(
            f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + PANEL_W}" y2="{y:.1f}" '
            f'stroke="{GRID}" stroke-opacity="0.35"/>'
        )
        drawn.append(text(x0 - 6, y + 4, tflops, 11, "end"))
    for index, length in enumerate(LENGTHS):
        label = f"{length // 1024}k" if length >= 1024 else length
        drawn.append(text(at(index, 0)[0], y0 + PANEL_H + 16, label, 11, "middle"))
    for engine, (_, colour) in reversed(LIBRARIES.items()):
        points = [at(i, speed[engine, head_dim, causal, n]) for i, n in enumerate(LENGTHS)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        width = 3 if engine == "hopper" else 1.8
        drawn.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        )
        drawn += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width}" fill="{colour}"/>' for x, y in points
        ]
    for index, length in enumerate(LENGTHS):
        tflops = speed["hopper", head_dim, causal, length]
        x, y = at(index, tflops)
        drawn.append(text(x, y - 8, f"{tflops:.0f}", 11, "middle", LIBRARIES["hopper"][1], "bold"))
    return drawn


def draw(speed: dict) -> str:
    height = TOP + 2 * PANEL_H + GAP_Y + 44
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
        "<title>Forward attention on an H200: TFLOP/s by head dim, mask and length</title>",
        text(LEFT, 24, "Forward attention on one H200, bf16, TFLOP/s", 16, weight="bold"),
    ]
    x = LEFT
    for name, colour in LIBRARIES.values():
        drawn.append(f'<rect x="{x}" y="40" width="18" height="4" fill="{colour}"/>')
        drawn.append(text(x + 24, 46, name, 13, fill=colour))
        x += 54 + 7.4 * len(name)
    for row, causal in enumerate((False, True)):
        for column, head_dim in enumerate(HEAD_DIMS):
            x0, y0 = LEFT + column * (PANEL_W + GAP_X), TOP + row * (PANEL_H + GAP_Y)
            drawn += panel(speed, head_dim, causal, x0, y0)
    drawn.append(
        text(LEFT, height - 8, "sequence length; batch * length = 16k, heads * dim = 2048", 11)
    )
    return "\n".join(drawn) + "\n</svg>\n"


def main() -> int:
    rows = Path(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    picture = Path(sys.argv[2]) if len(sys.argv) > 2 else PICTURE
    speed = read(rows)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(draw(speed))
    for what, ratio in summary(speed).items():
        print(f"{ratio:.3f} of {what}")
    print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the FlashAttention-3 paper from JSON lines of fa3 bench.

One figure for each pass, type and machine; one panel for each head dim, with and without a causal
mask; over the sequence length, a bar for each contender with its speed written on it.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

UNIT = {True: (1.0, "TFLOP/s"), False: (1e3, "GFLOP/s")}
TERA_FROM = 1.0  # from here on figures speak of TFLOP/s


def main(arguments):
    parser = argparse.ArgumentParser(prog="fa3 plot", description=__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="JSON lines of fa3 bench --json")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the figures")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    return run(parser.parse_args(arguments))


def run(arguments):
    try:
        import matplotlib

        matplotlib.use("Agg")
    except ModuleNotFoundError:
        print("plot: expected matplotlib; pip install fa3[plot]")
        return 2
    records = read(arguments.results)
    if not records:
        print("plot: expected at least one result in", *arguments.results)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    figures = grouped(records, "pass", "dtype", "machine")
    for (direction, dtype, machine), members in sorted(figures.items()):
        same_type = [key for key in figures if key[:2] == (direction, dtype)]
        suffix = f"_{sorted(same_type).index((direction, dtype, machine))}" * (len(same_type) > 1)
        path = arguments.out / f"attention_{direction}_{dtype}{suffix}.{arguments.format}"
        figure = draw(members, f"attention {direction}, {dtype} ({machine})")
        figure.savefig(path, dpi=150)
        print(path)
    return 0


def read(paths):
    """The newest record of each case and contender."""
    newest = {}
    for path in paths:
        for line in filter(str.strip, path.read_text().splitlines()):
            record = json.loads(line)
            names = ("engine", "pass", "dtype", "machine", "head_dim", "causal", "seqlen_q")
            newest[tuple(record[name] for name in names)] = record
    return list(newest.values())


def grouped(records, *names):
    groups = defaultdict(list)
    for record in records:
        groups[tuple(record[name] for name in names)].append(record)
    return groups


def draw(records, title):
    from matplotlib.figure import Figure

    panels = grouped(records, "causal", "head_dim")
    columns = sorted({head_dim for _, head_dim in panels})
    rows = sorted({causal for causal, _ in panels})
    contenders = list(dict.fromkeys(record["engine"] for record in records))
    size = (1.5 + 5.5 * len(columns), 0.7 + 3.3 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for (causal, head_dim), members in panels.items():
        panel = axes[rows.index(causal)][columns.index(head_dim)]
        draw_panel(panel, members, contenders)
        panel.set_title(f"head dim {head_dim}, {'causal' if causal else 'no mask'}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title)
    return figure


def draw_panel(panel, records, contenders):
    scale, unit = UNIT[max(record["tflops"] for record in records) >= TERA_FROM]
    lengths = sorted({record["seqlen_q"] for record in records})
    speed = {(r["engine"], r["seqlen_q"]): scale * r["tflops"] for r in records}
    width = 0.8 / len(contenders)
    for index, name in enumerate(contenders):
        at = [x + (index - (len(contenders) - 1) / 2) * width for x in range(len(lengths))]
        heights = [speed.get((name, length), 0.0) for length in lengths]
        bars = panel.bar(at, heights, width, label=name)
        marks = [f"{height:.3g}" if height else "none" for height in heights]
        panel.bar_label(bars, marks, fontsize=6, rotation=90, padding=2)
    panel.margins(y=0.2)
    panel.set_xticks(range(len(lengths)), [short(length) for length in lengths])
    panel.set_xlabel("sequence length")
    panel.set_ylabel(unit)
    panel.spines[["top", "right"]].set_visible(False)


def short(length):
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)

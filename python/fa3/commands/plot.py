# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the FlashAttention-3 paper from the JSON lines of fa3 bench.

One figure for each pass, type and machine; one panel for each head dim, with and without a causal
mask; over the sequence length, a bar for each contender with its speed written on it. Pictures are
readable on white and on black pages.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

UNIT = {True: (1.0, "TFLOP/s"), False: (1e3, "GFLOP/s")}
TERA_FROM = 1.0  # from here on figures speak of TFLOP/s

# Colours that stand out on white and on black; fa3 in its own wherever it runs.
NAMES = {
    "hopper": ("fa3", "#e8590c"),
    "cpu": ("fa3", "#e8590c"),
    "fa3": ("fa3", "#e8590c"),
    "hopper-e4m3": ("fa3, e4m3", "#0c8599"),
    "cpu-e4m3": ("fa3, e4m3", "#0c8599"),
    "hopper-e4m3-centred": ("fa3, e4m3, centred", "#d6336c"),
    "cpu-e4m3-centred": ("fa3, e4m3, centred", "#d6336c"),
    "fa3-official": ("FlashAttention-3, official", "#3b82f6"),
    "cudnn": ("cuDNN", "#2f9e44"),
    "fa2": ("FlashAttention-2", "#9a6bd0"),
    "fa4-sm90": ("FlashAttention-4", "#d9a400"),
    "triton": ("Triton (FlexAttention)", "#b08800"),
    "sdpa": ("PyTorch's own", "#3b82f6"),
    "jax-cudnn": ("jax.nn, cuDNN", "#2f9e44"),
    "tokamax": ("tokamax, Mosaic GPU", "#3b82f6"),
    "fa3-fp8": ("fa3.attention_fp8", "#0c8599"),
    "FlexAttention": ("Triton (FlexAttention)", "#b08800"),
    "FlashInfer": ("FlashInfer", "#3b82f6"),
    "torch-cpu": ("PyTorch", "#3b82f6"),
    "standard": ("standard attention", "#868e96"),
    "matmul": ("matrix product", "#868e96"),
    "copy": ("copy", "#868e96"),
}
OTHERS = ("#74b816", "#c2255c", "#1098ad", "#ae3ec9")
INK = "#7d8790"
STYLE = (
    {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "fa3",  # the same rows give the same file
        "savefig.transparent": True,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.alpha": 0.35,
        "legend.frameon": False,
    }
    | {f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")}
    | {f"axes.{part}color": INK for part in ("edge", "label", "title")}
)


def main(arguments):
    parser = argparse.ArgumentParser(prog="fa3 plot", description=__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="JSON lines of fa3 bench --json")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the figures")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    return run(parser.parse_args(arguments))


def run(arguments):
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        return refused("expected matplotlib; run: pip install 'matplotlib>=3.7'")
    try:
        records = newest(read(arguments.results))
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return refused(f"{error.filename}: {error.strerror}")
    except ValueError as error:
        return refused(str(error))
    if not records:
        return refused(f"expected at least one result in {' '.join(map(str, arguments.results))}")
    figures = grouped(records, "pass", "dtype", "machine")
    for (direction, dtype, machine), members in sorted(figures.items()):
        same_type = [key for key in figures if key[:2] == (direction, dtype)]
        suffix = f"_{sorted(same_type).index((direction, dtype, machine))}" * (len(same_type) > 1)
        path = arguments.out / f"attention_{direction}_{dtype}{suffix}.{arguments.format}"
        with style():
            save(draw(members, f"attention {direction}, {dtype} ({machine})"), path)
        print(path)
    return 0


def refused(sentence):
    print(f"fa3 plot: {sentence}", file=sys.stderr)
    return 2


def read(paths):
    """The rows of JSON lines files. ValueError where a line is none."""
    rows = []
    for path in paths:
        text = path.read_text(errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                rows.append(read_row(line, f"{path}, line {number}"))
    return rows


def read_row(line, place):
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"{place}: expected a JSON line of fa3 bench --json, got {line[:40]!r}")
    return row


def newest(rows):
    """The newest timed record of each case and contender."""
    names = ("engine", "pass", "dtype", "machine", "head_dim", "causal", "seqlen_q")
    timed = [row for row in rows if {"tflops", *names} <= row.keys()]
    timed = [row for row in timed if row["pass"] in ("fwd", "bwd")]
    timed = [row for row in timed if row.get("variant", "default") == "default"]
    return list({tuple(row[name] for name in names): row for row in timed}.values())


def grouped(records, *names):
    groups = defaultdict(list)
    for record in records:
        groups[tuple(record[name] for name in names)].append(record)
    return groups


def style():
    import matplotlib

    return matplotlib.rc_context(STYLE)


def save(figure, path, **about):
    """`about`: metadata of an SVG, such as Source."""
    metadata = {"Date": None, **about} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)


def look(engines):
    """Engine -> (name, colour), in the order of NAMES, others after them."""
    engines = list(engines)
    known = [name for name in NAMES if name in engines]
    others = [name for name in dict.fromkeys(engines) if name not in NAMES]
    colours = {name: (name, OTHERS[at % len(OTHERS)]) for at, name in enumerate(others)}
    return {name: NAMES[name] for name in known} | colours


def draw(records, title):
    from matplotlib.figure import Figure

    panels = grouped(records, "causal", "head_dim")
    columns = sorted({head_dim for _, head_dim in panels})
    rows = sorted({causal for causal, _ in panels})
    contenders = look(record["engine"] for record in records)
    size = (0.5 + 4.1 * len(columns), 0.9 + 2.6 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for row, causal in enumerate(rows):
        for column, head_dim in enumerate(columns):
            panel = axes[row][column]
            panel.set_title(f"head dim {head_dim}, {'causal' if causal else 'no mask'}")
            if (causal, head_dim) in panels:
                draw_panel(panel, panels[causal, head_dim], contenders)
            else:
                panel.set_axis_off()
                panel.text(0.5, 0.5, "not measured", ha="center", transform=panel.transAxes)
    legend(figure, contenders)
    figure.suptitle(title)
    return figure


def legend(figure, contenders):
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in contenders.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def draw_panel(panel, records, contenders):
    scale, unit = UNIT[max(record["tflops"] for record in records) >= TERA_FROM]
    lengths = sorted({record["seqlen_q"] for record in records})
    speed = {(r["engine"], r["seqlen_q"]): scale * r["tflops"] for r in records}
    width = 0.84 / len(contenders)
    for index, (engine, (_, colour)) in enumerate(contenders.items()):
        shift = (index - (len(contenders) - 1) / 2) * width
        # What did not run has no bar: a bar of height 0 would be a measurement.
        at = {x + shift: speed.get((engine, n)) for x, n in enumerate(lengths)}
        there = {x: height for x, height in at.items() if height is not None}
        bars = panel.bar(there.keys(), there.values(), width, color=colour)
        marks = [f"{height:.3g}" for height in there.values()]
        panel.bar_label(bars, marks, fontsize=6.5, rotation=90, padding=2, color=INK)
        for x in at.keys() - there.keys():
            panel.text(x, 0, " did not run", fontsize=6, rotation=90, ha="center", va="bottom")
    panel.margins(y=0.2)
    panel.set_xticks(range(len(lengths)), [short(length) for length in lengths])
    panel.set_xlabel("sequence length")
    panel.set_ylabel(unit)


def short(length):
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)

# SPDX-License-Identifier: Apache-2.0
"""Figures of measured rows. A function returns a figure, and knows nothing but the rows. Next:
tables.py."""

import hashlib
import math
import re
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python" / "fa3" / "commands"))
import plot  # noqa: E402  (what `fa3 plot` draws, and the look of all pictures)


def source(path: Path) -> str:
    """What a figure was drawn from, as it says itself."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return f"{path.name} sha256 {digest}"


# ---- Speed by head dim, mask and length ----


def bars(rows: list[dict]):
    return plot.draw(plot.newest(rows), title="")


# ---- One value over another ----


def lines(panels: dict, x: str, y: str, log_y: bool):
    """panels: title -> list of (name, colour, dashes, [(x, y, filled)])."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(max(6.5, 0.8 + 3.8 * len(panels)), 3.6), layout="constrained")
    drawn = {}
    for panel, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0],
                                      panels.items(), strict=True):  # fmt: skip
        drawn |= {name: (colour, dashes) for name, colour, dashes, _ in curves}
        for _, colour, dashes, points in reversed(curves):  # the first one on top
            xs, ys, filled = zip(*sorted(points), strict=True)
            panel.plot(xs, ys, dashes, color=colour, lw=1.6)
            for at, value, solid in zip(xs, ys, filled, strict=True):
                panel.plot(at, value, "o", color=colour, mfc=colour if solid else "none", ms=4.5)
        ticks = sorted({point[0] for curve in curves for point in curve[3]})
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [plot.short(tick) for tick in ticks])
        panel.minorticks_off()
        if log_y:
            panel.set_yscale("log")
        panel.set_title(title)
        panel.set_xlabel(x)
        panel.set_ylabel(y)
    handles = [Line2D([], [], color=c, ls=d, label=name) for name, (c, d) in drawn.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4))
    return figure


def curves(rows, key, point) -> list:
    """One curve for each key(row) = (engine, what else tells curves apart, dashes)."""
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(point(row))
    look = plot.look(engine for engine, _, _ in groups)
    return [
        (" ".join(filter(None, (look[engine][0], other))), look[engine][1], dashes, points)
        for (engine, other, dashes), points in groups.items()
    ]


def errors(rows: list[dict]):
    dashes = {"fp16": "-", "bf16": "--", "e4m3": ":"}
    panels = {}
    for kind, members in plot.grouped([r for r in rows if "rmse" in r], "data").items():
        once = {(r["engine"], r["dtype"], r["seqlen_k"]): r for r in members}.values()
        panels[kind[0]] = curves(
            once,
            lambda r: (r["engine"], r["dtype"] * (r["dtype"] != "e4m3"), dashes[r["dtype"]]),
            lambda r: (r["seqlen_k"], r["rmse"], True),
        )
    return lines(panels, "keys", "RMSE", log_y=True)


def memory(rows: list[dict]):
    panels = {}
    for direction, members in plot.grouped([r for r in rows if "peak_bytes" in r], "pass").items():
        panels[{"fwd": "forward", "bwd": "forward and backward"}[direction[0]]] = curves(
            members,
            lambda r: (r["engine"], "", "-"),
            lambda r: (r["seqlen_q"], r["peak_bytes"] / 2**30, not r["computed"]),
        )
    return lines(panels, "sequence length", "GiB", log_y=True)


def decoding(rows: list[dict]):
    panels = {}
    timed = [r for r in rows if "gbytes_per_s" in r]
    for batch, members in plot.grouped(timed, "batch").items():
        title = f"{batch[0]} sequence{'s' * (batch[0] > 1)}"
        panels[title] = curves(
            members,
            lambda r: (r["engine"], "", "-"),
            lambda r: (r["seqlen_k"], r["gbytes_per_s"], True),
        )
    return lines(panels, "keys", "GB/s", log_y=False)


def prefill(rows: list[dict]):
    panels = {}
    for size, members in plot.grouped([r for r in rows if "median_ms" in r], "size").items():
        panels[f"GPT-2 {size[0]}"] = curves(
            members,
            lambda r: (r["engine"], "", "-"),
            lambda r: (r["context"], r["median_ms"], True),
        )
    return lines(panels, "tokens of the prompt", "ms", log_y=True)


# ---- What GPUs did, and when ----

ATTENTION = re.compile("forward|backward|attend", re.IGNORECASE)
OF_LANES = {"attention": "#2a78d6", "other kernels": "#9a9890", "copies": "#eb6834"}


def timeline(rows: list[dict]):
    """A panel for each call: a lane of kernels and one of copies for each rank."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    calls = plot.grouped(rows, "engine", "tokens", "packed")
    figure = Figure(figsize=(9, 2.2 * len(calls) + 0.6), layout="constrained")
    panels = figure.subplots(len(calls), 1, squeeze=False)[:, 0]
    for panel, ((engine, tokens, packed), members) in zip(panels, calls.items(), strict=True):
        lanes = sorted({(row["rank"], row["lane"]) for row in members}, key=lambda x: (x[0], x[1]))
        for row in members:
            kind = "attention" if ATTENTION.search(row["name"]) else "other kernels"
            colour = OF_LANES["copies" if row["lane"] == "copies" else kind]
            at = lanes.index((row["rank"], row["lane"]))
            span = row["begin_us"] / 1e3, (row["end_us"] - row["begin_us"]) / 1e3
            panel.broken_barh([span], (at - 0.4, 0.8), color=colour)
        panel.set_yticks(range(len(lanes)), [f"GPU {rank}, {lane}" for rank, lane in lanes])
        panel.invert_yaxis()
        panel.grid(visible=False, axis="y")
        queries, keys = members[0]["heads"]
        what = f"{engine}, {tokens} tokens a GPU, {queries}:{keys} heads"
        panel.set_title(what + ", packed" * packed)
    panels[-1].set_xlabel("ms, forward and backward")
    handles = [Patch(color=colour, label=name) for name, colour in OF_LANES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


# ---- Training with several attentions (convergence.py) ----

OF_RUNS = {
    "bf16": "#e8590c",
    "sdpa": "#3b82f6",
    "fp8": "#0c8599",
    "quantized": "#74b816",
    "recomputed": "#868e96",
    "no-mean": "#c2255c",
    "half-dk": "#ae3ec9",
}


def convergence(rows: list[dict]):
    """Losses, their distance from the bf16 run of the seed, and gradients by layer."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    losses, apart, layers = figure.subplots(1, 3)
    runs = plot.grouped([r for r in rows if r["what"] == "loss"], "attention", "seed")
    for (attention, seed), members in runs.items():
        tokens = [row["tokens"] / 1e6 for row in members]
        colour, base = OF_RUNS[attention], runs.get(("bf16", seed))
        losses.plot(tokens, [row["held_out"] for row in members], color=colour, lw=1)
        if base and attention != "bf16":
            both = zip(members, base, strict=True)
            apart.plot(tokens, [a["held_out"] - b["held_out"] for a, b in both], color=colour, lw=1)
    compared = [row for row in rows if row["what"] == "gradient"]
    last = max(row["step"] for row in compared)
    for row in compared:
        if row["step"] == last:
            for which, dashes in (("q", "-"), ("k", "--"), ("v", ":")):
                layers.plot(row["error"][which], dashes, color=OF_RUNS[row["attention"]], lw=1.2)
    layers.set_yscale("log")
    losses.set(title="held-out loss", xlabel="million tokens", ylabel="nats a byte")
    apart.set_yscale("symlog", linthresh=0.05)
    apart.set(title="minus bf16, same seed", xlabel="million tokens", ylim=(-2, 2))
    apart.set_yticks([-1, -0.1, 0, 0.1, 1], ["-1", "-0.1", "0", "0.1", "1"])
    layers.set(title=f"error of gradients, step {last}", xlabel="layer (q -, k --, v :)")
    used = dict.fromkeys(attention for attention, _ in runs)
    handles = [Line2D([], [], color=OF_RUNS[name], label=name) for name in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


# ---- The order of a step's instructions (tools/instruction_order.py) ----

LANES = {  # letters of an order, what they are, colour
    "Q": ("Q K^T", "#2a78d6"),
    "P": ("P V", "#e8590c"),
    "f": ("FFMA", "#9a9890"),
    "x": ("exponential", "#2f9e44"),
    "a": ("FADD", "#9a9890"),
    "c": ("to 16 bits", "#ae3ec9"),
    "bt.": ("other", "#c8c6be"),
}


def instruction_order(rows: list[dict]):
    """A panel for each kernel: a mark for each instruction, and bands while products are open."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.9 * len(rows) + 0.3), layout="constrained")
    for panel, row in zip(figure.subplots(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        order = row["order"]
        waits = {"Q": order.index("1"), "P": order.index("0")}
        for lane, (letters, (_, colour)) in enumerate(LANES.items()):
            at = [place for place, letter in enumerate(order) if letter in letters]
            panel.eventplot([at], lineoffsets=lane, linelengths=0.8, linewidths=1.3, colors=colour)
            if wait := waits.get(letters):
                panel.axvspan(at[0], wait, color=colour, alpha=0.12, lw=0)
                panel.plot([wait], [lane], ">", color=colour, ms=7)
        panel.set_yticks(range(len(LANES)), [name for name, _ in LANES.values()])
        panel.invert_yaxis()
        panel.grid(visible=False)
        panel.set_xlim(-1, len(order))
        panel.set_title(f"{row['head_dim']} columns, tiles of {row['tile']}", fontsize=10)
    panel.set_xlabel("instructions of a consumer warp in one step, in the order of issue")
    return figure


# ---- Block masks ----

OF_BLOCKS = {".": None, "+": "#f0a36b", "#": "#e8590c"}  # hidden, seen in part, full
OF_PASSES = {"fwd": "forward", "bwd": "backward"}


def mask_kinds(rows: list[dict]):
    """A column for each kind whose blocks are known: these, and both passes' speed beside the
    rivals', at the largest head dim."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    there = {row["engine"] for row in rows}
    looks = plot.look(x for x in ("fa3", "FlexAttention", "FlashInfer") if x in there)
    step = 0.8 / len(looks)
    widest = max(row["head_dim"] for row in rows)
    known = {row["case"] for row in rows if "map" in row}
    shown = [row for row in rows if row["head_dim"] == widest and row["case"] in known]
    kinds = plot.grouped(shown, "case")
    figure = Figure(figsize=(2.1 * len(kinds) + 0.5, 4.2), layout="constrained")
    panels = figure.subplots(2, len(kinds), squeeze=False, height_ratios=(1.3, 1), sharey="row")
    colours = ListedColormap([colour or "none" for colour in OF_BLOCKS.values()])
    for (above, below), ((case,), members) in zip(panels.T, kinds.items(), strict=True):
        blocks = next(row["map"] for row in members if "map" in row)
        above.imshow([[list(OF_BLOCKS).index(x) for x in line] for line in blocks], colours,
                     vmin=0, vmax=len(OF_BLOCKS) - 1, interpolation="nearest")  # fmt: skip
        above.set(title=case, xticks=[], yticks=[])
        above.grid(visible=False)
        above.spines[["top", "right"]].set_visible(True)
        found = {(row["pass"], row["engine"]): row["tflops"] for row in members if "tflops" in row}
        for (at, which), (number, engine) in product(enumerate(OF_PASSES), enumerate(looks)):
            if (which, engine) in found:  # what did not run has no bar
                place, colour = at + step * (number - (len(looks) - 1) / 2), looks[engine][1]
                bar = below.bar(place, found[which, engine], 0.95 * step, color=colour)
                below.bar_label(bar, fmt="%.0f", fontsize=8, color=plot.INK)
        below.set_xticks(range(len(OF_PASSES)), OF_PASSES.values())
    panels[0, 0].set_ylabel("queries, down")
    panels[1, 0].set_ylabel("TFLOP/s")
    plot.legend(figure, looks)
    return figure


def cases(rows: list[dict]):
    from matplotlib.figure import Figure

    timed = [row for row in rows if "tflops" in row]
    scale, unit = plot.UNIT[max(row["tflops"] for row in timed) >= plot.TERA_FROM]
    groups = plot.grouped(timed, "heads", "kv_heads", "head_dim")
    looks = plot.look([row["engine"] for row in timed])
    thickness = 0.8 / len(looks)
    columns = min(2, len(groups))
    lines = math.ceil(len(groups) / columns)
    most = max(len({row["case"] for row in members}) for members in groups.values())
    figure = Figure(
        figsize=(6.5 * columns, lines * (0.8 + 0.2 * (1 + len(looks)) * most)), layout="constrained"
    )
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel, ((heads, kv_heads, dim), members) in zip(panels, groups.items(), strict=False):
        names = list(dict.fromkeys(row["case"] for row in members))
        for number, (engine, (label, colour)) in enumerate(looks.items()):
            own = [row for row in members if row["engine"] == engine]
            speed = [scale * row["tflops"] for row in own]
            places = [names.index(row["case"]) + (number + 0.5) * thickness - 0.4 for row in own]
            drawn = panel.barh(places, speed, thickness, color=colour, label=label)
            panel.bar_label(drawn, [f"{x:.3g}" for x in speed], padding=3, color=plot.INK)
        panel.set_yticks(range(len(names)), names)
        panel.invert_yaxis()
        panel.margins(x=0.15)
        panel.grid(False)
        panel.set_title(f"{heads}:{kv_heads} heads of {dim}, {unit}")
    for panel in panels[len(groups) :]:
        panel.set_axis_off()
    if len(looks) > 1:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure

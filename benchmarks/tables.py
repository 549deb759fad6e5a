# SPDX-License-Identifier: Apache-2.0
"""Tables of measured rows. A function returns lines of Markdown, and knows nothing but the rows."""

import math
from collections import defaultdict

from figures import OF_PASSES, plot

OURS = ("hopper", "cpu", "fa3")


def name_of(engine: str) -> str:
    return plot.look([engine])[engine][0]


def mean(values) -> float:
    """The geometric mean, which is right for ratios."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def table(titles: list[str], rows: list[list]) -> list[str]:
    lines = [titles, ["---"] * len(titles), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def speeds(rows: list[dict]) -> dict:
    """engine -> (head dim, causal, length) -> TFLOP/s."""
    found = defaultdict(dict)
    for row in plot.newest(rows):
        found[row["engine"]][row["head_dim"], row["causal"], row["seqlen_q"]] = row["tflops"]
    return found


def ratios(rows: list[dict]) -> list[str]:
    """fa3 over every other contender, and what the machine itself did beside them."""
    found = speeds(rows)
    ours = next((found[name] for name in OURS if name in found), {})
    lines = []
    for engine, theirs in found.items():
        shared = {cell: ours[cell] / theirs[cell] for cell in ours.keys() & theirs.keys()}
        if shared and theirs is not ours:
            worst, best = min(shared.values()), max(shared.values())
            numbers = [f"{x:.3f}" for x in (mean(shared.values()), worst, best)]
            lines.append([name_of(engine), *numbers, len(shared)])
    words = table(["fa3's speed over that of", "mean", "lowest", "highest", "cells"], lines)
    return [*words, "", *ceilings(rows)]


def ceilings(rows: list[dict]) -> list[str]:
    def spread(engine, column):
        values = sorted(r[column] for r in rows if r["engine"] == engine and column in r)
        return values and (values[len(values) // 2], values[0], values[-1])

    lines = []
    for engine, column, unit in (("matmul", "tflops", "TFLOP/s"), ("copy", "gbytes_per_s", "GB/s")):
        if found := spread(engine, column):
            middle, least, most = (f"{value:.3g}" for value in found)
            lines.append(f"{engine} {middle} {unit} ({least} to {most})")
    clocks = [f"{r['sm_clock_mhz']:.0f}" for r in rows if "sm_clock_mhz" in r]
    watts = [r["watts"] for r in rows if "watts" in r]
    if clocks:
        lines.append(f"SM clock {min(clocks, key=float)} to {max(clocks, key=float)} MHz")
        lines.append(f"{min(watts):.0f} to {max(watts):.0f} W")
    return ["In the same run: " + ", ".join(lines) + "."] if lines else []


def power(rows: list[dict]) -> list[str]:
    lines = []
    for row in rows:
        if "tflops" not in row:
            continue
        where = "" if row["pass"] == "ceiling" else mask_of(row)
        columns = {"tflops": 0, "sm_clock_mhz": 0, "watts": 0, "tflops_per_watt": 2}
        numbers = [f"{row[c]:.{digits}f}" if c in row else "" for c, digits in columns.items()]
        lines.append([name_of(row["engine"]), where, *numbers])
    return table(["contender", "case", "TFLOP/s", "MHz", "W", "TFLOP/s per W"], lines)


def mask_of(row: dict) -> str:
    return f"d{row['head_dim']} {'causal' if row['causal'] else 'full'}"


def table3(rows: list[dict]) -> list[str]:
    found = [r for r in rows if "rmse" in r and r["data"] == "outliers" and r["seqlen_k"] == 4096]
    found = found or [r for r in rows if "rmse" in r and r["data"] == "outliers"]
    once = {(r["engine"], r["dtype"]): r for r in found}
    head = f"outliers, {found[0]['seqlen_k']} keys" if found else "outliers"
    cells = [[name_of(engine), dtype, f"{r['rmse']:.2e}"] for (engine, dtype), r in once.items()]
    return table([head, "type", "RMSE"], cells)


def mask_ratios(rows: list[dict]) -> list[str]:
    """TFLOP/s of fa3 and how many times each rival's, by mask, head dim and pass."""
    speed = {
        (r["case"], r["head_dim"], r["pass"], r["engine"]): r["tflops"]
        for r in rows
        if "tflops" in r
    }
    columns = list(dict.fromkeys(key[1:3] for key in speed))
    rivals = [x for x in ("FlexAttention", "FlashInfer") if any(key[3] == x for key in speed)]
    found = []
    for case in dict.fromkeys(key[0] for key in speed):
        cell = [case]
        for column in columns:
            ours = speed.get((case, *column, "fa3"))
            theirs = [speed.get((case, *column, x)) for x in rivals]
            over = ", ".join(f"{ours / x:.2f}" for x in theirs if ours and x)
            cell.append(f"{ours:.0f}" + f" ({over})" * bool(over) if ours else "")
        found.append(cell)
    titles = [f"d{dim} {OF_PASSES[which]}" for dim, which in columns]
    return table([f"TFLOP/s (over {', '.join(rivals)})", *titles], found)


def case_ratios(rows: list[dict]) -> list[str]:
    """fa3's speed over another contender's, case by case; nothing where it ran alone."""
    speed = {
        (r["engine"], r["case"], r["heads"], r["kv_heads"], r["head_dim"]): r["tflops"]
        for r in rows
        if "tflops" in r
    }
    others = sorted({engine for engine, *_ in speed} - set(OURS))
    heads = list(dict.fromkeys(key[2:] for key in speed))
    lines = []
    for other in others:
        titles = [f"over {name_of(other)}", *(f"{q}:{k} heads of {d}" for q, k, d in heads)]
        cells = []
        for case in dict.fromkeys(key[1] for key in speed):
            pairs = [(speed.get(("fa3", case, *h)), speed.get((other, case, *h))) for h in heads]
            if any(all(pair) for pair in pairs):
                cells.append([case, *(f"{a / b:.2f}" if a and b else "" for a, b in pairs)])
        lines += [""] * bool(lines) + table(titles, cells)
    return lines


def models(rows: list[dict]) -> list[str]:
    base = "standard" if any(row["engine"] == "standard" for row in rows) else "sdpa"
    cells = plot.grouped(rows, "size", "batch", "context")
    found = []
    for (size, batch, context), members in cells.items():
        reference = next((r.get("median_ms") for r in members if r["engine"] == base), None)
        for row in members:
            if "median_ms" in row:
                over = f"{name_of(base)} does not run"
                if reference:
                    over = f"{reference / row['median_ms']:.2f}"
                peak = f"{row['peak_bytes'] / 2**30:.1f}"
                cell = [f"{row['median_ms']:.1f}", f"{row['tokens_per_second']:,.0f}", over, peak]
            else:
                cell = ["does not run", "", "", ""]
            found.append([size, f"{batch} x {context}", name_of(row["engine"]), *cell])
    over = "over standard" if base == "standard" else f"over {name_of(base)}"
    titles = ["model", "batch x tokens", "attention", "ms", "tokens/s", over, "peak GiB"]
    return table(titles, found)


def steps(rows: list[dict]) -> list[str]:
    """Whole models of Transformers (llama.py)."""
    found = []
    for row in rows:
        padded = ", padded" * row["padded"]
        what = [row["layers"], row["pass"] + padded, f"{row['batch']} x {row['context']}"]
        mode = row["compiled"]
        what.append(row["engine"] + (f", compiled ({mode})" if mode else ""))
        if "median_ms" in row:
            times = [f"{row[name]:.1f}" for name in ("median_ms", "host_ms")]
            cell = [*times, f"{row['peak_bytes'] / 2**30:.1f}", row.get("waits", "")]
            cell.append(row.get("graph_breaks", ""))
        else:
            cell = ["does not run", "", "", "", ""]
        found.append([*what, *cell])
    titles = ["layers", "work", "batch x tokens", "attention", "ms", "host's ms", "peak GiB",
              "waits", "graph breaks"]  # fmt: skip
    return table(titles, found)


def cells(rows: list[dict]) -> list[str]:
    """TFLOP/s of every contender by mask and length."""
    found = defaultdict(dict)
    for row in rows:
        if row["pass"] in OF_PASSES and "tflops" in row:
            found[row["causal"], row["seqlen_q"]][row["engine"]] = row["tflops"]
    engines = list(dict.fromkeys(engine for speeds in found.values() for engine in speeds))
    lines = [
        [f"{'causal' if causal else 'full'} {length}",
         *(f"{speeds[x]:.0f}" if x in speeds else "" for x in engines)]
        for (causal, length), speeds in sorted(found.items())
    ]  # fmt: skip
    words = table(["TFLOP/s", *map(name_of, engines)], lines)
    return [*words, "", *ratios(rows)] if len(engines) > 1 else words


def ablation(rows: list[dict]) -> list[str]:
    paper = {"ping-pong": 661, "no pipelining": 582, "no producer": 570}  # on an H100
    cells = [
        [r["variant"], r["head_dim"], r["tile"], r.get("stages", ""),
         f"{r['tflops']:.0f}" if "tflops" in r else "wrong", r.get("spilled_bytes", ""),
         paper.get(r["variant"], "")]
        for r in rows
    ]  # fmt: skip
    titles = ["variant", "head dim", "tile", "stages", "TFLOP/s", "bytes spilled", "paper, H100"]
    return table(titles, cells)


def quantizer(rows: list[dict]) -> list[str]:
    columns = ("gbytes_per_s", "copy_gbytes_per_s")
    cells = [[r["case"], r["head_dim"], *(f"{r[c]:.0f}" for c in columns)] for r in rows]
    return table(["case", "head dim", "GB/s", "copy"], cells)

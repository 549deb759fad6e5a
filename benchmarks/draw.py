# SPDX-License-Identifier: Apache-2.0
"""Pages and figures of what `make report` measured, from docs/lab/results/MACHINE alone.

    python3 benchmarks/draw.py      # all of them again; nothing is measured

Next: pieces.py, which says what there is, and figures.py and tables.py, which show it.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import figures
import plot
import tables
from pieces import Piece, pieces

DOCS = figures.ROOT / "docs" / "lab"


AGE = [
    "Each section names the commit and the day of its rows. Its numbers are those of that commit's",
    'kernels. "-dirty" means that the checkout had changes beside the commit.',
    "[Performance](../performance.md) has the current numbers.",
]


@dataclass(frozen=True)
class Recorded:
    """Rows that no piece can measure: of rivals built elsewhere, of old kernels."""

    title: str
    rows: str
    draw: Callable | None
    table: Callable


RECORDED = {  # by folder of the machine
    "nvidia-h200": [
        Recorded("Forward beside the official FlashAttention-3 and FlashAttention-4 (Figure 5)",
                 "forward-h200-2026-11-27.jsonl", figures.bars, tables.ratios),
        Recorded("Backward beside the official FlashAttention-3 and FlashAttention-4 (Figure 6)",
                 "backward-h200-2026-11-27.jsonl", figures.bars, tables.ratios),
        Recorded("Heads of 192 columns, values of 128, beside both: forward",
                 "wide-forward-rivals-h200-2026-11-30.jsonl", None, tables.cells),
        Recorded("Heads of 192 columns, values of 128, beside both: backward",
                 "wide-backward-rivals-h200-2026-11-30.jsonl", None, tables.cells),
    ]
}  # fmt: skip


PICTURES = [  # of pages that no report is: rows, what draws them, the picture; below docs/lab
    ("results/context-parallel-timeline-h100-2026-11-25.jsonl", figures.timeline,
     "figures/context-parallel-timeline.svg"),
    ("results/block-masks-rivals-h200-2026-11-30.jsonl", figures.mask_kinds,
     "figures/mask-kinds.svg"),
    ("results/convergence-h200-2026-11-29.jsonl", figures.convergence, "figures/convergence.svg"),
    ("results/fp8-training-long-h200-2026-11-29.jsonl", figures.convergence,
     "figures/fp8-training-long.svg"),
    ("results/fp8-training-saved-h200-2026-11-30.jsonl", figures.convergence,
     "figures/fp8-training-saved.svg"),
    ("results/instruction-order-2026-11-29.jsonl", figures.instruction_order,
     "figures/instruction-order.svg"),
]  # fmt: skip


def draw_picture(rows: Path, draw: Callable, path: Path):
    with plot.style():
        plot.save(draw(plot.read([rows])), path, Source=figures.source(rows))


def slug(machine: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)", "", machine.lower())).strip("-")


class Report:
    """Where a machine's rows, figures and page are."""

    def __init__(self, folder: Path, machine: str, device: str):
        self.machine, self.device, name = machine, device, slug(machine)
        self.results = folder / "results" / name
        self.figures = folder / "figures" / name
        self.page = folder / f"report-{name}.md"

    def rows_of(self, piece: Piece) -> Path:
        return self.results / f"{piece.name}.jsonl"

    def finished(self, piece: Piece, commit: str) -> bool:
        path = self.rows_of(piece)
        if not path.exists() or commit.endswith("-dirty"):
            return False
        wanted = {"commit": commit, "machine": self.machine, "command": " ".join(piece.command())}
        return all(
            row.get(key) == value for row in plot.read([path]) for key, value in wanted.items()
        )


def left_out(rows: list[dict]) -> list[str]:
    """What could not run and why: the first sentence of it, once, with how often it was said."""
    said = {}
    for row in rows:
        if "left_out" in row:
            key = tables.name_of(row["engine"]), row["left_out"].split(". ")[0]
            said[key] = said.get(key, 0) + 1
    return [f"* {name} did not run in {n} cases: {words}" for (name, words), n in said.items()]


def picture(title: str, draw: Callable, rows: Path, report: Report) -> list[str]:
    path = report.figures / f"{rows.stem}.svg"
    report.figures.mkdir(parents=True, exist_ok=True)
    with plot.style():
        plot.save(draw(), path, Source=figures.source(rows))
    return [f"![{title}]({os.path.relpath(path, report.page.parent)})", ""]


def section(piece: Piece, report: Report) -> list[str]:
    path = report.rows_of(piece)
    lines = [f"## {piece.title}", "", piece.words, ""]
    rows = plot.read([path])
    relative = os.path.relpath(path, report.page.parent)
    lines += [f"    benchmarks/{rows[0]['command']}"]
    lines += ["", f"[Rows]({relative}) of commit {rows[0]['commit']}, {rows[0]['date'][:10]}.", ""]
    measured = [row for row in rows if "left_out" not in row or "peak_bytes" in row]
    if measured and piece.draw:
        lines += picture(piece.title, lambda: piece.draw(measured), path, report)
    if measured and piece.table:
        lines += [*piece.table(rows), ""]
    if sentences := left_out(rows):
        lines += [*sentences, ""]
    return lines


def write_page(report: Report):
    lines = [f"# Measured on {report.machine}", ""]
    lines += ["Written by `make report` from its rows alone. How they were timed:"]
    lines += ["[harness.py](../../benchmarks/harness.py).", "", *AGE, ""]
    open_pieces = []
    for piece in pieces(report.device, quick=False):
        if report.rows_of(piece).exists():
            lines += section(piece, report)
        else:
            open_pieces.append(piece.name)
    for recorded in RECORDED.get(report.results.name, []):
        path = DOCS / "results" / recorded.rows
        rows = plot.read([path])
        lines += [f"## {recorded.title}", ""]
        lines += [f"[Rows](results/{recorded.rows}) of commit {rows[0]['commit']}.", ""]
        if recorded.draw:
            lines += picture(recorded.title, lambda r=recorded, x=rows: r.draw(x), path, report)
        lines += [*recorded.table(rows), ""]
    if open_pieces:
        only = ",".join(open_pieces)
        lines += [f"Not measured here: `make report OPTIONS='--only {only}'`.", ""]
    report.page.write_text("\n".join(lines).rstrip() + "\n")
    print(f"report: {report.page}")


def reports(folder: Path) -> list[Report]:
    """The report of every machine that has been measured."""
    found = []
    for results in sorted((folder / "results").iterdir()):
        files = sorted(results.glob("*.jsonl")) if results.is_dir() else []
        if files:
            row = plot.read(files[:1])[0]
            found.append(
                Report(folder, row["machine"], "cpu" if " CPUs" in row["machine"] else "cuda")
            )
    return found


if __name__ == "__main__":
    for each in reports(DOCS):
        write_page(each)
    for rows, draw, path in PICTURES:
        draw_picture(DOCS / rows, draw, DOCS / path)

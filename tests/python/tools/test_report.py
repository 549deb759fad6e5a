# SPDX-License-Identifier: Apache-2.0
"""make report: rows, figures and pages belong together; what is finished is not run again."""

import json
import os
import re
import subprocess
import sys

import pytest
from builds import QUICK, ROOT

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
sys.path.insert(0, str(ROOT / "benchmarks"))
import draw
import figures
import plot
import tables

REPORTS = draw.reports(draw.DOCS)


def row(engine="cpu", seqlen=512, **columns):
    shape = {"pass": "fwd", "dtype": "fp32", "machine": "here", "head_dim": 64, "causal": False}
    return shape | {"engine": engine, "seqlen_q": seqlen, "tflops": 0.1} | columns


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.machine)
def test_a_page_is_what_its_rows_say(report, tmp_path, monkeypatch):
    if QUICK:  # most of the time goes into layout and into SVG, which no line below reads
        monkeypatch.setattr(plot, "save", lambda figure, path, **about: path.touch())
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / report.results.name).symlink_to(report.results)
    (copy,) = draw.reports(tmp_path)
    draw.write_page(copy)
    assert copy.page.read_text() == report.page.read_text()
    drawn = {path.name for path in copy.figures.glob("*.svg")}
    assert drawn == {path.name for path in report.figures.glob("*.svg")}


@pytest.mark.parametrize(
    "picture",
    sorted(path for path in (ROOT / "docs").rglob("*.svg") if path.parent.name != "examples"),
    ids=lambda path: path.stem,
)
def test_a_picture_was_drawn_from_the_rows_that_are_there(picture):
    (name, digest) = re.search(r"([\w.-]+\.jsonl) sha256 (\w+)", picture.read_text()).groups()
    of_machine = ROOT / "docs/lab/results" / picture.parent.name / name
    source = of_machine if of_machine.exists() else ROOT / "docs/lab/results" / name
    assert figures.source(source) == f"{name} sha256 {digest}"


def test_what_did_not_run_has_words_and_no_bar():
    with plot.style():
        (panel,) = plot.draw([row(), row("fa2"), row(seqlen=1024)], "").axes
    assert len(panel.patches) == 3
    assert [text.get_text() for text in panel.texts].count(" did not run") == 1


def test_a_panel_without_rows_says_so():
    with plot.style():
        figure = plot.draw([row(), row(head_dim=128, causal=True)], "")
    assert [len(panel.patches) for panel in figure.axes] == [1, 0, 0, 1]
    assert sum("not measured" in t.get_text() for panel in figure.axes for t in panel.texts) == 2


def test_ratios_are_of_cells_that_both_ran():
    rows = [row(), row("fa2", tflops=0.05), row(seqlen=1024, tflops=0.3), row("fa2", 2048)]
    assert "| FlashAttention-2 | 2.000 | 2.000 | 2.000 | 1 |" in tables.ratios(rows)


def test_rounds_go_back_and_forth():
    pytest.importorskip("torch", reason="torch is not installed")
    import harness

    order = []

    class Contender:
        def __init__(self, name):
            self.name = name

        def __call__(self):
            order.append(self.name)

    timings = harness.time_all([Contender("a"), Contender("b")], "cpu", 3)
    assert "".join(order) == "ba" + "ab" + "ba" + "ab"
    assert timings["a"]["rounds"] == 3
    assert timings["a"]["p10_ms"] <= timings["a"]["median_ms"] <= timings["a"]["p90_ms"]


def test_percentiles_and_state_are_those_of_the_rounds():
    pytest.importorskip("torch", reason="torch is not installed")
    import harness

    found = harness.summary([(float(ms), {"watts": 100.0 + ms}) for ms in range(21)])
    assert found == {"median_ms": 10, "p10_ms": 2, "p90_ms": 18, "rounds": 21, "watts": 110}


# ---- The program, on two small pieces of its own ----

DRIVER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import report
from pieces import Piece
import draw, figures, tables
small = Piece("small", "A small piece", "Words.", "rivals.py --seqlen 32 --head-dim 16 --causal 0 "
              "--rounds 2 --threads 1 --rival nowhere.so", 1, figures.bars, tables.ratios)
broken = Piece("broken", "A broken piece", "Words.", "rivals.py --no-such-option", 1, None)
report.pieces = draw.pieces = lambda device, quick: [small, broken]
sys.exit(report.main())
"""


def run_report(folder, *arguments, commit="one"):
    options = ["--device", "cpu", "--out", folder, *arguments]
    environment = os.environ | {"FA3_COMMIT": commit}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, ROOT / "benchmarks", *options],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_report_resumes_and_says_what_did_not_run(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("fa3", reason="the Python package is not built")
    code, said = run_report(tmp_path)
    assert code == 1 and "broken ended with code" in said
    assert "about 2 s left" in said
    (rows,) = tmp_path.rglob("*.jsonl")
    assert rows.name == "small.jsonl"
    written = rows.stat().st_mtime_ns
    records = [json.loads(line) for line in rows.read_text().splitlines()]
    assert {r["engine"] for r in records} == {"cpu", "torch-cpu", "nowhere.so"}
    page = next(tmp_path.glob("report-*.md")).read_text()
    assert "Not measured here: `make report OPTIONS='--only broken'`." in page
    assert re.search(r"\* nowhere.so did not run in 1 cases: .*cannot open shared object", page)
    assert next(tmp_path.rglob("small.svg")).read_text().count("<svg") == 1

    code, said = run_report(tmp_path, "--only", "small")
    assert code == 0 and "finished before: small" in said
    assert rows.stat().st_mtime_ns == written
    code, said = run_report(tmp_path, "--only", "small", commit="two")
    assert code == 0 and "finished before" not in said
    assert rows.stat().st_mtime_ns > written

# SPDX-License-Identifier: Apache-2.0
"""make report: measures what this machine can run, and shows it on one page.

    python3 benchmarks/report.py                 # some minutes; what is finished is not run again
    python3 benchmarks/report.py --quick         # fewer lengths and rounds
    python3 benchmarks/report.py --only forward,decode --again

Pieces: pieces.py. Each is a benchmark in a process of its own. Their rows, in
docs/lab/results/MACHINE, are the only source of the figures in docs/lab/figures/MACHINE and of the
page docs/lab/report-MACHINE.md (draw.py). A piece is finished if its rows have this commit, machine
and command.
"""

import argparse
import multiprocessing
import runpy
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import harness
import torch
from draw import Report, write_page
from pieces import Piece, pieces

BENCHMARKS = Path(__file__).resolve().parent


def run_program(command: list[str], json: Path):
    sys.argv = [str(BENCHMARKS / command[0]), *command[1:], "--json", str(json)]
    runpy.run_path(sys.argv[0], run_name="__main__")


def run(piece: Piece, report: Report) -> bool:
    """In a child process, which may run out of memory; its rows count once all are there."""
    path = report.rows_of(piece)
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    # Forked, so that torch is imported once; nothing has touched the GPU here.
    child = multiprocessing.get_context("fork").Process(
        target=run_program, args=(piece.command(), partial)
    )
    child.start()
    child.join()
    if child.exitcode == 0 and partial.exists():
        partial.rename(path)
        return True
    print(f"report: {piece.name} ended with code {child.exitcode}; its rows so far: {partial}")
    return False


def measure(todo: list[Piece], report: Report) -> list[str]:
    """Runs them; the names of those that failed."""
    report.results.mkdir(parents=True, exist_ok=True)
    failed, start, expected = [], time.monotonic(), 0.0
    for index, piece in enumerate(todo):
        gone, left = time.monotonic() - start, sum(p.seconds for p in todo[index:])
        pace = gone / expected if expected else 1.0
        about = f"{gone:.0f} s gone, about {pace * left:.0f} s left"
        print(
            f"report: {index + 1} of {len(todo)}, {piece.name}: {piece.title} ({about})", flush=True
        )
        if not run(piece, report):
            failed.append(piece.name)
        expected += piece.seconds
    return failed


def devices() -> list[str]:
    """What can be measured here; asked in a child, since pieces are forked from this process."""
    with multiprocessing.get_context("fork").Pool(1) as child:
        return ["cuda", "cpu"] if child.apply(torch.cuda.is_available) else ["cpu"]


def name_in_child(device: str) -> str:
    with multiprocessing.get_context("fork").Pool(1) as child:
        return child.apply(harness.machine_name, (device,))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), help="without it all that is there")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="LIST", help="pieces")
    parser.add_argument("--quick", action="store_true", help="fewer lengths and rounds")
    parser.add_argument("--again", action="store_true", help="also what is finished")
    parser.add_argument("--out", type=Path, default=harness.ROOT / "docs" / "lab", metavar="FOLDER")
    arguments = parser.parse_args()
    failed, there = [], devices()
    if arguments.device == "cuda" and "cuda" not in there:
        parser.error("--device cuda: torch finds no CUDA device on this machine")
    for device in [arguments.device] if arguments.device else there:
        found = pieces(device, arguments.quick)
        report = Report(arguments.out, name_in_child(device), device)
        todo = [p for p in found if arguments.only is None or p.name in arguments.only]
        for piece in [p for p in todo if find_spec(p.needs) is None]:
            print(f"report: {piece.name} does not run: no module {piece.needs}")
            todo.remove(piece)
        if not arguments.again:
            done = [p.name for p in todo if report.finished(p, harness.commit())]
            todo = [p for p in todo if p.name not in done]
            if done:
                print(f"report: finished before: {', '.join(done)} (--again runs them again)")
        failed += measure(todo, report)
        try:
            write_page(report)
        except ModuleNotFoundError as missing:
            print(f"report: {missing}; with it, `make figures` writes {report.page}")
    if "cuda" not in there:
        print("report: GPU pieces did not run: torch finds no CUDA device on this machine")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

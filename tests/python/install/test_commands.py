# SPDX-License-Identifier: Apache-2.0
"""python -m fa3: the C++ command as it is, and what Python adds to it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fa3", reason="the Python package is not built")

from fa3 import __main__ as command
from fa3 import commands
from fa3.commands import doctor


def run(*program):
    return subprocess.run(program, capture_output=True, text=True, check=False)


def through_python(*arguments):
    return run(sys.executable, "-m", "fa3", *arguments)


@pytest.fixture
def binary():
    if not command.COMMAND.exists():
        pytest.skip(f"this build has no command at {command.COMMAND}")
    return str(command.COMMAND)


@pytest.mark.parametrize(
    "arguments",
    ["--help", "info --seqlen 64", "verify --help", "bench --no-such-word", "run --q nowhere.npy"],
)
def test_the_command_gets_its_arguments_and_gives_its_words_and_its_code(binary, arguments):
    direct, ours = (
        call(*arguments.split()) for call in (lambda *a: run(binary, *a), through_python)
    )
    assert (ours.stdout, ours.stderr, ours.returncode) == (
        direct.stdout,
        direct.stderr,
        direct.returncode,
    )


def test_help_lists_every_command_of_python(binary):
    said = through_python("--help").stdout
    in_python = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    for name in in_python - {"__init__", "doctor", "shims"}:
        assert f"\n  {name} " in said


def test_doctor_adds_what_only_python_knows(binary):
    done = through_python("doctor")
    direct = run(binary, "doctor")
    assert done.returncode == direct.returncode
    assert "engine reference" in direct.stdout and "engine reference" in done.stdout
    assert f"ok    python             {sys.version.split()[0]}" in done.stdout
    assert "ok    torch " in done.stdout


def test_a_package_without_the_command_says_what_to_do(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "COMMAND", tmp_path / "bin" / "fa3")
    assert command.main(["info"]) == 2
    assert "Install the headers it needs, CLI11, fmt and nlohmann-json" in capsys.readouterr().err
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fa3 ")


def test_doctor_of_a_package_without_the_command_checks_the_engines(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "COMMAND", tmp_path / "bin" / "fa3")
    assert command.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"ok    python             {sys.version.split()[0]}" in said
    assert "ok    engine reference   " in said and "tiny case off by" in said
    assert "warn  command            expected the command at" in said
    assert said.endswith("fa3 works here, from Python.\n")
    monkeypatch.setattr(doctor, "error_of", lambda engine: 1.0)
    assert command.main(["doctor"]) == 1
    assert "FAIL  engine cpu" in capsys.readouterr().out


def test_plot_draws_the_lines_that_bench_writes(binary, capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    results = tmp_path / "results.jsonl"
    sizes = "--seqlen 32,64 --head-dim 16,32 --causal 0,1 --pass fwd,bwd --repeats 2"
    written = run(binary, "bench", *sizes.split(), "--json", str(results))
    assert written.returncode == 0, written.stderr
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(records) == 2 * 2 * 2 * 2
    assert command.main(["plot", str(results), "--out", str(tmp_path)]) == 0
    drawn = capsys.readouterr().out
    for direction in ("fwd", "bwd"):
        figure = tmp_path / f"attention_{direction}_fp32.svg"
        assert str(figure) in drawn
        assert figure.read_text().count("<svg") == 1


def test_plot_without_results_says_so(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert command.main(["plot", str(empty)]) == 2
    assert "expected at least one result" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "results.jsonl: No such file"),
        (b"\x93NUMPY\x01\x00", "line 1: expected a JSON line of fa3 bench"),
        (b'{"engine": "cpu", "pass": "fwd"}\n[1]\n', "line 2: expected a JSON line"),
        (b'{"tflops": "of somebody else"}', "expected at least one result"),
    ],
    ids=["missing", "npy", "list", "foreign"],
)
def test_plot_of_a_wrong_file_says_so(capsys, tmp_path, content, says):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / "results.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert command.main(["plot", str(path)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("fa3 plot: ") and says in said.err and not said.out


def test_names_of_files_may_be_any_bytes(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    for undo in ((), ("--undo",)):
        done = subprocess.run(
            [sys.executable, "-m", "fa3", "adopt", "--into", folder, *undo],
            env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
            capture_output=True,
            check=True,
        )
        assert folder in done.stdout
    assert not os.listdir(folder)


COMMANDS_OF_PYTHON = [["adopt", "--help"], ["adopt", "--undo", "--into"], ["doctor"]]


def into_stdout(arguments, tmp_path, **options):
    """The exit code and what stderr got, of a program whose stdout is of these options."""
    arguments = [*arguments, str(tmp_path)] if arguments[-1] == "--into" else arguments
    options |= {"env": os.environ | {"PYTHONUNBUFFERED": ""}, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "fa3", *arguments]
    program = subprocess.Popen(command, text=True, **options)
    if program.stdout is not None:
        program.stdout.close()
    return program.wait(), program.stderr.read()


@pytest.mark.parametrize("arguments", COMMANDS_OF_PYTHON, ids=" ".join)
def test_a_full_disk_is_one_sentence(arguments, tmp_path):
    with Path("/dev/full").open("w") as full:
        code, said = into_stdout(arguments, tmp_path, stdout=full)
    assert code == 1 and said == "fa3: writing failed: No space left on device\n"


@pytest.mark.parametrize("arguments", [*COMMANDS_OF_PYTHON, ["info"]], ids=" ".join)
def test_a_reader_that_has_read_enough_ends_the_program(arguments, binary, tmp_path):
    code, said = into_stdout(arguments, tmp_path, stdout=subprocess.PIPE)
    assert code == -signal.SIGPIPE and said == ""


def test_doctor_takes_a_closed_stdout(binary):
    done = run("sh", "-c", f"{sys.executable} -m fa3 doctor >&-")
    assert done.returncode == 1 and done.stderr.startswith("fa3: writing to stdout failed")

# SPDX-License-Identifier: Apache-2.0
"""What the pages show is so: snippets run as pasted, numbers are those of the rows, files exist."""

import os
import re
import subprocess
import sys

import builds
import numpy as np
import pytest
from builds import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import draw_speed

README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
PYTHON = [code for language, code in SNIPPETS if language == "python"]
CPP = [code for language, code in SNIPPETS if language == "cpp"]
SHELL = [line for language, code in SNIPPETS if not language for line in code.splitlines()]
COMMANDS = [line.split("#")[0].strip() for line in SHELL if line.startswith("fa3 ")]


@pytest.fixture
def hopper_or_cpu(device):
    import torch

    if device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the GPU of this machine is no Hopper")
    return device


def test_there_are_snippets_to_run():
    assert (len(PYTHON), len(CPP)) == (2, 1)
    assert len(COMMANDS) == 5


def test_the_numpy_snippet_runs():
    pytest.importorskip("fa3", reason="the Python package is not built")
    assert "torch" not in PYTHON[1]
    assert builds.run(sys.executable, "-c", PYTHON[1]) == "(1, 1000, 8, 64) (1, 8, 1000)\n"


def test_the_torch_snippet_runs(hopper_or_cpu):
    pytest.importorskip("fa3", reason="the Python package is not built")
    device = hopper_or_cpu
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    said = builds.run(sys.executable, "-c", PYTHON[0], env=os.environ | hidden)
    assert said == f"torch.Size([2, 1024, 8, 128]) {device}{':0' * (device == 'cuda')}\n"


def test_the_cpp_snippet_is_the_example():
    example = (ROOT / "examples" / "embed" / "embed_gpu.cpp").read_text()
    assert CPP[0] == example[example.index("#include") :]


def test_the_cpp_snippet_computes_on_the_gpu(hopper_or_cpu):
    program = builds.program("embed_gpu")
    if hopper_or_cpu == "cuda":
        assert "0x3f80 in bfloat16" in builds.run(program)
        return
    done = subprocess.run(
        [program], capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fa3: no engine can run this call")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_line_of_the_command_runs(command, tmp_path):
    program = builds.program("fa3")
    for name in "qkv":
        np.save(tmp_path / name, np.ones((1, 64, 2, 16), np.float32))
    assert builds.run(program, *command.split()[1:], cwd=tmp_path)


def test_the_picture_shows_the_rows():
    shown = re.findall(r">([\d.]+)</text>", draw_speed.PICTURE.read_text())
    assert {f"{row['tflops']:.3g}" for row in draw_speed.rows()} <= set(shown)


def test_the_numbers_are_those_of_the_rows():
    fa4 = "FlashAttention-4"
    forward = ["official", "official, lowest", "official, highest", fa4, "cuDNN"]
    backward = ["official", "official, lowest", fa4, f"{fa4}, lowest", "cuDNN"]
    numbers = [draw_speed.summary()[name] for name in forward]
    numbers += [draw_speed.summary(draw_speed.BACKWARD)[name] for name in backward]
    assert re.findall(r"\b[01]\.\d{3}\b", README) == [f"{number:.3f}" for number in numbers]


def test_decoding_takes_as_long_as_in_the_output():
    said = re.search(r"Decoding one sequence.*?\(([^)]+)\) of commit", README, re.DOTALL)
    numbers = [float(number) for number in re.findall(r"\d+\.\d", said[0])]
    last_run = (ROOT / said[1]).read_text().split("beside official FlashAttention-3.")[-1]
    for case in ("b1_2048", "b1_8192", "b1_32768", "b8_2048"):
        both = re.search(rf"\n{case} .*now +([\d.]+) us .*rival +([\d.]+) us", last_run)
        for microseconds in map(float, both.groups()):
            assert any(abs(number - microseconds) < 0.051 for number in numbers), case


def test_every_link_leads_somewhere():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert target.startswith("https://") or (ROOT / target).exists(), target


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/reading-guide.md"]
)
def test_every_file_that_a_page_names_exists(page):
    folders = ("benchmarks", "examples", "include", "python", "src", "tests", "tools")
    files = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.*")]
    named = re.findall(r"`([\w./-]+\.(?:h|cpp|c|cuh|cu|py|pyi|cmake))`", (ROOT / page).read_text())
    assert named
    assert [name for name in named if not any(path.endswith("/" + name) for path in files)] == []


def test_no_line_is_wide():
    assert [line for line in README.splitlines() if len(line) > 120] == []

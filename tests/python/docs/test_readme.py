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
PERFORMANCE = (ROOT / "docs/performance.md").read_text()
PAGES = [path for path in (ROOT / "docs").rglob("*.md") if "results" not in path.parts]


def snippets(page, language):
    text = (ROOT / page).read_text()
    return [
        code for of, code in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL) if of == language
    ]


README_NUMPY, TORCH, PAGED = snippets("README.md", "python")
(NUMPY,) = [code for code in snippets("docs/python.md", "python") if "import numpy" in code]
(CPP,) = snippets("docs/cpp.md", "cpp")
SESSIONS = [code for code in snippets("docs/command.md", "") if code.startswith("$ fa3 ")]


@pytest.fixture
def hopper_or_cpu(device):
    import torch

    if device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the GPU of this machine is no Hopper")
    return device


@pytest.mark.parametrize(
    ("snippet", "shape"),
    [(NUMPY, "(1, 1000, 8, 64) (1, 8, 1000)"), (README_NUMPY, "(1, 1000, 8, 64)")],
)
def test_a_numpy_snippet_runs(snippet, shape):
    pytest.importorskip("fa3", reason="the Python package is not built")
    assert "torch" not in snippet
    assert builds.run(sys.executable, "-c", snippet) == f"{shape}\n"


@pytest.mark.parametrize(
    ("snippet", "shape"), [(TORCH, [2, 1024, 8, 128]), (PAGED, [4, 1, 8, 128])]
)
def test_a_torch_snippet_runs(snippet, shape, hopper_or_cpu):
    pytest.importorskip("fa3", reason="the Python package is not built")
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if hopper_or_cpu == "cpu" else {}
    said = builds.run(sys.executable, "-c", snippet, env=os.environ | hidden)
    device = f" {hopper_or_cpu}{':0' * (hopper_or_cpu == 'cuda')}" if snippet == TORCH else ""
    assert said == f"torch.Size({shape}){device}\n"


def test_the_cpp_snippet_is_the_example():
    example = (ROOT / "examples" / "embed" / "embed_gpu.cpp").read_text()
    assert example[example.index("#include") :] == CPP


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


def first_words(text):
    return {line.split()[0] for line in text.splitlines() if line.strip()} - {"..."}


def test_the_commands_of_the_page_print_lines_like_those(tmp_path):
    """In the page's order, since plot draws what bench has written. Numbers are the machine's."""
    pytest.importorskip("fa3", reason="the Python package is not built")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    program = builds.program("fa3")
    for name in "qkv":
        np.save(tmp_path / name, np.ones((1, 256, 4, 64), np.float32))
    (tmp_path / "site").mkdir()
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # as in a checkout
    shown_commands = set()
    for session in SESSIONS:
        line, _, shown = session.partition("\n")
        _, _, *arguments = line.split()
        shown_commands.add(arguments[0])
        printed = builds.run(sys.executable, "-m", "fa3", *arguments, cwd=tmp_path)
        assert first_words(shown) - first_words(printed) == set()
    listed = re.findall(r"^  (\w+)  ", builds.run(program, "--help"), re.MULTILINE)
    assert shown_commands == set(listed) - {"replay"}  # docs/monitoring.md shows that one


def test_the_picture_shows_the_rows():
    shown = re.findall(r">([\d.]+)</text>", draw_speed.PICTURE.read_text())
    assert {f"{row['tflops']:.3g}" for row in draw_speed.rows()} <= set(shown)


def test_the_numbers_are_those_of_the_rows():
    ends = ("", ", lowest", ", highest")
    passes = draw_speed.summary(), draw_speed.summary(draw_speed.BACKWARD)
    in_table = [
        found[f"{rival}{end}"] for rival in draw_speed.RIVALS for found in passes for end in ends
    ]
    in_readme = [found[f"official{end}"] for found in passes for end in ends]
    of_h100 = draw_speed.summary(draw_speed.H100_FORWARD)
    in_words = [of_h100[name] for name in ("official", "official, lowest", "FlashAttention-4")]
    assert min(passes[0].values()) > 1 and min(of_h100.values()) > 1
    for page, numbers in ((README, in_readme), (PERFORMANCE, in_table + in_words)):
        found = re.findall(r"\b[01]\.\d{3}\b", page)
        assert found == [f"{number:.3f}" for number in numbers]


def test_decoding_takes_as_long_as_in_the_output():
    said = re.search(r"Decoding one\s+sequence.*?\(([^)]+)\) of commit", PERFORMANCE, re.DOTALL)
    numbers = [float(number) for number in re.findall(r"\d+\.\d", said[0])]
    last_run = (ROOT / "docs" / said[1]).read_text().split("beside official FlashAttention-3.")[-1]
    for case in ("b1_2048", "b1_8192", "b1_32768", "b8_2048"):
        both = re.search(rf"\n{case} .*now +([\d.]+) us .*rival +([\d.]+) us", last_run)
        for microseconds in map(float, both.groups()):
            assert any(abs(number - microseconds) < 0.051 for number in numbers), case
    readme = re.search(r"decoding one sequence.*?([\d.]+) us.*?([\d.]+)\.\s", README, re.DOTALL)
    assert {float(number) for number in readme.groups()} < set(numbers)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda path: path.stem
)
def test_every_link_leads_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_result_is_cited():
    cited = "".join(path.read_text() for path in PAGES) + README
    results = ROOT / "docs/lab/results"
    names = [path.name for path in results.rglob("*") if path.is_file()]
    assert names and [name for name in names if name not in cited] == []


@pytest.mark.parametrize(
    "page",
    [
        "CONTRIBUTING.md",
        *(f"docs/{name}.md" for name in ("add-a-feature", "architecture", "decode-call")),
        *(f"docs/{name}.md" for name in ("reading-guide", "python-package", "protocol-model")),
    ],
)
def test_every_file_that_a_page_names_exists(page):
    folders = ("benchmarks", "examples", "include", "python", "src", "tests", "tools")
    files = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.*")]
    named = re.findall(r"`([\w./-]+\.(?:h|cpp|c|cuh|cu|py|pyi|cmake))`", (ROOT / page).read_text())
    assert named
    assert [name for name in named if not any(path.endswith("/" + name) for path in files)] == []


def test_the_readme_is_short_and_narrow():
    lines = README.splitlines()
    assert len(lines) <= 120 and [line for line in lines if len(line) > 120] == []


def test_nobody_is_sent_to_an_index_for_a_wheel_that_is_not_there():
    """Whoever owns the name there would be installed. To be deleted with the README's sentence."""
    assert "No wheel is published yet" in README
    sources = (ROOT / "python").rglob("*.py")
    sent = [
        path for path in (*PAGES, *sources) if re.search(r"pip install fa3\b", path.read_text())
    ]
    assert sent == []

# SPDX-License-Identifier: Apache-2.0
"""Which lists of a block mask stay between calls on a GPU, and until when: kept_lists_calls.py,
played once over a library that says what it is asked for. With a GPU:
pytorch/test_kept_lists_cuda.py.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@functools.cache
def played():
    """The events of each scene; lists by their numbers from 1 up in it, 0: none."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for a library that stands in front of fa3's")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/library.so"
        source = HERE / "kept_lists_library.c"
        build = [compiler, "-shared", "-fPIC", f"-I{ROOT}/include", source, "-o", library]
        subprocess.run(build, check=True)
        environment = os.environ | {"LD_PRELOAD": library}
        script = [sys.executable, HERE / "kept_lists_calls.py"]
        run = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    scenes = {}
    for part in run.stdout.split("= ")[1:]:
        name, *events = part.splitlines()
        numbers = {}

        def renumbered(found, numbers=numbers):
            number = found[0]
            return number if number == "0" else str(numbers.setdefault(number, len(numbers) + 1))

        scenes[name] = [re.sub(r"\d+", renumbered, e) for e in events if not e.startswith("size")]
        scenes[name, "asked"] = sum(e.startswith("size") for e in events)
    return scenes


# New lists, others after them, and calls without.
NEW, AGAIN = "forward 0, made 1, forward 1", "forward 0, made 2, forward 2"
WITHOUT = "forward 0, forward 0, forward 0"


@pytest.mark.parametrize(
    "scene, events",
    [
        ("kept_from_the_second_call_on", f"{NEW}, forward 1, forward 1, freed"),
        ("gone_with_the_map", f"{NEW}, freed"),
        ("gone_with_the_bits", f"{NEW}, freed, the map is there, forward 0"),
        (
            "made_anew_after_writes",
            f"{NEW}, freed, {AGAIN}, freed, forward 0, made 3, forward 3, freed",
        ),
        ("made_anew_for_memory_that_moved", f"{NEW}, freed, {AGAIN}, freed"),
        ("not_while_a_graph_is_captured", f"{NEW}, forward 0, forward 1, freed"),
        ("not_of_sequences_with_lengths", WITHOUT),
        ("not_where_writes_are_not_counted", f"asked, {WITHOUT}, {WITHOUT}"),
        ("not_where_the_library_makes_none", WITHOUT),
        ("not_beyond_a_gibibyte", f"{NEW}, {WITHOUT}, freed, {AGAIN}, freed"),
        ("not_without_memory", WITHOUT),
        ("ended_by_the_user", "forward 0, interrupted, made 1, forward 1, freed"),
        ("not_where_that_was_said_before_torch_came", WITHOUT),
        ("not_when_nobody_wants_them", f"{NEW}, freed, {WITHOUT}, made 2, forward 2, freed"),
    ],
)
def test_lists_are(scene, events):
    assert ", ".join(played()[scene]) == events


# All in turn: each kind is noted, made, and given.
def test_lists_are_of_each_kind_of_call():
    passes = ["forward"] * 4 + ["backward"] * 2 + ["scored"]
    noted = [f"{name} 0" for name in passes]
    made = [e for n, name in enumerate(passes, 1) for e in (f"made {n}", f"{name} {n}")]
    given = [f"{name} {n}" for n, name in enumerate(passes, 1)]
    assert played()["of_each_kind_of_call"] == [*noted, *made, *given, *["freed"] * 7]


# The oldest makes room, also for one that is only noted.
def test_lists_are_of_sixteen_kinds_at_most():
    events = played()["of_sixteen_kinds_at_most"]
    assert events.count("freed") == 17
    last = "forward 17, freed, forward 0, forward 17, forward 3, freed, forward 0"
    assert events[-21:] == [*last.split(", "), *["freed"] * 14]


# A library that makes none is asked once.
@pytest.mark.parametrize("scene", ["not_where_the_library_makes_none", "not_without_memory"])
def test_lists_that_cannot_be_are_asked_for_once(scene):
    assert played()[scene, "asked"] == 1

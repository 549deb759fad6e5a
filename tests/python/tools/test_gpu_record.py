# SPDX-License-Identifier: Apache-2.0
"""The verification record of the GPU kernels vouches for exact sources, and only if all passed."""

import json
import os
import signal
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builds import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import gpu_pieces
import gpu_verify
import kernel_code
import kernel_sources
import source_tokens

KERNEL = """
#define TWICE(x) (2 * (x))  // a macro
__global__ void kernel(int* out) {
  /* no comment */ out[0] += 1'000 >> 2;  // count
  asm volatile("bar.sync %0; // not a comment" ::"r"(TWICE(1)));
  const char* raw = R"x(/* kept */ "quoted")x";
}
"""


GTEST = """print('''[==========] {ran} tests from 2 test suites ran. (7 ms total)
[  PASSED  ] {passed} tests.
[  SKIPPED ] {skipped} tests.''')"""


@pytest.fixture
def tree(tmp_path):
    """A root with one kernel source, and the path of a record."""
    source = tmp_path / "src/engine/hopper/ptx/one.cuh"
    source.parent.mkdir(parents=True)
    source.write_text(KERNEL)
    return tmp_path, source, tmp_path / "record.json"


def run_piece(name, commands, build):
    with ThreadPoolExecutor(2) as pool:
        return gpu_verify.run_piece(name, commands, build, pool)


def write_record(root, record, passed=True, lacking=0):
    hashes = kernel_sources.hashes(gpu_pieces.pieces(root / "build"), root)
    pieces = [
        {"name": name, "passed": passed, "source_hash": digest} for name, digest in hashes.items()
    ]
    record.write_text(json.dumps({"pieces": pieces[lacking:]}))


def test_a_stale_python_package_is_not_tested(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_verify, "ROOT", tmp_path)
    for folder, text in (("python/fa3/flex", "new"), ("build/python/fa3/flex", "old")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "device.py").write_text(text)
    command = [sys.executable, "-c", "print('1 passed')"]
    piece = run_piece(gpu_pieces.PYTHON_PIECE, [command], tmp_path / "build")
    assert not piece["passed"] and "flex/device.py is not as its source" in piece["skipped"]
    (tmp_path / "build/python/fa3/flex/device.py").write_text("new")
    assert run_piece(gpu_pieces.PYTHON_PIECE, [command], tmp_path / "build")["passed"]


@pytest.mark.parametrize(("named", "expected"), [(None, "0101"), ("3,5", "3535")])
def test_commands_take_gpus_in_turn(named, expected, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(gpu_verify, "gpus_in_turn", None)
    gpu_verify.take_in_turn(range(2))
    tell = [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"]
    told = [gpu_verify.run_command(tell, tmp_path)[0].strip() for _ in expected]
    assert "".join(told) == expected


def test_what_failed_is_said_in_the_words_of_the_test():
    lines = ["a.cpp:7: Failure", "Expected: 1", "  Actual: 2", *(["more"] * 40)]
    assert "  Actual: 2" in gpu_verify.end_of(["tests"], "\n".join(lines))


def test_a_record_of_these_sources_has_no_problem(tree):
    root, _, record = tree
    write_record(root, record)
    assert gpu_verify.record_problem(record, root) is None


def test_a_record_that_was_cut_short_names_what_it_lacks(tree):
    root, _, record = tree
    write_record(root, record, lacking=1)
    assert next(iter(gpu_pieces.pieces(root))) in gpu_verify.record_problem(record, root)


def test_a_changed_name_makes_the_record_stale(tree):
    root, source, record = tree
    write_record(root, record)
    source.rename(source.with_name("two.cuh"))
    assert "have changed" in gpu_verify.record_problem(record, root)
    source.with_name("two.cuh").rename(source)
    assert gpu_verify.record_problem(record, root) is None


def add_backward(root):
    """A backward that includes one.cuh through a header with a source behind it."""
    texts = {
        "launch/launch_backward.h": '#include "engine/hopper/shared.h"',
        "shared.h": "",
        "shared.cpp": '#include "engine/hopper/ptx/one.cuh"',
        "mainloop.cuh": "",
    }
    for name, text in texts.items():
        path = root / "src/engine/hopper" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("changed", "stale", "valid"),
    [
        ("mainloop.cuh", ["kernels against float64, every branch"], True),
        ("launch/launch_backward.h", ["backward kernels against float64"], False),
        ("ptx/one.cuh", ["kernels against float64", "backward kernels against float64"], False),
    ],
)
def test_a_change_leaves_what_was_seen_of_other_kernels(tree, changed, stale, valid):
    root, _, record = tree
    add_backward(root)
    write_record(root, record)
    path = root / "src/engine/hopper" / changed
    path.write_text(path.read_text() + "\nint more;\n")
    problem = gpu_verify.record_problem(record, root)
    assert all(name in problem for name in ["the contract of every engine", *stale])
    assert ("backward kernels against float64" not in problem) == valid
    assert (", kernels with random delays" in problem) == (changed != "launch/launch_backward.h")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("// count", '// what is counted: "tickets"'),
        (" // count", ""),
        ("/* no comment */ ", "/* one */ /* two */\n"),
        ("// a macro", "// see /* there"),
        ("out[0] += 1'000 >> 2", "out [0]+=1'000>>2"),
        ("{\n", "\n{\n\n"),
        ("(2 * (x))", "(2 *   (x))"),
    ],
)
def test_comments_and_layout_keep_the_record(tree, before, after):
    root, source, record = tree
    write_record(root, record)
    assert before in KERNEL
    source.write_text(KERNEL.replace(before, after))
    assert gpu_verify.record_problem(record, root) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("out[0]", "out[1]"),
        ("1'000", "1'001"),
        ("+= 1", "+ = 1"),
        (">> 2", "> > 2"),
        ("// not a comment", "// not a remark"),  # within a string
        ("/* kept */", "/* lost */"),  # within a raw string
        ("TWICE(x)", "TWICE (x)"),
        ("(2 * (x))", "(3 * (x))"),
        ("bar.sync %0; ", "bar.sync  %0; "),
        ("// count\n", "// count \\\n"),  # now it holds the next line too
    ],
)
def test_a_changed_token_makes_the_record_stale(tree, before, after):
    root, source, record = tree
    write_record(root, record)
    assert before in KERNEL
    source.write_text(KERNEL.replace(before, after))
    assert "have changed" in gpu_verify.record_problem(record, root)


@pytest.mark.parametrize(
    ("name", "text", "same", "other"),
    [
        ("CMakeLists.txt", "set(a [[\n#x\n]]) # y", "set(a [[\n#x\n]])", "set(a [[\n#z\n]])"),
    ],
)
def test_cmake_is_read_by_token_too(tmp_path, name, text, same, other):
    def tokens(content):
        path = tmp_path / name
        path.write_text(content)
        return source_tokens.tokens_of(path)

    assert tokens(text) == tokens(same)
    assert tokens(text) != tokens(other)


def test_every_source_of_the_kernels_is_read_to_its_end(tmp_path):
    for pattern in kernel_sources.SOURCES:
        for path in filter(Path.is_file, kernel_sources.ROOT.glob(pattern)):
            longer = tmp_path / path.name
            longer.write_text(path.read_text() + "\nlast_token\n")
            assert "last_token" in source_tokens.tokens_of(longer)[-1], path


def test_a_missing_record_and_a_failed_piece_are_problems(tree):
    root, _, record = tree
    assert "no verification record" in gpu_verify.record_problem(record, root)
    write_record(root, record, passed=False)
    assert "did not pass: the contract" in gpu_verify.record_problem(record, root)
    assert gpu_verify.record_problem(record, root, only=["the contract"])
    assert gpu_verify.record_problem(record, root, only=["no piece has this"]) is None


@pytest.mark.parametrize(
    ("script", "passed"),
    [
        ("print('3 checks, 0 failures')", True),
        ("print('3 checks, 1 failures')", False),
        ("print('0 checks, 0 failures')", False),
        ("print('no summary')", False),
        (GTEST.format(ran=5, passed=5, skipped=0), True),
        (GTEST.format(ran=5, passed=3, skipped=2), True),
        (GTEST.format(ran=5, passed=3, skipped=1), False),
        (GTEST.format(ran=5, passed=0, skipped=5), False),
        ("print('[==========] Running 5 tests from 2 test suites.')", False),
        ("print('3 checks, 0 failures'); raise SystemExit(2)", False),
    ],
)
def test_a_piece_passes_only_with_checks_and_without_failures(script, passed, tmp_path):
    result = run_piece("piece", [[sys.executable, "-c", script]], tmp_path)
    assert result["passed"] is passed


def test_a_piece_without_its_tool_says_so(tmp_path):
    result = run_piece("piece", [["no-such-tool"]], tmp_path)
    assert not result["passed"]
    assert "no-such-tool is not on this machine" in result["skipped"]


ENDED = f"""
import os, signal, sys, threading
sys.path.insert(0, {str(Path(gpu_verify.__file__).parent)!r})
import gpu_verify
signal.signal(signal.SIGTERM, gpu_verify.say_what_runs)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
gpu_verify.run_command([sys.executable, "-c", "import time; time.sleep(2)"], gpu_verify.ROOT)
print("ended")
"""


def test_the_bits_of_earlier_kernels_are_at_hand_where_the_build_has_them(tmp_path):
    ours = f"digests-{kernel_sources.source_hash()[:12]}-"
    names = ("digests-older-3-bf16.txt", "digests-before-3-bf16.txt", "digests-before-13-bf16.txt")
    for seconds, name in enumerate((*names, ours + "3-bf16.txt")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    program = tmp_path / "bin" / "fa3_gpu_check"
    program.parent.mkdir()
    rows = "".join(f"echo {row} forward {row} {row}\n" for row in (3, 13))
    program.write_text(f"#!/bin/sh\n{rows}")
    program.chmod(0o755)
    commands = gpu_pieces.pieces(tmp_path)["kernels against float64, every branch"]
    earlier = {
        Path(of[of.index("--digests") + 1]).name: of[of.index("--earlier") + 1]
        for of in commands
        if "--earlier" in of
    }
    assert earlier == {
        ours + f"{row}-bf16.txt": str(tmp_path / f"digests-before-{row}-bf16.txt")
        for row in (3, 13)
    }


def test_rows_are_read_from_the_list_of_every_program(tmp_path):
    program = tmp_path / "check"
    program.write_text("#!/bin/sh\necho 0 forward 64 64 forward_7\necho 1 backward 64 128 163 KB\n")
    program.chmod(0o755)
    assert gpu_pieces.table_rows(str(program)) == [
        gpu_pieces.Row(0, "forward", 64, 64, "forward_7"),
        gpu_pieces.Row(1, "backward", 64, 128, ""),
    ]


def test_rows_of_one_head_dim_share_a_process_where_their_inputs_are_alike():
    listed = [("forward", 64), ("forward", 64), ("forward", 96), ("e4m3", 64), ("e4m3", 64)]
    rows = [gpu_pieces.Row(i, table, d, d) for i, (table, d) in enumerate(listed)]
    ranges = [gpu_pieces.rows_of(group)[1:] for group in gpu_pieces.groups(rows)]
    assert ranges == [["0", "2"], ["2", "3"], ["3", "4"], ["4", "5"]]


def test_a_piece_whose_program_is_not_built_has_not_passed(tmp_path):
    result = run_piece("piece", [], tmp_path)
    assert not result["passed"] and result["skipped"] == "its program is not built"


def test_a_piece_that_cannot_run_here_keeps_what_was_checked_before(tmp_path):
    known = ["check --rows: its code"]
    for commands in ([], [["a-program-that-is-nowhere"]]):
        result = gpu_verify.run_piece("piece", commands, tmp_path, None, known=known)
        assert not result["passed"] and result["code"] == known


def test_a_run_that_is_told_to_end_says_what_had_not():
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM
    assert "not ended: " in done.stdout and "time.sleep(2)" in done.stdout
    assert "ended" not in done.stdout.splitlines()


ENDED_EARLY = f"""
import os, signal, sys, threading
from pathlib import Path
sys.path.insert(0, {str(Path(gpu_verify.__file__).parent)!r})
import gpu_verify
record, program = map(Path, sys.argv[1:])
rows = {{str(row): f"code of {{row}}" for row in range(2)}}
gpu_verify.KernelCode.load = lambda build: gpu_verify.KernelCode({{"check": rows}})
commands = [[str(program), "--rows", str(row), str(row + 1)] for row in range(2)]
gpu_verify.pieces = lambda build, gpu_oracle: {{"kernels": commands, "another": []}}
gpu_verify.hashes = lambda names: dict.fromkeys(names, "of these sources")
gpu_verify.gpus = lambda: [{{}}]
signal.signal(signal.SIGTERM, gpu_verify.say_what_runs)
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
gpu_verify.verify(program.parent, record, only=["kernels"])
"""


def test_a_run_that_is_ended_early_keeps_what_passed_of_pieces_that_there_are(tmp_path):
    program, record = tmp_path / "check", tmp_path / "record.json"
    program.write_text("#!/bin/sh\nsleep ${2}0\necho 3 checks, 0 failures\n")
    program.chmod(0o755)
    before = [{"name": name, "passed": False} for name in ("another", "one that was removed")]
    record.write_text(json.dumps({"pieces": before}))
    subprocess.run([sys.executable, "-c", ENDED_EARLY, record, program], check=False)
    another, kernels = json.loads(record.read_text())["pieces"]
    assert another["name"] == "another" and not kernels["passed"]
    (code,) = kernels["code"]
    assert code.startswith("check --rows: ")


def test_commands_that_passed_are_carried_over_for_the_same_sources(tmp_path):
    good = [sys.executable, "-c", "print('3 checks, 0 failures')"]
    bad = [sys.executable, "-c", "print('2 checks, 1 failures'); raise SystemExit(1)"]

    def run(commands, known, sources):
        with ThreadPoolExecutor(2) as pool:
            code = gpu_verify.NO_CODE
            return gpu_verify.run_piece("suite", commands, tmp_path, pool, code, known, sources)

    first = run([good, bad], (), "these")
    (kept,) = first["code"]
    assert not first["passed"] and kept.endswith(": these")
    again = run([good, [*bad[:2], "print('2 checks, 0 failures')"]], first["code"], "these")
    assert again["passed"] and (again["carried"], again["checks"]) == (1, 2)
    assert "code" not in again
    assert "carried" not in run([good], first["code"], "others")


def test_a_piece_of_several_commands_sums_them_and_fails_with_one(tmp_path):
    good = [sys.executable, "-c", "print('3 checks, 0 failures')"]
    bad = [sys.executable, "-c", "print('2 checks, 1 failures'); raise SystemExit(1)"]
    both = run_piece("piece", [good, good], tmp_path)
    assert both["passed"] and both["checks"] == 6
    one = run_piece("piece", [good, bad, good], tmp_path)
    assert not one["passed"] and (one["checks"], one["failures"]) == (8, 1)
    command, *printed = one["output"]
    assert command.startswith("$ ") and "raise SystemExit" in command
    assert printed == ["2 checks, 1 failures"]


def test_no_folder_of_the_machine_is_in_the_record():
    folder = str(kernel_sources.ROOT)
    command = [f"{folder}/build/bin/check", f"--ignore={folder}/tests/one.py"]
    shown = gpu_verify.end_of(command, f"{folder}/tests/one.py: 1 passed")
    assert shown == ["$ check --ignore=tests/one.py", "tests/one.py: 1 passed"]
    built_elsewhere = gpu_verify.end_of(["tests"], "/a/built/tests/cpp/b.cpp:7: Skipped")
    assert built_elsewhere == ["$ tests", "tests/cpp/b.cpp:7: Skipped"]


@pytest.fixture
def build(tmp_path):
    """A build with dense kernels for two rows, and stage(name, code), which makes an object."""
    objects = tmp_path / "src/engine/hopper/CMakeFiles/fa3_hopper_kernels.dir"
    objects.mkdir(parents=True)

    def stage(name, code):
        lines = f'.section .nv_fatbin,"a"\n.ascii "{code}"\n'
        output = str(objects / f"{name}.cu.o")
        command = ["gcc", "-c", "-x", "assembler", "-", "-o", output]
        subprocess.run(command, input=lines, text=True, check=True)

    for name in ("forward_0", "forward_1"):
        stage(name, name)
    return tmp_path, stage


def test_a_check_is_carried_over_while_its_kernels_keep_their_machine_code(build):
    folder, stage = build
    program = folder / "fa3_gpu_check"
    program.write_text("#!/bin/sh\necho 3 checks, 0 failures\n")
    program.chmod(0o755)

    def verify(known=(), count=2):
        commands = [[str(program), "--rows", str(row), str(row + 1)] for row in range(count)]
        rows = [gpu_pieces.Row(row, "forward", 64, 64, f"forward_{row}") for row in range(count)]
        kernel_code.KernelCode.of_build(folder, {program.name: rows}).save(folder)
        codes = kernel_code.KernelCode.load(folder)
        with ThreadPoolExecutor(2) as pool:
            return gpu_verify.run_piece("kernels", commands, folder, pool, codes, known)

    first = verify()
    assert first["checks"] == 6 and len(first["code"]) == 2 and "carried" not in first
    again = verify(first["code"])
    assert again["passed"] and again["checks"] == 0 and again["carried"] == 2
    stage("forward_1", "another")
    changed = verify(first["code"])
    assert changed["passed"] and changed["checks"] == 3 and changed["carried"] == 1
    program.write_text("#!/bin/sh\necho 3 checks, 1 failures\n")
    stage("forward_0", "a third")
    failed = verify(changed["code"])
    assert not failed["passed"] and failed["failures"] == 1 and failed["carried"] == 1
    assert len(failed["code"]) == 1
    # The kernels again, behind a new row.
    for row, code in enumerate(("new", "forward_0", "forward_1")):
        stage(f"forward_{row}", code)
    program.write_text("#!/bin/sh\necho 3 checks, 0 failures\n")
    renumbered = verify(first["code"], count=3)
    assert renumbered["passed"] and renumbered["checks"] == 3 and renumbered["carried"] == 2


def test_sources_that_compile_to_the_code_that_passed_keep_the_record(build):
    folder, stage = build
    commands = {"kernels": [["fa3_gpu_check", "--rows", "0", "1"]], "others": [["fa3_other"]]}
    rows = {"fa3_gpu_check": [gpu_pieces.Row(0, "forward", 64, 64, "forward_0")]}
    code = [
        gpu_verify.checked(commands["kernels"][0], gpu_verify.KernelCode.of_build(folder, rows))
    ]

    def renewed():
        pieces = [
            {"name": "kernels", "passed": True, "source_hash": "before", "code": code},
            {"name": "others", "passed": True, "source_hash": "before"},
        ]
        codes = gpu_verify.KernelCode.of_build(folder, rows)
        digests = dict.fromkeys(commands, "now")
        found = gpu_verify.vouch({"pieces": pieces}, commands, digests, codes)
        return found, [piece["source_hash"] for piece in pieces]

    assert renewed() == (["kernels"], ["now", "before"])
    stage("forward_0", "another")
    assert renewed() == ([], ["before", "before"])


@pytest.mark.parametrize("kernels, checks", [("SAMPLE", "ON"), ("ON", "OFF"), ("ON", "ON")])
def test_a_build_of_some_kernels_vouches_for_nothing(build, tmp_path, monkeypatch, kernels, checks):
    folder, _ = build
    row = gpu_pieces.Row(0, "forward", 64, 64, "forward_0")
    command = ["fa3_gpu_check", "--rows", "0", "1"]
    monkeypatch.setattr(gpu_verify, "PROGRAMS", ["fa3_gpu_check"])
    monkeypatch.setattr(gpu_verify, "table_rows", lambda program: [row])
    monkeypatch.setattr(gpu_verify, "pieces", lambda build: {"kernels": [command]})
    monkeypatch.setattr(gpu_verify, "hashes", lambda every: {"kernels": "now"})
    codes = gpu_verify.KernelCode.of_build(folder, {"fa3_gpu_check": [row]})
    seen = [gpu_verify.checked(command, codes), "fa3_gpu_check --rows: a row that is not built"]
    piece = {"name": "kernels", "passed": True, "source_hash": "before", "code": seen}
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"pieces": [piece]}))
    cache = f"FA3_KERNELS:STRING={kernels}\nFA3_CHECK_KERNELS:BOOL={checks}\n"
    (folder / "CMakeCache.txt").write_text(cache)
    gpu_verify.note_code(folder, record)
    assert (folder / kernel_code.FILE).exists()
    (noted,) = json.loads(record.read_text())["pieces"]
    if kernels == checks == "ON":
        piece |= {"source_hash": "now", "code": seen[:1]}
    assert noted == piece


def test_machine_code_is_instructions_and_constants_alone(tmp_path):
    def parts(*sections):
        lines = "".join(f'.section {name},"a"\n.ascii "{text}"\n' for name, text in sections)
        image = tmp_path / "image.o"
        command = ["gcc", "-c", "-x", "assembler", "-", "-o", str(image)]
        subprocess.run(command, input=lines, text=True, check=True)
        header = struct.pack("<I2xHQ", 0xBA55ED50, 16, 16 + image.stat().st_size)
        entry = struct.pack("<4xIQ", 16, image.stat().st_size)
        images = kernel_code.images_in(header + entry + image.read_bytes())
        return [part[4:] for one in images for part in kernel_code.parts_of_elf(one)]

    assert parts((".text.kernel", "code"), (".nv.info.kernel", "sizes")) == [b"code"]
    bank = (".nv.constant2.kernel", "numbers"), (".nv.constant0.kernel", "parameters")
    assert parts((".text.kernel", "code"), *bank) == [b"code", b"numbers"]


def test_the_python_tests_that_a_gpu_runs_are_there():
    words = {word for command in gpu_pieces.python_tests() for word in command}
    paths = [Path(word) for word in words if word.startswith(str(ROOT / "tests"))]
    assert len(paths) > len(gpu_pieces.SCORE_TESTS)
    assert [path for path in paths if not path.exists()] == []


def test_shards_of_the_python_tests_have_each_test_once():
    def collected(shard):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-k", "code", __file__]
        environment = os.environ | ({"FA3_TEST_SHARD": shard} if shard else {})
        said = subprocess.run(command, capture_output=True, text=True, env=environment)
        return [line for line in said.stdout.splitlines() if "::" in line]

    shards = [collected(f"{i}/3") for i in range(3)]
    assert all(shards)
    assert sorted(name for shard in shards for name in shard) == sorted(collected(None))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_the_code_of_a_row_is_that_of_both_its_elements(build):
    folder, stage = build
    rows = [gpu_pieces.Row(row, "forward", 64, 64, f"forward_{row}") for row in range(3)]

    def code(**elements):
        for element, text in elements.items():
            stage(f"forward_2_{element}", text)
        return kernel_code.code_of_rows(folder, "fa3_gpu_check", rows)["2"]

    both = code(fp16="a", bf16="b")
    assert code(fp16="changed") != both and code(fp16="a") == both
    assert code(bf16="changed") != both and code(bf16="a", fp16="b") == both


def test_a_check_of_kernels_whose_objects_are_gone_is_run(build):
    folder, _ = build
    rows = [gpu_pieces.Row(row, "forward", 64, 64, f"forward_{row}") for row in (0, 7)]
    codes = kernel_code.KernelCode.of_build(folder, {"fa3_gpu_check": rows})
    assert codes.of_command(["bin/fa3_gpu_check", "--rows", "0", "1"]) is not None
    assert codes.of_command(["bin/fa3_gpu_check", "--rows", "7", "8"]) is None
    assert codes.of_command(["bin/fa3_gpu_check"]) is None
    assert codes.of_command(["fa3_engine_tests"]) is None

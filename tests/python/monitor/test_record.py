# SPDX-License-Identifier: Apache-2.0
"""FA3_LOG writes calls as lines; FA3_DUMP keeps inputs of a call that failed or made NaN, which
fa3 replay runs again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fa3", reason="the Python package is not built")


def run(program, *arguments, **environment):
    lines = program.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return python("-c", "\n".join(line[indent:] for line in lines), *arguments, **environment)


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def replay(path, *arguments):
    return python("-m", "fa3", "replay", path, *arguments)


def header_of(path):
    with open(path, "rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))


TWO_CALLS = """
import numpy as np, fa3
q = np.zeros((2, 4, 2, 8), np.float32)
k = np.zeros((2, 5, 1, 8), np.float32)
fa3.attention(q[:, ::2], k, k, causal=True, scale=0.5, engine="reference")
try: fa3.attention(q, k[..., :4], k)
except fa3.InvalidArgument as error: print(error)
"""


def test_a_line_has_tensors_unusual_strides_options_engine_and_kernel():
    done = run(TWO_CALLS, FA3_LOG="call")
    first, second = done.stderr.splitlines()
    assert first == (
        "fa3: forward q=float32[2,2,2,8]/64,32,8,1 k=float32[2,5,1,8] v=float32[2,5,1,8] "
        "o=float32[2,2,2,8] causal=1 scale=0.5 engine=2 cpu -> reference: textbook float64"
    )
    assert second.startswith("fa3: forward q=float32[2,4,2,8] k=float32[2,5,1,4]/40,8,8,1 v=")
    assert second.endswith(" cpu: failed: " + done.stdout.strip())


def test_both_passes_over_latent_rows_have_lines():
    pytest.importorskip("torch", reason="torch is not installed")
    program = """
    import torch, fa3
    q = torch.ones(2, 3, 512, requires_grad=True)
    indices = torch.zeros(2, 4, dtype=torch.int32)
    fa3.mla.sparse_attention(q, torch.ones(5, 512), indices, scale=0.5).sum().backward()
    """
    forward, backward = run(program, FA3_LOG="call").stderr.splitlines()
    assert forward.startswith("fa3: mla q=float32[2,3,512] cache=float32[1,5,512]")
    assert backward == (
        "fa3: mla_backward q=float32[2,3,512] cache=float32[1,5,512] indices=int32[2,4] "
        "o=float32[2,3,512] lse=float32[3,2] d_o=float32[2,3,512] dq=float32[2,3,512] "
        "d_cache=float32[1,5,512] scale=0.5 cpu -> cpu: tiled backward, latent rows read as floats"
    )


def test_level_error_writes_failed_calls_alone():
    done = run(TWO_CALLS, FA3_LOG="error")
    (line,) = done.stderr.splitlines()
    assert line.endswith(" cpu: failed: " + done.stdout.strip())


def test_nothing_is_written_unless_asked(tmp_path):
    done = run(TWO_CALLS, FA3_LOG="", FA3_DUMP="")
    assert (done.returncode, done.stderr) == (0, "")
    done = run(TWO_CALLS, FA3_LOG="verbose")
    assert done.stderr == "fa3: FA3_LOG: expected error or call, got verbose; ignored\n"


NAN = """
import sys, numpy as np, fa3
random = np.random.default_rng(3)
q, k, v = (random.standard_normal((1, 9, 2, 8), np.float32) for _ in range(3))
for _ in range(int(sys.argv[1])):
    out = fa3.attention(1e20 * q, 1e20 * k, v, causal=True)  # scores overflow float32
    assert not np.isfinite(out).all()
"""


def test_inputs_of_a_call_that_made_nan_are_kept_and_replayed(tmp_path):
    done = run(NAN, 1, FA3_DUMP=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    line = r"fa3: forward q=.* -> cpu: o has \d+ of 144 numbers that are not finite; inputs kept: "
    assert re.fullmatch(line + f"fa3 replay {path}\n", done.stderr)
    again = replay(path)
    assert again.returncode == 1, again.stderr
    assert "call    forward q=float32[1,9,2,8]" in again.stdout
    assert re.search(r"\no +[1-9]\d* +0 ", again.stdout)  # of the engine; of double precision
    assert "engine  standard; the call ran on cpu" in replay(path, "--engine", "standard").stdout


def test_kept_inputs_hold_the_callers_bits(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    run(NAN, 1, FA3_DUMP=str(tmp_path))
    (path,) = tmp_path.iterdir()
    random = np.random.default_rng(3)
    q, k, v = (random.standard_normal((1, 9, 2, 8), np.float32) for _ in range(3))
    found = safetensors.load_file(path)
    for name, x in {"q": np.float32(1e20) * q, "k": np.float32(1e20) * k, "v": v}.items():
        np.testing.assert_array_equal(found[name], x)


def test_files_have_a_bound_in_number(tmp_path):
    run(NAN, 20, FA3_DUMP=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 8
    for number in range(60):
        (tmp_path / f"fa3-{number}").touch()
    done = run(NAN, 20, FA3_DUMP=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 68
    assert f"not kept: {tmp_path} has 64 files" in done.stderr


def test_a_folder_that_is_not_there_changes_no_call(tmp_path):
    done = run(NAN, 1, FA3_DUMP=str(tmp_path / "nowhere"))
    assert done.returncode == 0 and "not kept: cannot write" in done.stderr


def test_inputs_that_are_not_finite_are_named_and_not_kept(tmp_path):
    done = run(
        """
        import numpy as np, fa3
        q = np.full((1, 4, 1, 8), np.nan, np.float32)
        fa3.attention(q, q, q)
        """,
        FA3_DUMP=str(tmp_path),
    )
    assert "not kept: so are inputs: q has 32 of 32" in done.stderr
    assert not list(tmp_path.iterdir())


def test_rows_without_keys_are_no_failure(tmp_path):
    done = run(
        """
        import numpy as np, fa3
        q = np.zeros((1, 4, 1, 8), np.float32)
        out, lse = fa3.attention(q, q[:, :2], q[:, :2], causal=True, return_lse=True)
        assert np.isinf(lse).any()
        """,
        FA3_DUMP=str(tmp_path),
    )
    assert (done.returncode, done.stderr) == (0, "")


MANY_OPTIONS = """
import sys, ml_dtypes, numpy as np, fa3
random = np.random.default_rng(3)
def normal(*shape): return random.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
q, do = normal(2, 4, 9, 16).transpose(0, 2, 1, 3), normal(2, 9, 4, 16)
k, v = np.broadcast_to(normal(1, 7, 2, 16), (2, 7, 2, 16)), normal(2, 7, 2, 16)
options = dict(window=(3, 2), softcap=20.0, scale=0.3, sink=np.ones(4, np.float32),
    dropout_p=0.25, dropout_seed=(2**63 + 5, 7), seqused_k=np.array([7, 3], np.int32))
if sys.argv[1] == "forward": v[0, :, 0, 0] = 3.3e38  # more than the largest float, after dropout
out, lse = fa3.attention(q, k, v, return_lse=True, **options)
do[0, 5] = v[0, :, 0, 0] = 3e38
if sys.argv[1] == "backward": fa3.attention_backward(do, q, k, v, out, lse, **options)
"""


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_a_replay_has_the_calls_options_and_strides(tmp_path, name):
    pytest.importorskip("ml_dtypes")
    done = run(MANY_OPTIONS, name, FA3_DUMP=str(tmp_path), FA3_LOG="call")
    (path,) = tmp_path.iterdir()
    again = python("-m", "fa3", "replay", path, FA3_LOG="call")

    def line(stderr):
        (found,) = re.findall(rf"fa3: ({name} .* -> cpu: tiled.*)", stderr)
        return found.replace(" engine=1", "")

    assert line(again.stderr) == line(done.stderr)
    notes = header_of(path)["__metadata__"]
    assert (notes["dropout_seed"], notes["dropout_offset"]) == (str(2**63 + 5), "7")


def test_a_call_without_memory_is_kept_and_replayed(tmp_path):
    done = run(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        import c_abi, ctypes, numpy as np
        q = np.ones((1, 64, 1, 8), np.float32)
        arrays = dict(q=q, k=q, v=q, o=np.zeros_like(q))
        params = c_abi.params_for(c_abi.ForwardParams, {{}}, arrays)
        none = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(lambda *_: None)
        print(c_abi.library().fa3_forward_with_allocator(ctypes.byref(params), none, None, None))
        """,
        FA3_DUMP=str(tmp_path),
    )
    assert done.stdout == "4\n", done.stderr  # FA3_OUT_OF_MEMORY
    (path,) = tmp_path.iterdir()
    again = replay(path)
    assert "reason  workspace: expected " in again.stdout
    assert again.returncode == 0 and re.search(r"\no +0 +0 ", again.stdout)


@pytest.mark.parametrize("text", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 64])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    path = tmp_path / "file"
    path.write_bytes(text)
    done = replay(path)
    assert done.returncode == 2
    assert done.stderr == f"fa3 replay: {path}: expected a file that FA3_DUMP wrote\n"


def test_an_engine_that_is_not_there_is_said(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    run(NAN, 1, FA3_DUMP=str(tmp_path))
    (path,) = tmp_path.iterdir()
    done = replay(path, "--engine", "hopper")
    assert done.returncode == 1 and "failed  " in done.stdout


def test_threads_and_forked_children_write_whole_lines_and_files_of_their_own(tmp_path):
    done = run(
        """
        import os, threading, numpy as np, fa3
        q = 1e20 * np.ones((1, 4, 1, 8), np.float32)
        def calls():
            for _ in range(30): fa3.attention(q, -q, q, num_threads=1)
        threads = [threading.Thread(target=calls) for _ in range(3)]
        for thread in threads: thread.start()
        children = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                calls()
                os._exit(0)
            children.append(child)
        for child in children: assert os.waitpid(child, 0)[1] == 0
        for thread in threads: thread.join()
        """,
        FA3_DUMP=str(tmp_path),
        FA3_LOG="call",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith("fa3: forward q=float32[1,4,1,8] k=") for line in lines)
    assert sum(" -> cpu: tiled" in line for line in lines) == 8 * 30
    assert all(path.suffix == ".safetensors" for path in tmp_path.iterdir())


def kept(strides, shape=(2, 9, 4, 16)):
    from fa3.commands import replay

    call = replay.Kept.__new__(replay.Kept)
    call.notes = {"q.strides": json.dumps(strides)}
    return replay, call.memory("q", shape, np.dtype("float32"))


@pytest.mark.parametrize("strides", [[576, 16, 144, 1], [1152, 64, 16, 1], [0, 64, 16, 1]])
def test_a_gpu_gets_the_strides_and_the_numbers(strides, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)  # the copy alone
    replay, array = kept(strides)
    array[...] = np.random.default_rng(0).standard_normal(array.shape)
    found = replay.on_gpu(array)
    assert list(found.stride()) == strides
    np.testing.assert_array_equal(found.numpy(), array)


@pytest.mark.parametrize("strides", [[576, 64, 16, -1], [3000000, -375000, 0, 1], [0.5, 1, 1, 1]])
def test_strides_that_leave_their_memory_are_refused(strides):
    with pytest.raises(ValueError, match=str(strides[1])):
        kept(strides)

# SPDX-License-Identifier: Apache-2.0
"""fa3.flex.warm_up makes kernels of both passes and computes nothing."""

import contextlib
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

import fa3.flex  # noqa: E402, F811
from fa3.flex import device as scores  # noqa: E402
from fa3.flex import tiles  # noqa: E402
from fa3.flex.device import mode, only_compiling  # noqa: E402

ROWS, HEADS = 40, 2


def inputs(device="cpu", dtype=torch.float32, learn=True):
    return [
        torch.randn(1, ROWS, HEADS, 64, device=device, dtype=dtype, requires_grad=learn)
        for _ in range(3)
    ]


def calls_of(device):
    table = torch.randn(HEADS, ROWS, device=device, requires_grad=True)
    bias = torch.randn(1, HEADS, ROWS, ROWS, device=device, requires_grad=True)
    return {
        "a function": {"score_mod": lambda s, b, h, i, j: s + table[h, j]},
        "a function and a mask": {
            "score_mod": lambda s, b, h, i, j: s * table[h, 0],
            "mask_mod": lambda b, h, i, j: i >= j,
        },
        "a mask": {"mask_mod": lambda b, h, i, j: i >= j},
        "a bias": {"bias": bias, "causal": True},
        "slopes": {"alibi_slopes": table[:, 0].detach()},
    }


@pytest.mark.parametrize("name", calls_of("cpu"))
@pytest.mark.parametrize("learn", [False, True])
def test_it_takes_the_arguments_of_the_call_and_computes_nothing(name, learn, monkeypatch):
    for step in ("forward", "backward"):
        monkeypatch.setattr(tiles, step, None)
    q, k, v = inputs(learn=learn)
    fa3.flex.warm_up(q, k, v, **calls_of("cpu")[name])
    assert q.grad is None and not mode.only_compiles


def test_it_refuses_what_the_call_refuses():
    with pytest.raises(fa3.InvalidArgument, match="bias: expected"):
        fa3.flex.warm_up(*inputs(), bias=torch.zeros(3, 1, 1, 1))
    assert not mode.only_compiles


def test_other_threads_compute():
    seen = []
    with only_compiling():
        thread = threading.Thread(target=lambda: seen.append(mode.only_compiles))
        thread.start()
        thread.join()
        assert mode.only_compiles
    assert seen == [False]


@pytest.mark.parametrize("learn", [False, True])
def test_both_passes_are_asked_to_compile_alone(monkeypatch, learn):
    """By stand-ins for the compiled module, which get what a GPU's calls get."""
    asked = []
    monkeypatch.setattr(fa3.flex.query, "nvrtc_path", lambda: None)
    for step in ("forward", "backward"):
        record = lambda lend, score, *_, step=step: asked.append((step, score[-1]))  # noqa: E731
        monkeypatch.setattr(scores._native, f"{step}_with_score", record, raising=True)
    bias = torch.randn(1, HEADS, ROWS, ROWS, requires_grad=learn)
    function, tensors = fa3.flex.bias.function_with(bias, None, None)
    q, k, v = inputs(dtype=torch.bfloat16, learn=False)
    call = fa3.flex.decisions.decided(
        function, tensors, q, k, v, fa3.flex.call.EVERY_KEY, None, fa3.flex.call.NO_LENGTHS
    )._replace(has_kernels=True)
    for compiling in (contextlib.nullcontext(), only_compiling()):
        with compiling:
            scores.forward(call, q, k, v, tensors, None, True)
    assert [step for step, _ in asked] == ["forward"] * 2 and asked[1][1] is True
    assert asked[0][1] is not True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
@pytest.mark.parametrize("name", calls_of("cpu"))
def test_the_call_then_compiles_nothing(name, monkeypatch, tmp_path):
    monkeypatch.setenv("FA3_CACHE_DIR", str(tmp_path))
    options = calls_of("cuda")[name]
    q, k, v = inputs("cuda", torch.bfloat16)
    fa3.flex.warm_up(q, k, v, **options)
    files = sorted(path.name for path in tmp_path.iterdir())
    call = fa3.attention if "bias" in options or "alibi_slopes" in options else fa3.flex_attention
    call(q, k, v, **options).float().square().sum().backward()
    assert sorted(path.name for path in tmp_path.iterdir()) == files

# SPDX-License-Identifier: Apache-2.0
"""fa3.attention_fp8 is the same as its parts; FA3_MONITOR_FP8 tells what it errs."""

import os
import subprocess
import sys

import numpy as np
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("ml_dtypes", reason="ml_dtypes gives numpy its float8")

SHAPE = (2, 100, 4, 64)


def inputs():
    random = np.random.default_rng(5)
    return [random.standard_normal(SHAPE, np.float32) for _ in range(3)]


@pytest.mark.parametrize("scaling", ["block", "head", "tensor"])
def test_is_attention_of_quantized_arrays(scaling):
    q, k, v = inputs()
    lengths = np.array([100, 37], np.int32)
    out, lse = fa3.attention_fp8(
        q, k, v, scaling=scaling, seed=7, causal=True, seqused_k=lengths, return_lse=True
    )
    q8 = fa3.quantize(q, scaling=scaling, hadamard=True, seed=7)
    k8 = fa3.quantize(k, scaling=scaling, hadamard=True, seed=7, center=True, seqused=lengths)
    v8 = fa3.quantize(v, scaling=scaling, center=True, seqused=lengths)
    want, want_lse = fa3.attention(
        q8.x, k8.x, v8.x, q_descale=q8.descale, k_descale=k8.descale, v_descale=v8.descale,
        k_mean=k8.mean, v_mean=v8.mean, causal=True, seqused_k=lengths, return_lse=True,
        out=np.empty_like(q),
    )  # fmt: skip
    assert np.array_equal(out, want) and np.array_equal(lse, want_lse)
    assert fa3.fp8.difference(out, fa3.attention(q, k, v, causal=True, seqused_k=lengths)) < 0.06


@pytest.mark.parametrize("learns", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_have_what_each_has_alone(device, causal, learns):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    lengths, used = [130, 0, 64, 7, 300], [130, 0, 40, 7, 1]
    cu = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=device)
    seqused = torch.tensor(used, dtype=torch.int32, device=device)
    rows = int(cu[-1]) + 5  # of no sequence
    q, k, v = (
        torch.randn(rows, heads, 64, device=device).bfloat16() + mean
        for heads, mean in ((4, 0), (2, 3), (2, 2))
    )
    q[-5:] = k[-5:] = v[-5:] = torch.nan
    q.requires_grad_(learns)
    out, lse = fa3.attention_fp8(
        q, k, v, causal=causal, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=300,
        max_seqlen_k=300, seqused_k=seqused, return_lse=True,
    )  # fmt: skip
    for first, length, keys in zip(cu.tolist(), lengths, used, strict=False):
        mine = slice(first, first + length)
        one, one_lse = fa3.attention_fp8(
            q[mine][None], k[mine][:keys][None], v[mine][:keys][None], causal=causal,
            return_lse=True,
        )  # fmt: skip
        torch.testing.assert_close(out[mine], one[0], rtol=0.01, atol=0.01)
        torch.testing.assert_close(lse[:, mine], one_lse[0], rtol=0, atol=1e-4)
    assert out.isfinite().all() and (lse[:, -5:] == -torch.inf).all()


def test_output_has_the_type_of_the_queries():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        q, k, v = (torch.from_numpy(x).to(dtype) for x in inputs())
        assert fa3.attention_fp8(q, k, v).dtype == dtype


PROGRAM = """
import fa3, numpy as np
from fa3.fp8 import difference
random = np.random.default_rng(5)
for call in range(3):
    q, k, v = (random.standard_normal((1, 50, 2, 64), np.float32) for _ in range(3))
    found = fa3.attention_fp8(q, k, v, causal=True)
    print(100 * difference(found, fa3.attention(q, k, v, causal=True)))
"""


def run_program(every):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"FA3_MONITOR_FP8": every},
        capture_output=True,
        text=True,
    )


def test_every_nth_call_is_compared_with_attention_without_quantization():
    done = run_program("2")
    first, _, third = (float(line) for line in done.stdout.split())
    assert f"fp8 differs by {(first + third) / 2:.3g}% from" in done.stderr
    most = f"at most {max(first, third):.3g}% (2 samples, 3 calls): float32 q (1, 50, 2, 64)"
    assert most in done.stderr


def test_nothing_is_compared_unless_asked():
    for every in ("", "0"):
        done = run_program(every)
        assert done.returncode == 0 and done.stderr == ""


def test_a_wrong_number_of_calls_is_refused():
    done = run_program("often")
    assert "FA3_MONITOR_FP8: expected a number of calls, got 'often'" in done.stderr


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize(
    "options",
    [
        dict.fromkeys(("engine", "num_threads", "max_seqlen_q", "max_seqlen_k", "causal")),
        {"seed": -1},
        {"seed": 2**64 - 1},
    ],
)
def test_options_of_none_and_seeds_of_64_bits(library, options):
    if library == "torch":
        torch = pytest.importorskip("torch")
        x = torch.randn(1, 20, 2, 16)
    else:
        x = np.random.default_rng(1).standard_normal((1, 20, 2, 16), np.float32)
    found = fa3.attention_fp8(x, x, x, **options)
    wanted = fa3.attention_fp8(x, x, x, seed=-1 if "seed" in options else 0)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


@pytest.mark.parametrize(
    "change, error, sentence",
    [
        ({"k": lambda k: k.astype(np.float64)}, fa3.InvalidArgument, "^k: expected .*float64"),
        ({"v": lambda v: v.astype(np.int32)}, fa3.InvalidArgument, "^v: expected .*int32"),
        ({"q": lambda q: q[0]}, fa3.InvalidArgument, "^q: expected rank 4"),
        ({"q": lambda q: [1.0]}, TypeError, "^q: expected an array"),
        ({"casual": 1}, TypeError, r"^attention_fp8\(\) got .* 'casual'.*'causal'\?$"),
        ({"hadamar": 1}, TypeError, r" 'hadamar'\. Did you mean 'hadamard'\?$"),
        ({"scalings": 1}, TypeError, r" 'scalings'\. Did you mean 'scaling'\?$"),
        ({"is_causal": 1}, TypeError, r" 'is_causal'; here that is causal$"),
        ({"q_descale": 1}, TypeError, r"^attention_fp8\(\) got an unexpected .* 'q_descale'$"),
        ({"page_table": np.zeros((1, 1), np.int32)}, fa3.Unsupported, "^page_table: .*quantize"),
        ({"bias": 1}, fa3.Unsupported, "^bias: not with attention_fp8"),
        ({"seed": 2**64}, fa3.InvalidArgument, "^seed: .*64 bits"),
        ({"seed": "1"}, TypeError, "^seed: expected an integer"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_is_wrong_has_the_name_that_the_caller_gave_it(change, error, sentence):
    x = np.ones((1, 4, 2, 16), np.float32)
    arguments = {"q": x, "k": x, "v": x}
    for name, value in change.items():
        arguments[name] = value(arguments[name]) if callable(value) else value
    with pytest.raises(error, match=sentence):
        fa3.attention_fp8(**arguments)

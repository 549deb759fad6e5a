# SPDX-License-Identifier: Apache-2.0
"""Gradients of captured tensors that depend on the score: on the kernels, beside float64."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.flex import device as of_gpus  # noqa: E402
from fa3.flex.device import BackwardPlan, SlowScores  # noqa: E402
from fa3.flex.query import Answer  # noqa: E402

HEADS, KV_HEADS = 4, 2
SIZES = {"cuda": (150, 270), "cpu": (20, 36)}  # rows and keys
MOST_ROWS = 150


def temperature(learned):
    return lambda s, b, h, q, k: s * learned["heads"][h]


def one_temperature(learned):
    return lambda s, b, h, q, k: s * learned["number"]


def cap(learned):
    def capped(s, b, h, q, k):
        return learned["heads"][h] * torch.tanh(s / learned["heads"][h])

    return capped


def table_of_scores(learned):
    """A slope of 1 + the table's element, and elements that many scores share."""
    return lambda s, b, h, q, k: s + learned["table"][h, k - q + MOST_ROWS] * s


def keys_and_rows(learned):
    def scaled(s, b, h, q, k):
        return s * learned["keys"][b, k] + torch.sigmoid(learned["table"][h, q]) * torch.sin(s)

    return scaled


def leaky(learned):
    """Its slope is 1, and still the score decides whose gradient it is."""
    return lambda s, b, h, q, k: s + torch.where(s > 0, learned["heads"][h], learned["keys"][b, k])


FUNCTIONS = temperature, one_temperature, cap, table_of_scores, keys_and_rows, leaky


def tensors_of(device, dtype, dims):
    draw = torch.Generator().manual_seed(7)

    def made(*shape, dtype=dtype, offset=0.0, size=1.0):
        numbers = (torch.randn(shape, generator=draw) * size + offset).to(dtype)
        return numbers.to(device).requires_grad_()

    d, dv = dims
    rows, keys = SIZES[device]
    qkv = made(2, rows, HEADS, d), made(2, keys, KV_HEADS, d), made(2, keys, KV_HEADS, dv)
    learned = {
        "heads": made(HEADS, dtype=torch.float32, offset=2.0, size=0.3),
        "number": made(dtype=torch.float32, offset=1.5, size=0.0),
        "table": made(HEADS, MOST_ROWS + keys, size=0.3),
        "keys": made(2, keys, dtype=torch.float32, offset=1.0, size=0.3),
    }
    return [*qkv], learned


def attend(qkv, learned, make, upstream, options):
    """The output, and the gradients of q, k, v and of what the function captures, by name."""
    asked = set()

    class Asked(dict):
        def __getitem__(self, name):
            asked.add(name)
            return dict.__getitem__(self, name)

    score_mod = make(Asked(learned))
    out = fa3.flex_attention(*qkv, score_mod=score_mod, **options)
    upstream = out.detach() if upstream is None else upstream.to(out.dtype)
    names = [*"qkv", *sorted(asked)]
    of = [*qkv, *(learned[n] for n in names[3:])]
    return {"out": out, **dict(zip(names, torch.autograd.grad(out, of, upstream), strict=True))}


def check(device, dtype, dims, make, options):
    qkv, learned = tensors_of(device, dtype, dims)

    def wide(tensor):
        return tensor.detach().double().requires_grad_()

    # What is asked is of one sign then, so that sums do not cancel.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowScores)
        exact = [wide(t) for t in qkv], {n: wide(t) for n, t in learned.items()}
        upstream = attend(*exact, make, None, options)["out"].detach().to(dtype)
        right = attend(*exact, make, upstream, options)
    mine = attend(qkv, learned, make, upstream, options)
    step = torch.finfo(dtype).eps
    steps = {n: ((mine[n].double() - x).abs().max() / x.abs().max() / step).item()
             for n, x in right.items()}  # fmt: skip
    assert max(steps.values()) < (4 if dtype.itemsize == 2 else 100), steps


OPTIONS = {
    "all keys": {},
    "causal": {"causal": True},
    "window": {"window": (60, 30)},
    "used": {"seqused_k": torch.tensor([36, 31], dtype=torch.int32)},
    "lists": {"mask_mod": lambda b, h, q, k: (k < 20) | (q // 50 == k // 50)},
}


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("make", FUNCTIONS, ids=lambda make: make.__name__)
def test_they_are_those_of_float64(device, make, options):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    given = OPTIONS[options]
    moved = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    check(device, dtype, (128, 128), make, moved)


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
@pytest.mark.parametrize("dims", [(40, 40), (64, 64), (96, 64), (192, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("make", [cap, table_of_scores, leaky], ids=lambda make: make.__name__)
def test_they_are_those_of_float64_for_every_head_dim(device, make, dims):
    dtype = torch.float16 if device == "cuda" else torch.float32
    check(device, dtype, dims, make, {"causal": True})


@pytest.mark.filterwarnings("error::fa3.flex.device.SlowScores")
def test_scores_beyond_float16_are_kept_as_its_largest_number(device):
    """A key without weight has finite gradients all the same."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    qkv, learned = tensors_of(device, dtype, (64, 64))
    with torch.no_grad():
        qkv[1][:, 7] *= 1e6
    found = attend(qkv, learned, temperature, None, {})
    assert all(x.isfinite().all() for x in found.values())


@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.5, "dropout_seed": (1, 2)}])
def test_kernels_are_asked_with_what_the_module_reads(dropout, monkeypatch):
    """As on a GPU: the module reads every argument, then finds that a CPU has no such kernel."""
    plan = BackwardPlan(False, None, Answer(True, 0, True, "", ""))
    monkeypatch.setattr(of_gpus, "backward_plan", lambda *_: plan)
    said = []
    monkeypatch.setattr(of_gpus, "refused", said.append)
    q, k, v = (torch.randn(1, 20, 2, 16).requires_grad_() for _ in range(3))
    out = fa3.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 0.1 * i, **dropout)
    torch.autograd.grad(out.sum(), (q, k, v))
    assert len(said) == 1 and "cpu: has no score functions" in said[0]

# SPDX-License-Identifier: Apache-2.0
"""Compares fa3 with double precision on a grid of cases, beside standard attention.

Truth is the engine "reference" on the same rounded inputs, the baseline the engine "standard",
which stores S and P in the input type as textbook code does. A result passes when its error is at
most twice the baseline's plus two units in the last place (docs/numerics.md). Errors are
norms of differences over norms of the truth.
"""

from itertools import product

import numpy as np

import fa3

SHAPES = {  # b, sq, sk, hq, hk, d, dv
    "square": (1, 128, 128, 4, 4, 64, 64),
    "long keys": (1, 65, 257, 4, 2, 64, 64),
    "short keys": (1, 130, 33, 4, 1, 64, 64),
    "decode": (2, 1, 511, 8, 2, 128, 128),
    "wide head": (1, 96, 160, 2, 2, 256, 256),
    "dv is not d": (1, 100, 100, 2, 2, 96, 64),
    "odd": (2, 37, 71, 3, 1, 40, 40),
}
OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (32, 16)},
    "softcap": {"softcap": 20.0, "causal": True},
}
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
ULPS = 2


def add_arguments(parser):
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--engine", default="auto", help="which engine to verify")
    parser.add_argument("--dtype", choices=tuple(ROUNDOFF), help="default: all that there are")


def run(arguments):
    dtypes = [arguments.dtype] if arguments.dtype else list(ROUNDOFF)
    outcomes = {"passed": 0, "failed": 0, "skipped": 0}
    print(f"{'case':<34}{'dtype':<10}{'result':<9}{'worst':<6}{'error':>9}{'baseline':>10}")
    for dtype, shape, option in product(dtypes, SHAPES, OPTIONS):
        label = f"{shape}, {option}"
        try:
            errors = compare(dtype, SHAPES[shape], OPTIONS[option], arguments)
        except (fa3.Unsupported, ModuleNotFoundError) as reason:
            outcomes["skipped"] += 1
            print(f"{label:<34}{dtype:<10}skipped: {reason}")
            continue
        limit = ULPS * ROUNDOFF[dtype]
        name, (error, baseline) = max(errors.items(), key=lambda e: e[1][0] - 2 * e[1][1])
        passed = all(error <= 2 * base + limit for error, base in errors.values())
        outcomes["passed" if passed else "failed"] += 1
        word = "passed" if passed else "FAILED"
        print(f"{label:<34}{dtype:<10}{word:<9}{name:<6}{error:>9.1e}{baseline:>10.1e}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in outcomes.items()))
    return 1 if outcomes["failed"] or not outcomes["passed"] else 0


def compare(dtype, shape, options, arguments):
    """name -> (error of the engine, error of the baseline) for out and the gradients."""
    b, sq, sk, hq, hk, d, dv = shape
    rng = np.random.default_rng(0)
    shapes = (b, sq, hq, d), (b, sk, hk, d), (b, sk, hk, dv), (b, sq, hq, dv)
    arrays = [to_type(rng.standard_normal(s), dtype) for s in shapes]
    truth = both_passes(arrays, options, "reference")
    baseline = both_passes(arrays, options, "standard")
    if arguments.device == "cpu":
        results = both_passes(arrays, options, arguments.engine)
    else:
        results = both_passes_on_gpu(arrays, options, arguments.engine)
    return {
        name: (relative(result, truth[name]), relative(baseline[name], truth[name]))
        for name, result in results.items()
    }


def to_type(x, dtype):
    if dtype == "bfloat16":
        import ml_dtypes

        return x.astype(ml_dtypes.bfloat16)
    return x.astype(dtype)


def both_passes(arrays, options, engine):
    q, k, v, do = arrays
    out, lse = fa3.attention(q, k, v, return_lse=True, engine=engine, **options)
    gradients = fa3.attention_backward(do, q, k, v, out, lse, engine=engine, **options)
    return {"out": out, **dict(zip(("dq", "dk", "dv"), gradients, strict=False))}


def both_passes_on_gpu(arrays, options, engine):
    import torch

    name = arrays[0].dtype.name
    q, k, v, do = (torch.tensor(a.astype(np.float32), device="cuda") for a in arrays)
    q, k, v, do = (a.to(getattr(torch, name)) for a in (q, k, v, do))
    leaves = [a.requires_grad_() for a in (q, k, v)]
    out = fa3.attention(*leaves, engine=engine, **options)
    results = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, do), strict=True))
    return {name: a.detach().float().cpu().numpy() for name, a in ({"out": out} | results).items()}


def relative(x, truth):
    x, truth = x.astype(np.float64), truth.astype(np.float64)
    norm = np.linalg.norm(truth)
    return float(np.linalg.norm(x - truth) / norm) if norm else float(np.linalg.norm(x))

# SPDX-License-Identifier: Apache-2.0
"""What Python knows and the C++ command does not: versions, torch, and who else owns the names."""

import importlib.metadata
import platform
import sys

import numpy as np

import fa3


def print_facts():
    for what, finding in facts().items():
        print(f"{'ok':<5} {what:<18} {finding}")


def check_engines(without_command):
    """What of the command's doctor needs no command. Returns the exit code."""
    failed = False
    for name, available, detail in fa3.engines():
        finding, verdict = f"not here: {detail}", "ok"
        if available and name in ON_CPU:
            error = error_of(name)
            finding = f"{detail}; tiny case off by {error:.2g}"
            verdict = "ok" if error < 1e-5 else "FAIL"
        elif available:
            finding = detail
        failed |= verdict != "ok"
        print(f"{verdict:<5} {'engine ' + name:<18} {finding}")
    print(f"warn  command            {without_command}")
    print("\na check failed" if failed else "\nfa3 works here, from Python.")
    return 1 if failed else 0


ON_CPU = "cpu", "reference", "standard"


def error_of(engine):
    """With q = 0 every key has the same weight: the output is the mean of v."""
    v = np.random.default_rng(7).standard_normal((1, 37, 2, 24), np.float32)
    out = fa3.attention(np.zeros_like(v), v, v, engine=engine)
    return abs(out - v.mean(1, keepdims=True)).max()


def facts():
    return {
        "python": f"{platform.python_version()}, {sys.executable}",
        "package": f"fa3 {fa3.__version__} in {fa3.__path__[0]}",
        **{name: version_of(name) for name in ("numpy", "ml_dtypes", "transformers")},
        **about_torch(),
        "flash_attn": about_flash_attn(),
    }


def version_of(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def about_torch():
    try:
        import torch
    except ImportError as error:
        return {"torch": f"cannot be imported, and fa3 works without it: {error}"}
    found = f"{torch.__version__}, built for CUDA {torch.version.cuda or '(none)'}"
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        found += "; fa3 needs torch 2.10 or later"
    return {"torch": found}


def about_flash_attn():
    """Who answers to the names that fa3.compat stands in for."""
    names = ("flash_attn", "flash_attn_interface", "flash_attn_3")
    owners = importlib.metadata.packages_distributions()
    found = [
        f"{name} from {', '.join(f'{owner} {version_of(owner)}' for owner in owners[name])}"
        for name in names
        if name in owners
    ]
    return "; ".join(found) or "not installed; fa3.compat has the same functions"

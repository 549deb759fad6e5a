# SPDX-License-Identifier: Apache-2.0
"""What Python knows and the C++ command does not: versions, torch, and who else owns the names."""

import importlib.metadata
import platform
import sys

import fa3


def print_facts():
    for what, finding in facts().items():
        print(f"{'ok':<5} {what:<18} {finding}")


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

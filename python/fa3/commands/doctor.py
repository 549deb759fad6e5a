# SPDX-License-Identifier: Apache-2.0
"""Reports what fa3 finds on this machine and tries every engine once. Exits with 1 if one fails."""

import importlib.metadata
import importlib.util
import json
import platform
import sys
from pathlib import Path

import numpy as np

import fa3

TOLERANCE = 1e-5  # of float32 attention over 33 keys


def add_arguments(parser):
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments):
    report = {name: guarded(probe) for name, probe in PROBES.items()}
    failed = [name for name, said in report["engines"].items() if said.startswith("FAILED")]
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report)
    return 1 if failed else 0


def guarded(probe):
    """A doctor reports; it does not fall ill itself."""
    try:
        return probe()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def print_report(report):
    for name, said in report.items():
        if isinstance(said, dict):
            print(f"{name}:")
            for key, value in said.items():
                print(f"  {key:<12} {value}")
        else:
            print(f"{name:<14} {said}")


def about_library():
    return f"{fa3.__version__}, {loaded_library() or 'path unknown'}"


def loaded_library():
    """The file that the loader took, which need not be the one that was installed."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return next((line.split()[-1] for line in lines if "libfa3.so" in line), None)


def about_engines():
    return {name: tried(name) if ok else f"no: {why}" for name, ok, why in fa3.engines()}


def tried(engine):
    if engine == "hopper":
        return tried_on_gpu()
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 33, 2, 16), np.float32) for _ in range(3))
    return verdict(fa3.attention(q, k, v, engine=engine), textbook(q, k, v), TOLERANCE)


def tried_on_gpu():
    import torch

    q, k, v = (torch.randn(1, 128, 2, 64, device="cuda").bfloat16() for _ in range(3))
    out = fa3.attention(q, k, v, engine="hopper").float().cpu().numpy()
    exact = textbook(*(x.float().cpu().numpy() for x in (q, k, v)))
    return verdict(out, exact, tolerance=0.03)


def verdict(out, exact, tolerance):
    error = abs(out - exact).max()
    return f"works, largest error {error:.1e}" if error <= tolerance else f"FAILED: error {error}"


def textbook(q, k, v):
    q, k, v = (x.astype(np.float64).swapaxes(1, 2) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2)


def about_torch():
    if importlib.util.find_spec("torch") is None:
        return "not installed; fa3 works without it"
    import torch

    found = {
        "version": torch.__version__,
        "exchange": "yes" if hasattr(torch.Tensor, "__dlpack_c_exchange_api__") else "no, slower",
        "cuda": f"built for {torch.version.cuda}" if torch.version.cuda else "not in this build",
    }
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        found["gpu"] = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"
    else:
        found["gpu"] = "none that torch can use"
    if hasattr(torch.nn.attention, "current_flash_attention_impl"):
        found["sdpa"] = (
            f"registry there, active: {torch.nn.attention.current_flash_attention_impl()}"
        )
    else:
        found["sdpa"] = "no registry (torch 2.10 and later): enable_sdpa cannot work"
    return found


def version_of(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def about_flash_attn():
    """Who answers to the names that fa3.compat stands in for."""
    names = ("flash_attn", "flash_attn_interface", "flash_attn_3")
    owners = importlib.metadata.packages_distributions()
    found = [f"{n} from {', '.join(owners[n])}" for n in names if n in owners]
    return "; ".join(found) or "not installed; fa3.compat has the same functions"


PROBES = {
    "fa3": about_library,
    "python": lambda: f"{platform.python_version()}, {sys.executable}",
    "platform": platform.platform,
    "numpy": lambda: version_of("numpy"),
    "ml_dtypes": lambda: version_of("ml_dtypes"),
    "transformers": lambda: version_of("transformers"),
    "flash_attn": about_flash_attn,
    "torch": about_torch,
    "engines": about_engines,
}

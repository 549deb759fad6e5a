# SPDX-License-Identifier: Apache-2.0
"""Who is timed on a case: fa3, and its rivals, on the same tensors.

Rivals: the backends of torch.nn.functional.scaled_dot_product_attention (CPU: its flash kernel;
CUDA: cudnn and fa2), FlashAttention-4 where Python finds its flash_attn.cute (engine fa4-sm90),
with --standard textbook attention, which stores its scores, with --triton what torch.compile makes
of FlexAttention, and any library given by --rival LIB.so: another build of fa3, or one that has
the C entry of library.py.
"""

import ctypes
import sys
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch.nn.attention import SDPBackend

from .case import DTYPES, TENSORS, Case, Tensors
from .library import RivalLibrary
from .of_torch import Fa4, Sdpa, Standard, Triton, attend_standard, keys_after
from .ours import Fa3, Fa3Cache, Fa3Float8, c_abi

__all__ = [
    "DTYPES",
    "TENSORS",
    "Case",
    "Fa3Cache",
    "Tensors",
    "attend_standard",
    "contenders",
    "keys_after",
]


def rival(path: str, case: Case, tensors: Tensors, arguments):
    """A library with the C entry of library.py, or another build of fa3."""
    if hasattr(ctypes.CDLL(path), "rival_forward"):
        return RivalLibrary(path, case, tensors)
    return Fa3(case, tensors, arguments.threads, path)


def with_dropout(case: Case, tensors: Tensors, threads: int) -> tuple[list, dict]:
    """Contenders that drop weights, and fa3 without. Masks differ, so results are not compared."""
    backend = SDPBackend.FLASH_ATTENTION
    ready = [
        Fa3(case, tensors, threads),
        Fa3(replace(case, dropout=0.0), tensors, threads),
        Sdpa("fa2" if case.device == "cuda" else "torch-cpu", backend, case, tensors),
    ]
    ready[1].name += "-no-dropout"
    return ready, {}


def contenders(case: Case, tensors: Tensors, arguments) -> tuple[list, dict]:
    """Everything that can run the case, and why the rest cannot: sentences by name."""
    threads = arguments.threads
    plain = replace(case, dtype=TENSORS.get(case.dtype, case.dtype))
    if case.dropout:
        return with_dropout(plain, tensors, threads)
    makers = {"fa3": lambda: Fa3(plain, tensors, threads)}
    for small in ("fa3-e4m3", "fa3-e4m3-centred") if case.dtype == "e4m3" else ():
        makers[small] = lambda name=small: Fa3Float8(case, tensors, threads, name)
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
    if case.device == "cpu":
        backends = {"torch-cpu": SDPBackend.FLASH_ATTENTION}
    if not case.deterministic:  # torch's promise no order
        makers |= {x: lambda x=x: Sdpa(x, backends[x], plain, tensors) for x in backends}
    if case.device == "cuda" and find_spec("flash_attn") and find_spec("flash_attn.cute"):
        makers["fa4-sm90"] = lambda: Fa4(plain, tensors)
    if getattr(arguments, "standard", False):
        makers["standard"] = lambda: Standard(plain, tensors)
    if getattr(arguments, "triton", False):
        makers["triton"] = lambda: Triton(plain, tensors)
    for path in arguments.rival:
        makers[path] = lambda path=path: rival(path, plain, tensors, arguments)
    ready, left_out, truth = [], {}, None
    for name in getattr(arguments, "without", "").split(","):
        makers.pop(name, None)
    for name, make in makers.items():
        try:
            contender = make()
            output = torch.cat([x.float().flatten() for x in contender()])
        except (RuntimeError, OSError, AssertionError, ValueError, c_abi.CallFailed) as error:
            left_out[name] = str(error).splitlines()[0]
            continue
        truth = output if truth is None else truth
        error = ((output - truth).norm() / truth.norm()).item()
        allowed = 0.1 if "e4m3" in name else 0.02
        if error < allowed:
            ready.append(contender)
        else:
            left_out[name] = f"differs from {ready[0].name if ready else name} by {error:.1e}"
    for name, sentence in left_out.items():
        print(f"  left out: {name}: {sentence}", file=sys.stderr)
    return ready, left_out

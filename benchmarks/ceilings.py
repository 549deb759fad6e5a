# SPDX-License-Identifier: Apache-2.0
"""What the machine does at most, timed beside the contenders."""

import torch
from contenders import DTYPES, Case


class Ceiling:
    """A matrix product, or a copy."""

    def __init__(self, name: str, call, per_call: dict):
        self.name, self.call, self.per_call = name, call, per_call

    def __call__(self):
        self.call()


def ceilings(case: Case) -> list[Ceiling]:
    size, elements = (8192, 1 << 29) if case.device == "cuda" else (2048, 1 << 26)
    dtype = DTYPES[case.dtype]
    a, b = (torch.randn(size, size, device=case.device).to(dtype) for _ in range(2))
    source = torch.randn(elements // 2, device=case.device)
    target = torch.empty_like(source)
    return [
        Ceiling("matmul", lambda: a @ b, {"tflops": 2e-12 * size**3}),
        Ceiling("copy", lambda: target.copy_(source), {"gbytes_per_s": 4e-9 * elements}),
    ]

# SPDX-License-Identifier: Apache-2.0
"""torch's CUDA operators of attention on the CPU's tensors, with fa3's switch before them.

torch has no kernels of theirs for the CPU. A test gives some that stand for torch's own, and fa3 is
put before them as it is put before the CUDA kernels.
"""

import contextlib

import torch

from fa3.torch import switch

NAMES = [
    name
    for table in (switch.KERNELS, switch.BACKWARDS)
    for name, (key, *_) in table.items()
    if key == "CUDA" and hasattr(torch.ops.aten, name)
]


@contextlib.contextmanager
def operators_on_cpu(monkeypatch, torchs_own):
    """Names of our kernels that ran to their end, in order. torchs_own(name): a kernel of torch's.

    The switch is as it was, off.
    """
    ran = []
    own = torch.library.Library("aten", "IMPL")

    def recorded(name, kernel):
        def ours(**arguments):
            result = kernel(**arguments)
            ran.append(name)
            return result

        return ours

    for name in NAMES:
        own.impl(getattr(torch.ops.aten, name).default, torchs_own(name), "CPU")
    for table in ("KERNELS", "BACKWARDS"):
        moved = {
            name: ("CPU", recorded(name, kernel), *more)
            for name, (_, kernel, *more) in getattr(switch, table).items()
            if name in NAMES
        }
        monkeypatch.setattr(switch, table, moved)
    monkeypatch.setattr(switch, "backwards", {})
    switch.warned.clear()
    try:
        yield ran
    finally:
        for library in switch.backwards.values():
            library._destroy()
        own._destroy()

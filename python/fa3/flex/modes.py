# SPDX-License-Identifier: Apache-2.0
"""Which of torch's dispatch modes see what fa3.flex computes."""

import contextlib

from torch._C import _len_torch_dispatch_stack
from torch.utils import _python_dispatch


def beside_modes():
    """None: a function is translated once, by scalars that FakeTensorMode would replace."""
    if _len_torch_dispatch_stack() == 0:
        return contextlib.nullcontext()
    return _python_dispatch._disable_current_modes()


def beside_checkpoints():
    """Not selective checkpointing, which keeps results of operations by their number: what is made
    once and kept here has none in the recomputation, and tiles are written in place."""
    if _len_torch_dispatch_stack() == 0:
        return contextlib.nullcontext()
    modes = _python_dispatch._get_current_dispatch_mode_stack()
    is_checkpointed = any(type(mode).__module__ == "torch.utils.checkpoint" for mode in modes)
    return beside_modes() if is_checkpointed else contextlib.nullcontext()

# SPDX-License-Identifier: Apache-2.0
"""fa3.torch, imported by the first call on a torch tensor, so that `import fa3` needs no torch.

The public functions import this module, and fa3.torch imports none of them: no circle.
"""

_torch = None


def torch_front():
    """The module fa3.torch. A second thread waits until it is imported completely."""
    global _torch
    if _torch is None:
        import fa3.torch

        _torch = fa3.torch
    return _torch

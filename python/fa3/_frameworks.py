# SPDX-License-Identifier: Apache-2.0
"""fa3.torch for the functions above it, imported by the first call that meets a tensor.

`import fa3` therefore needs no torch. fa3.torch imports nothing from above, so that imports form
no circle.
"""

_torch = None


def torch_front():
    """The module fa3.torch, once it is imported whole: also in a second thread."""
    global _torch
    if _torch is None:
        import fa3.torch

        _torch = fa3.torch
    return _torch

# SPDX-License-Identifier: Apache-2.0
"""Where modules register that are imported with the first call that needs them."""

import sys
from typing import Any

torch = None  # fa3.torch, once it is imported completely
flex: Any = None  # what fa3.flex.entry makes of fa3.flex
attention_fp8 = None  # the function, which imports fa3.torch
fp8_sampler: Any = None  # the function that gives what samples FP8's error, or None


def load_flex():
    """Makes `flex`: functions that torch.compile leaves alone, wherever it is there."""
    global flex
    made = flex
    if made is None or not (made.beside_compiler or "torch._dynamo" not in sys.modules):
        from fa3.flex import entry

        flex = entry.functions()


# torch.compile cannot trace an import, so it calls this while it traces.
load_flex._dynamo_marked_constant = True  # type: ignore[attr-defined]

# SPDX-License-Identifier: Apache-2.0
"""A call of the library by names and shapes, which is all that is known while JAX traces.

Next: primitives.py, which makes them primitives of JAX.
"""

from typing import Any, NamedTuple

import numpy as np

from fa3 import _native
from fa3._arrays import CPU
from fa3._options import BOTH_PASSES, TYPES, Options

DEVICE_TYPES = {"cpu": CPU, "cuda": 2}  # by JAX's names of platforms; fa3_device_type

# Operands that are options, and all tensors of the compiled module's functions in their order.
OPTION_TENSORS = [name for name in [*TYPES][: len(BOTH_PASSES)] if TYPES[name] == "Tensor?"]
TENSORS = {
    "forward": ("q", "k", "v", "out", "lse"),
    "backward": ("do", "q", "k", "v", "out", "lse", "dlse", "dq", "dk", "dv", "dsink"),
}
WORKSPACE_SIZE = {"forward": _native.forward_workspace, "backward": _native.backward_workspace}

# Extents by letter: b sequences; i and j rows of queries and keys; h and g query and key heads; d
# and e head dims. Packed tensors have no b.
EXTENTS = {
    **dict.fromkeys(("q", "dq"), "bihd"),
    **dict.fromkeys(("k", "dk"), "bjgd"),
    **dict.fromkeys(("v", "dv"), "bjge"),
    **dict.fromkeys(("out", "do"), "bihe"),
    **dict.fromkeys(("lse", "dlse"), "bhi"),
    **dict.fromkeys(("sink", "dsink"), "h"),
    **dict.fromkeys(("seqused_q", "seqused_k"), "b"),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), "n"),
}
OF_KEYS = ("k", "v", "dk", "dv")
FLOAT32 = ("lse", "dlse", "sink", "dsink")


class Call(NamedTuple):
    """What of a call is static: the parameter of a primitive."""

    direction: str  # "forward" or "backward"
    operands: tuple[str, ...]
    results: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]  # by their names in _options.py, without defaults

    def extents(self, name):
        """The letters of a tensor's extents."""
        letters = EXTENTS[name]
        packed = "cu_seqlens_k" if name in OF_KEYS else "cu_seqlens_q"
        if name.startswith("seqused"):
            return "s" if {"cu_seqlens_q", "cu_seqlens_k"} & {*self.operands} else "b"
        return letters.replace("b", "") if packed in self.operands else letters

    def sizes(self, shapes):
        """Extents by letter, from the operands' shapes."""
        pairs = zip(self.operands, shapes, strict=True)
        return {x: n for name, shape in pairs for x, n in zip(self.extents(name), shape)}

    def results_of(self, operands):
        """[(shape, dtype), ...] of the results, from operands with shapes and dtypes."""
        sizes = self.sizes([x.shape for x in operands])
        dtype = operands[self.operands.index("q")].dtype
        return [
            (
                tuple(sizes[x] for x in self.extents(name)),
                np.dtype("float32") if name in FLOAT32 else dtype,
            )
            for name in self.results
        ]

    def workspace_bytes(self, operands, results, platform):
        """What the library needs besides them on that platform; raises what it would refuse."""
        named = zip(self.operands + self.results, [*operands, *results], strict=True)
        views = {name: described(x.shape, x.dtype, platform) for name, x in named}
        options = {name: views.get(name) for name in OPTION_TENSORS} | dict(self.options)
        if platform == "cpu":  # where lengths are read, and may be longer than was said
            options |= {"max_seqlen_q": 0, "max_seqlen_k": 0}
        tensors = [views.get(name) for name in TENSORS[self.direction]]
        every_option = Options(**options)[: len(BOTH_PASSES)]
        return WORKSPACE_SIZE[self.direction](*tensors, *every_option)


def described(shape, dtype, platform="cpu"):
    """A row-major tensor without memory, as the compiled module takes it."""
    strides = tuple(int(np.prod(shape[dim + 1 :])) for dim in range(len(shape)))
    return 0, str(dtype), DEVICE_TYPES[platform], 0, tuple(shape), strides

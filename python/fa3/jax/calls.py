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
OPTION_TENSORS = [name for name in TYPES if TYPES[name] == "Tensor?"]
NUM_OPTIONS = {"forward": len(TYPES), "backward": len(BOTH_PASSES)}
TENSORS = {
    "forward": ("q", "k", "v", "out", "lse"),
    "backward": ("do", "q", "k", "v", "out", "lse", "dlse", "dq", "dk", "dv", "dsink"),
}
BEHIND_OPTIONS = {"forward": ("max_logit",), "backward": ("dgate",)}
WORKSPACE_SIZE = {"forward": _native.forward_workspace, "backward": _native.backward_workspace}

# Extents by letter: b sequences; i and j rows of queries and keys; h and g query and key heads; d
# and e head dims; n starts; c entries of a cache. Capital letters are nowhere else, or of one
# extent. Packed tensors have no b, and beside them it is called s: their sequences are not
# independent extents of a call, which could be cut or be more.
EXTENTS = {
    **dict.fromkeys(("q", "dq"), "bihd"),
    **dict.fromkeys(("k", "dk"), "bjgd"),
    **dict.fromkeys(("v", "dv"), "bjge"),
    **dict.fromkeys(("out", "do"), "bihe"),
    **dict.fromkeys(("lse", "dlse"), "bhi"),
    **dict.fromkeys(("sink", "dsink"), "h"),
    **dict.fromkeys(("gate", "dgate"), "bihe"),
    "max_logit": "bh",
    **dict.fromkeys(("seqused_q", "seqused_k", "batch_index", "left_padding"), "b"),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), "n"),
    "dropout_seed": "W",
    "block_mask": "bhAB",
    "block_mask_bits": "CRS",
    "page_table": "bM",
    "q_descale": "bhD",
    "k_descale": "bgE",
    "v_descale": "bgF",
    "k_mean": "bgd",
    "v_mean": "bge",
}
OF_QUERIES = "q", "out", "lse", "do", "dlse", "dq", "gate", "dgate"
OF_KEYS = "k", "v", "dk", "dv"


class Call(NamedTuple):
    """What of a call is static: the parameter of a primitive."""

    direction: str  # "forward" or "backward"
    operands: tuple[str, ...]
    results: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]  # by their names in _options.py, without defaults
    letters: tuple[tuple[str, str], ...]  # of tensors whose extents are not those of EXTENTS

    @classmethod
    def of(cls, direction, arrays, results, options):
        """The call that takes these arrays, by name: one for all orders of their names."""
        known = (*TENSORS[direction], *OPTION_TENSORS)
        operands = tuple(x for x in known if x in arrays)
        return cls(direction, operands, results, options, tuple(letters_of(arrays).items()))

    def has_dropout(self):
        """Whether results depend on which sequence of the call, and which head, a row is of."""
        return "dropout_seed" in self.operands

    def extents(self, name):
        """The letters of a tensor's extents."""
        letters = dict(self.letters).get(name, EXTENTS[name])
        if not any(cu in self.operands for cu in ("cu_seqlens_q", "cu_seqlens_k")):
            return letters
        is_packed = ("cu_seqlens_q" in self.operands and name in OF_QUERIES) or (
            "cu_seqlens_k" in self.operands and name in OF_KEYS
        )
        return letters.replace("b", "" if is_packed else "s")

    def sizes(self, shapes):
        """Extents by letter, from the operands' shapes."""
        sizes = {}
        for name, shape in zip(self.operands, shapes, strict=True):
            sizes |= zip(self.extents(name), shape, strict=True)
        if "n" in sizes:
            sizes["s"] = sizes["n"] - 1
        return sizes

    def on(self, platform):
        """The call of a program for that platform. On the CPU workspace grows with the threads, so
        that they are settled here, and with the lengths, which may be longer than was said."""
        options = dict(self.options)
        if platform == "cpu":
            options.pop("max_seqlen_q", None)
            options.pop("max_seqlen_k", None)
            options["num_threads"] = options.get("num_threads") or _native.available_threads()
        return self._replace(options=tuple(options.items()))

    def workspace_bytes(self, operands, results, platform):
        """What the library needs besides them on that platform; raises what it would refuse."""
        named = zip(self.operands + self.results, [*operands, *results], strict=True)
        views = {name: described(x.shape, x.dtype, platform) for name, x in named}
        tensors = [views.get(name) for name in TENSORS[self.direction]]
        options = in_order_of(self.direction, views, dict(self.options))
        tensors_behind = [views.get(name) for name in BEHIND_OPTIONS[self.direction]]
        return WORKSPACE_SIZE[self.direction](*tensors, *options, *tensors_behind)


def letters_of(arrays):
    """Letters of the tensors that have others than EXTENTS in a call of these arrays."""
    found = {}
    if "page_table" in arrays:
        found |= {"k": "PTgd", "v": "PTge"}
    if "batch_index" in arrays:
        found |= {"page_table": "cM"} if "page_table" in arrays else {"k": "cjgd", "v": "cjge"}
    if "gate" in arrays and arrays["gate"].ndim < arrays["q"].ndim:  # one number a row
        found |= dict.fromkeys(("gate", "dgate"), "bih")
    mask = arrays.get("block_mask")
    if mask is not None:  # an extent of 1 is for all
        sequences, heads = (extent == 1 for extent in mask.shape[:2])
        found["block_mask"] = ("Y" if sequences else "b") + ("Z" if heads else "h") + "AB"
    for name in ("q_descale", "k_descale", "v_descale"):
        scales = arrays.get(name)
        if scales is not None:
            letters = EXTENTS[name] if scales.ndim > 1 else "X"
            if name == "q_descale" and scales.shape[1:2] == arrays["k"].shape[-2:-1]:
                letters = letters.replace("h", "g")
            found[name] = letters[: scales.ndim]
    return found


def in_order_of(direction, tensors, options):
    """The options of a pass as the compiled module takes them. tensors: those of them, by name."""
    given = {name: tensors[name] for name in OPTION_TENSORS if name in tensors} | options
    return Options(**given)[: NUM_OPTIONS[direction]]


def described(shape, dtype, platform="cpu"):
    """A row-major tensor without memory, as the compiled module takes it."""
    strides = tuple(int(np.prod(shape[dim + 1 :])) for dim in range(len(shape)))
    return 0, str(dtype), DEVICE_TYPES[platform], 0, tuple(shape), strides

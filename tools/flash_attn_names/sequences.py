# SPDX-License-Identifier: Apache-2.0
"""Where the sequences of a call of FlashAttention-4 are, and what its functions are told of them.

Next: calls.py and lists.py.
"""

import inspect
from typing import NamedTuple

import torch

from flash_attn_names.cute import Captured, Value, plain

NAMES = "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"


class Info:
    """What a function is told of the sequence that it is asked for: what it does not look at, it
    does not capture. "Global" rows are those of packed tensors."""

    def __init__(self, sequences, batch):
        self.sequences, self.batch = sequences, batch

    seqlen_q = property(lambda self: self.sequences.length("q", self.batch))
    seqlen_k = property(lambda self: self.sequences.length("k", self.batch))
    offset_q = property(lambda self: self.sequences.offset("q", self.batch))
    offset_k = property(lambda self: self.sequences.offset("k", self.batch))


class Sequences(NamedTuple):
    batch: int
    queries: int  # of the longest sequence
    keys: int
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    seqused_q: torch.Tensor | None = None
    seqused_k: torch.Tensor | None = None

    def side(self, side):
        """(rows of the longest one, cu_seqlens, seqused) of "q" or "k"."""
        rows = self.queries if side == "q" else self.keys
        return rows, getattr(self, f"cu_seqlens_{side}"), getattr(self, f"seqused_{side}")

    def rows(self, side):
        """Rows of each sequence, as a list."""
        rows, cu_seqlens, used = self.side(side)
        if used is not None:
            return used.tolist()
        return [rows] * self.batch if cu_seqlens is None else cu_seqlens.diff().tolist()

    def offset(self, side, batch):
        """The place of a traced sequence's first row in a packed tensor."""
        _, cu_seqlens, _ = self.side(side)
        return 0 if cu_seqlens is None else Captured(cu_seqlens)[batch]

    def length(self, side, batch):
        rows, cu_seqlens, used = self.side(side)
        if used is not None:
            return Captured(used)[batch]
        if cu_seqlens is None:
            return rows
        return Captured(cu_seqlens)[batch + 1] - Captured(cu_seqlens)[batch]

    def options(self):
        """Options of fa3.flex_attention; bounds of packed sequences are read from the GPU."""
        given = {name: getattr(self, name) for name in NAMES if getattr(self, name) is not None}
        for side, rows in (("q", self.queries), ("k", self.keys)):
            if f"cu_seqlens_{side}" in given:
                given[f"max_seqlen_{side}"] = rows
        return given

    def as_python(self, function, aux_tensors, aux_scalars):
        """A function of theirs, of a score or a mask, as fa3.flex_attention calls one."""
        if function is None:
            return None
        captured = [Captured(t) for t in aux_tensors or ()]
        takes_scalars = "aux_scalars" in inspect.signature(function).parameters
        beside = (captured, aux_scalars) if takes_scalars else (captured,)

        def called(*scalars):
            values = [Value(s) for s in scalars]
            batch = values[-4]  # before the head, the query and the key
            return plain(function(*values, Info(self, batch), *beside))

        return called


def sequences_of(q, k, page_table, lengths):
    """lengths: by NAMES, without those that are None."""
    cu_q, cu_k = lengths.get("cu_seqlens_q"), lengths.get("cu_seqlens_k")
    batch = q.shape[0] if cu_q is None else len(cu_q) - 1
    queries = q.shape[1] if cu_q is None else longest(cu_q)
    pages = 1 if page_table is None else page_table.shape[1]
    keys = pages * k.shape[1] if cu_k is None else longest(cu_k)
    return Sequences(batch, queries, keys, **lengths)


def longest(cu_seqlens):
    return int(cu_seqlens.diff().max())

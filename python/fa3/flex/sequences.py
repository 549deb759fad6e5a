# SPDX-License-Identifier: Apache-2.0
"""Which rows the sequences of a call have, read from its length arrays."""

import itertools
from typing import NamedTuple

import torch

from fa3.errors import InvalidArgument
from fa3.torch.checks import refuse_other_than_tensor


class Sequence(NamedTuple):
    """Where the rows of sequence `number` are: an entry of the batch, or None if packed."""

    number: int
    entry: int | None
    first_query: int
    queries: int
    first_key: int
    keys: int

    def rows(self, x, first, count):
        """(rows, heads, dim) of q, out, ..."""
        rows = x if self.entry is None else x[self.entry]
        return rows[first : first + count]

    def of_queries(self, x):
        return self.rows(x, self.first_query, self.queries)

    def of_keys(self, x):
        return self.rows(x, self.first_key, self.keys)

    def of_lse(self, lse):
        """(heads, rows)"""
        rows = lse if self.entry is None else lse[self.entry]
        return rows[:, self.first_query : self.first_query + self.queries]


def sequences_of(q, k, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
    queries = rows_of("q", q, cu_seqlens_q, seqused_q)
    keys = rows_of("k", k, cu_seqlens_k, seqused_k)
    if len(queries) != len(keys):
        raise InvalidArgument(
            f"cu_seqlens_k: expected {len(queries) + 1} entries as cu_seqlens_q, got"
            f" {len(keys) + 1}"
        )
    packed = cu_seqlens_q is not None
    return [
        Sequence(number, None if packed else number, *of_queries, *of_keys)
        for number, (of_queries, of_keys) in enumerate(zip(queries, keys, strict=True))
    ]


def rows_of(side, x, cu_seqlens, seqused):
    """[(first row, rows that count)] of each sequence."""
    for name, lengths in ((f"cu_seqlens_{side}", cu_seqlens), (f"seqused_{side}", seqused)):
        if lengths is not None:
            refuse_other_than_tensor(name, lengths)
            if lengths.dtype != torch.int32 or lengths.ndim != 1:
                raise InvalidArgument(
                    f"{name}: expected int32 of rank 1, got {lengths.dtype} of shape "
                    f"{tuple(lengths.shape)}; convert it"
                )
    if cu_seqlens is None:
        rows = [(0, x.shape[1])] * x.shape[0]
    else:
        ends = cu_seqlens.tolist()
        rows = [(a, b - a) for a, b in itertools.pairwise(ends)]
        if ends[:1] != [0] or ends[-1] > x.shape[0] or any(count < 0 for _, count in rows):
            raise InvalidArgument(
                f"cu_seqlens_{side}: expected growing numbers from 0 to {x.shape[0]} at most"
            )
    if seqused is None:
        return rows
    used = seqused.tolist()
    if len(used) != len(rows) or any(
        not 0 <= u <= count for u, (_, count) in zip(used, rows, strict=True)
    ):
        raise InvalidArgument(
            f"seqused_{side}: expected {len(rows)} numbers from 0 to the sequences' lengths"
        )
    return [(first, u) for u, (first, _) in zip(used, rows, strict=True)]

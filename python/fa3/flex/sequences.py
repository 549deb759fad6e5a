# SPDX-License-Identifier: Apache-2.0
"""Which rows the sequences of a call have, read from its length arrays and page table."""

import itertools
from typing import NamedTuple

import torch

from fa3.errors import InvalidArgument
from fa3.flex.caches import most_keys
from fa3.torch.checks import refuse_other_than_tensor


class Rows(NamedTuple):
    """Rows of one sequence in a tensor."""

    entry: int | None  # of the batch; None: packed, or in pages
    first: int
    length: int
    pages: "torch.Tensor | None" = None  # whose rows follow each other

    def of(self, x):
        """(rows, heads, dim) of q, k, out, ..."""
        if self.pages is not None:
            x = x[self.pages].flatten(0, 1)
        elif self.entry is not None:
            x = x[self.entry]
        return x[self.first : self.first + self.length]


class Sequence(NamedTuple):
    """Where the rows of sequence `number` are."""

    number: int
    query_rows: Rows
    key_rows: Rows

    @property
    def queries(self):
        return self.query_rows.length

    @property
    def keys(self):
        return self.key_rows.length

    def of_queries(self, x):
        return self.query_rows.of(x)

    def of_keys(self, x):
        return self.key_rows.of(x)

    def of_lse(self, lse):
        """(heads, rows)"""
        entry, first, count, _ = self.query_rows
        rows = lse if entry is None else lse[entry]
        return rows[:, first : first + count]


def sequences_of(q, k, options):
    """options: those of fa3.attention."""
    cu_q, cu_k = (options.get(f"cu_seqlens_{side}") for side in "qk")
    queries = rows_of("q", q, cu_q, options.get("seqused_q"))
    if cu_k is not None:
        keys = rows_of("k", k, cu_k, options.get("seqused_k"))
    else:
        keys = rows_in_cache(k, len(queries), options)
    if len(queries) != len(keys):
        raise InvalidArgument(
            f"cu_seqlens_k: expected {len(queries) + 1} entries, for q's {len(queries)} sequences,"
            f" got {len(keys) + 1}"
        )
    return [Sequence(number, *rows) for number, rows in enumerate(zip(queries, keys, strict=True))]


def rows_of(side, x, cu_seqlens, seqused):
    """The Rows of each sequence, of which those that count."""
    if cu_seqlens is None:
        rows = [Rows(entry, 0, x.shape[1]) for entry in range(x.shape[0])]
    else:
        ends = integers(f"cu_seqlens_{side}", cu_seqlens)
        rows = [Rows(None, a, b - a) for a, b in itertools.pairwise(ends)]
        if ends[:1] != [0] or ends[-1] > x.shape[0] or any(of.length < 0 for of in rows):
            raise InvalidArgument(
                f"cu_seqlens_{side}: expected growing numbers from 0 to {x.shape[0]} at most"
            )
    return with_used(side, rows, seqused)


def integers(name, x):
    """The numbers of a length array."""
    refuse_other_than_tensor(name, x)
    if x.dtype != torch.int32 or x.ndim != 1:
        raise InvalidArgument(
            f"{name}: expected int32 of rank 1, got {x.dtype} of shape {tuple(x.shape)}; convert it"
        )
    return x.tolist()


def with_used(side, rows, seqused):
    if seqused is None:
        return rows
    used = integers(f"seqused_{side}", seqused)
    if len(used) != len(rows) or any(
        not 0 <= u <= of.length for u, of in zip(used, rows, strict=True)
    ):
        raise InvalidArgument(
            f"seqused_{side}: expected {len(rows)} numbers from 0 to the sequences' lengths"
        )
    return [of._replace(length=u) for u, of in zip(used, rows, strict=True)]


def rows_in_cache(k, batch, options):
    """The Rows of each sequence's keys, which have entries of k or of the page table."""
    table = options.get("page_table")
    entries = numbers("batch_index", options, batch, k if table is None else table)
    most = most_keys(k, options)
    rows = with_used("k", [Rows(e, 0, most) for e in entries], options.get("seqused_k"))
    if table is not None:
        rows = [in_pages(of, k, table) for of in rows]
    padding = options.get("left_padding")
    if padding is None:
        return rows
    skipped = integers("left_padding", padding)
    if len(skipped) != batch or any(
        not 0 <= s <= of.length for s, of in zip(skipped, rows, strict=True)
    ):
        raise InvalidArgument(
            f"left_padding: expected {batch} numbers from 0 to the sequences' lengths"
        )
    return [of._replace(first=s, length=of.length - s) for s, of in zip(skipped, rows, strict=True)]


def numbers(name, options, batch, of):
    """Which entry of a tensor each sequence has."""
    index = options.get(name)
    found = [*range(batch)] if index is None else integers(name, index)
    if len(found) != batch or any(not 0 <= e < of.shape[0] for e in found):
        raise InvalidArgument(
            f"{name}: expected {batch} entries from 0 to {of.shape[0] - 1}, got {found}"
        )
    return found


def in_pages(of, k, table):
    pages = table[of.entry, : -(-of.length // k.shape[1])].long()
    if pages.numel() and not 0 <= int(pages.min()) <= int(pages.max()) < k.shape[0]:
        raise InvalidArgument(
            f"page_table: expected pages from 0 to {k.shape[0] - 1} in entry {of.entry}"
        )
    return of._replace(entry=None, pages=pages.to(k.device))

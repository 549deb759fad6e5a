# SPDX-License-Identifier: Apache-2.0
"""Attention with a score function by torch operations, and no more than a tile of scores.

Source: FlashAttention-2 (arXiv 2307.08691), Algorithms 1 and 2. It runs wherever the tensors
are. Next: function/interpret.py.
"""

import contextlib
import functools

import torch

from fa3._dropout import dropout_mask, pair
from fa3.flex.caches import with_factors
from fa3.flex.function.graph import BATCH, COTANGENT, HEAD, KEY, QUERY, SCORE
from fa3.flex.function.interpret import add_into, evaluate
from fa3.flex.sequences import sequences_of
from fa3.torch.operators import is_any_autocast_enabled

QUERIES, KEYS = 256, 512  # of a tile; all heads at once


def wide(dtype):
    return torch.float64 if dtype is torch.float64 else torch.float32


def without_autocast(compute):
    """It would round the rows, which are wide, to 16 bits for each product."""

    @functools.wraps(compute)
    def computed(*arguments):
        if not is_any_autocast_enabled():
            return compute(*arguments)
        with contextlib.ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            return compute(*arguments)

    return computed


class Tile:
    """Scores of some rows and keys of a sequence, all heads: (heads, rows, keys)."""

    def __init__(self, call, tensors, sequence, q, k, first_query, first_key):
        self.call, self.tensors = call, tensors
        heads, rows, _ = q.shape
        keys = k.shape[1]
        device = q.device
        query = torch.arange(first_query, first_query + rows, device=device)[:, None]
        key = torch.arange(first_key, first_key + keys, device=device)
        self.products = grouped(q, k.shape[0]) @ k[:, None].mT  # (kv heads, group, rows, keys)
        self.leaves = {
            SCORE: self.products.reshape(heads, rows, keys) * call.scale,
            BATCH: torch.tensor(sequence.number, device=device),
            HEAD: torch.arange(heads, device=device)[:, None, None],
            QUERY: query,
            KEY: key,
        }
        function, hidden = call.function, call.window.hides(query, key, sequence)
        is_checked = device.type == "cpu" and type(hidden) is torch.Tensor and not function.clamps
        given = [function.result], self.leaves, tensors
        (scores,) = evaluate(function.graph, *given, hidden if is_checked else None)
        self.scores = scores.expand(heads, rows, keys).masked_fill(hidden, -torch.inf)


def grouped(x, kv_heads):
    """(heads, rows, dim) -> (kv heads, heads that share one, rows, dim)"""
    return x.reshape(kv_heads, -1, *x.shape[1:])


def tiles_of(call, sequence):
    """Rows of tiles: (first query, [(first key, end)])."""
    for first in range(0, sequence.queries, QUERIES):
        count = min(QUERIES, sequence.queries - first)
        begin, end = call.window.range(first, count, sequence)
        yield first, count, [(key, min(key + KEYS, end)) for key in range(begin, end, KEYS)]


class Dropout:
    """Factors of P: 0 where a weight is dropped, else 1 / (1 - p) for the p of the draws."""

    def __init__(self, call):
        self.p = call.lengths.get("dropout_p") or 0.0
        if self.p:
            self.seed = pair(call.lengths["dropout_seed"].tolist())
            dropped = min(max(int(self.p * 65536 + 0.5), 1), 65535)  # docs/numerics.md
            self.scale = 65536 / (65536 - dropped) if self.p < 1 else 0.0

    def of(self, p, sequence, first_query, first_key):
        """The factors of a tile's weights p (heads, rows, keys); 1 without dropout."""
        if not self.p:
            return 1.0
        first = sequence.number, 0, first_query, first_key
        (kept,) = dropout_mask(self.p, self.seed, (1, *p.shape), first=first)
        return torch.from_numpy(kept).to(p) * self.scale


def heads_first(x, dtype):
    return x.transpose(0, 1).to(dtype)


@without_autocast
def forward(call, q, k, v, tensors, out, lse):
    """Writes out and lse; rows of no sequence get 0 and -inf."""
    out.zero_()
    lse.fill_(-torch.inf)
    dtype, dropout = wide(q.dtype), Dropout(call)
    for sequence in sequences_of(q, k, call.lengths):
        mine = heads_first(sequence.of_queries(q), dtype)
        keys, values = (
            with_factors(
                heads_first(sequence.of_keys(x), dtype), call.lengths.get(factors), sequence.number
            )
            for x, factors in ((k, "k_descale"), (v, "v_descale"))
        )
        for first, count, blocks in tiles_of(call, sequence):
            rows = mine[:, first : first + count]
            of_rows = rows, keys, values, first, blocks
            total, largest, o = online(call, tensors, sequence, dropout, *of_rows)
            finished = torch.where(total > 0, o / total, torch.where(total == 0, 0, o + total))
            sequence.of_queries(out)[first : first + count] = finished.transpose(0, 1)
            row_lse = (largest + total.log())[..., 0]
            sequence.of_lse(lse)[:, first : first + count] = row_lse


def online(call, tensors, sequence, dropout, rows, keys, values, first, blocks):
    """The sum of P, the reference and P V of a row of tiles, P relative to the reference. Dropout
    is in P V alone."""
    heads, count, _ = rows.shape
    total = rows.new_zeros(heads, count, 1)
    largest = rows.new_full((heads, count, 1), -torch.inf)
    o = rows.new_zeros(heads, count, values.shape[-1])
    for begin, end in blocks:
        scores = Tile(call, tensors, sequence, rows, keys[:, begin:end], first, begin).scores
        newest = torch.maximum(largest, scores.amax(-1, keepdim=True))
        reference = torch.where(newest == -torch.inf, 0, newest)
        p = (scores - reference).exp()
        rescale = (largest - reference).exp()
        total = total * rescale + p.sum(-1, keepdim=True)
        p = p * dropout.of(p, sequence, first, begin)
        product = grouped(p, values.shape[0]) @ values[:, None, begin:end]
        o = o * rescale + product.reshape(o.shape)
        largest = newest
    return total, largest, o


@without_autocast
def backward(call, gradient, q, k, v, out, lse, tensors, do, dlse, totals):
    """dq, dk and dv. totals: number of a captured tensor -> its gradient, added to."""
    dtype, dropout = wide(q.dtype), Dropout(call)
    dq, dk, dv = (torch.zeros_like(x, dtype=dtype) for x in (q, k, v))
    for sequence in sequences_of(q, k, call.lengths):
        sides = {"q": q, "do": do, "out": out}
        mine = {n: heads_first(sequence.of_queries(x), dtype) for n, x in sides.items()}
        keys, values = (heads_first(sequence.of_keys(x), dtype) for x in (k, v))
        delta = (mine["do"] * mine["out"]).sum(-1, keepdim=True)
        if dlse is not None:
            delta = delta - sequence.of_lse(dlse).to(dtype)[..., None]
        for first, count, blocks in tiles_of(call, sequence):
            rows = slice(first, first + count)
            q_rows, do_rows = mine["q"][:, rows], mine["do"][:, rows]
            reference = sequence.of_lse(lse)[:, rows, None].to(dtype)
            reference = torch.where(reference == -torch.inf, torch.inf, reference)  # P = 0
            for begin, end in blocks:
                tile = Tile(call, tensors, sequence, q_rows, keys[:, begin:end], first, begin)
                p = (tile.scores - reference).exp()
                dp = grouped(do_rows, values.shape[0]) @ values[:, None, begin:end].mT
                factors = dropout.of(p, sequence, first, begin)
                ds = p * (dp.reshape(p.shape) * factors - delta[:, rows])
                ds = score_gradient(call, gradient, tile, tensors, ds, totals)
                ds, p = grouped(ds, keys.shape[0]), grouped(p * factors, keys.shape[0])
                own = (ds @ keys[:, None, begin:end]).flatten(0, 1).transpose(0, 1)
                sequence.of_queries(dq)[rows] += own * call.scale
                of_keys = (ds.mT @ grouped(q_rows, keys.shape[0])).sum(1).transpose(0, 1)
                sequence.of_keys(dk)[begin:end] += of_keys * call.scale
                of_values = (p.mT @ grouped(do_rows, keys.shape[0])).sum(1).transpose(0, 1)
                sequence.of_keys(dv)[begin:end] += of_values
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def score_gradient(call, gradient, tile, tensors, ds, totals):
    """From the gradient of what the function returned to that of its score, and of the tensors."""
    graph = call.function.graph
    leaves = {**tile.leaves, COTANGENT: ds}
    numbers = [gradient.score, *(number for _, number in gradient.loads)]
    indices = [graph.nodes[load].arguments for load, _ in gradient.loads]
    asked = [*numbers, *(i for of_load in indices for i in of_load)]
    values = evaluate(graph, asked, leaves, tensors)
    of_score, of_loads, places = values[0], values[1 : len(numbers)], iter(values[len(numbers) :])
    for (load, _), value, of_load in zip(gradient.loads, of_loads, indices, strict=True):
        place = [next(places) for _ in of_load]
        # A key that no row sees adds nothing, whatever the function's slope is there.
        value = torch.where(ds == 0, 0, value)
        add_into(totals[graph.nodes[load].value], place, value, call.lengths.get("deterministic"))
    return torch.where(ds == 0, 0, of_score).expand(ds.shape)

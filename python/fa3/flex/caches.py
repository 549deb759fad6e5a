# SPDX-License-Identifier: Apache-2.0
"""Keys and values in a cache: in pages, in entries of another order, behind padding, quantized.

They have no gradients. Next: sequences.py, which finds a sequence's rows in them.
"""

import torch

from fa3.errors import Unsupported
from fa3.torch.autograd import FLOAT8

PLACES = "page_table", "batch_index", "left_padding"
NAMES = *PLACES, "num_splits", "k_descale", "v_descale"


def given(options):
    """Those of the options that say something of a cache: num_splits of 0 does not."""
    named = {name: options[name] for name in NAMES if name in options}
    return {name: x for name, x in named.items() if isinstance(x, torch.Tensor) or x}


def has_places(options):
    return any(options.get(name) is not None for name in PLACES)


def most_keys(k, options):
    """Of a sequence; k is not packed."""
    table = options.get("page_table")
    return k.shape[1] if table is None else k.shape[1] * table.shape[1]


def refuse_gradients(k, options):
    """Where something needs a gradient."""
    if k.dtype in FLOAT8:
        name = str(k.dtype).removeprefix("torch.")
        raise Unsupported(f"k, v: no gradients through {name}; use torch.no_grad(), or q.detach()")
    if names := given(options):
        raise Unsupported(
            f"{', '.join(names)}: no gradient goes through a cache or quantized tensors; "
            "use torch.no_grad()"
        )


def with_factors(rows, factors, number):
    """The numbers that quantized rows (heads, rows, dim) of a sequence stand for. factors: (1,) or
    (b, heads), or None."""
    if factors is None:
        return rows
    return rows * (factors if factors.ndim == 1 else factors[number][:, None, None])

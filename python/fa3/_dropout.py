# SPDX-License-Identifier: Apache-2.0
"""Dropout's seed as the library reads it, and its mask. fa3/torch/dropout.py draws seeds."""

import operator
import sys

import numpy as np

from fa3 import _native
from fa3._arrays import is_torch, refuse_masked, type_of
from fa3.errors import InvalidArgument


def refuse_seed(seed):
    raise InvalidArgument(
        "dropout_seed: expected (seed, offset), two integers or an int64 tensor of them, got "
        f"{seed!r}"
    )


def refuse_other_than_probability(p):
    is_number = hasattr(p, "__float__") and getattr(p, "shape", ()) == ()
    if not is_number or not 0 <= p <= 1:
        raise InvalidArgument(f"dropout_p: expected a probability from 0 to 1, got {p!r}")


def pair(seed):
    """(seed, offset) as integers of 64 bits with a sign; each number counts modulo 2^64.

    Without NumPy, whose arrays torch.compile would take for constants of its graph.
    """
    try:
        numbers = [operator.index(x) for x in seed]
    except TypeError:
        numbers = []
    if len(numbers) != 2:
        refuse_seed(seed)
    return [(x + 2**63) % 2**64 - 2**63 for x in numbers]


def words(seed):
    refuse_masked(seed, "dropout_seed")
    return np.array(pair(seed), dtype=np.int64)


def seed_view(seed):
    """The seed as the compiled module reads it: 4 int32."""
    if seed is None:
        return None
    if not is_torch(seed):
        return words(seed).view(np.int32)
    if type_of(seed) != "int64" or seed.shape != (2,) or seed.stride() != (1,):
        refuse_seed(seed)
    return seed.view(sys.modules["torch"].int32)


def require_seed(named):
    """Refuses dropout without a seed, for callers who have no generator."""
    if named.get("dropout_p") and named.get("dropout_seed") is None:
        raise InvalidArgument(
            "dropout_seed: expected (seed, offset) beside dropout_p, got None; only "
            "fa3.attention of torch tensors draws it from a generator"
        )


def dropout_mask(dropout_p, dropout_seed, shape, *, first=(0, 0, 0, 0)):
    """Which weights attention(..., dropout_p=, dropout_seed=) keeps, for tests.

    Calls of every engine have this mask and never store it. Weights that are not kept count as 0,
    the others are divided by 1 - dropout_p, in units of 2^-16 (docs/numerics.md). A sequence has
    the first rows and keys of its mask, whatever its length, packed or not.

    Args:
        dropout_p: the probability that a weight is dropped, 0 to 1.
        dropout_seed: (seed, offset), two integers, or an int64 tensor of them.
        shape: (batch, heads, queries, keys); heads are query heads.
        first: the sequence, query head, query and key that the result begins with.

    Returns:
        True where a weight is kept, in that shape. A torch tensor on the seed's device if the seed
        is one, else a NumPy array.

    Raises:
        fa3.InvalidArgument: a probability that is none, a seed, a shape or a first of another
            length.
    """
    seed = words(dropout_seed.tolist() if is_torch(dropout_seed) else dropout_seed)
    if len(shape) != 4 or any(extent < 0 for extent in shape):
        raise InvalidArgument(f"shape: expected (batch, heads, queries, keys), got {shape!r}")
    if len(first) != 4:
        raise InvalidArgument(f"first: expected (sequence, head, query, key), got {first!r}")
    keep = np.empty(shape, np.bool_)
    _native.dropout_mask(dropout_p, *seed.tolist(), *first, *shape, keep.ctypes.data)
    if not is_torch(dropout_seed):
        return keep
    return sys.modules["torch"].from_numpy(keep).to(dropout_seed.device)

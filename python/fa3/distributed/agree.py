# SPDX-License-Identifier: Apache-2.0
"""Ranks that call with different arguments learn so, by the same sentence, instead of waiting.

Before the first call of a kind, ranks gather what each of them was given, its own error included.
What must agree is kept as `seen`; later calls of that kind exchange nothing. A rank that leaves the
others alone after that ends them by the group's timeout.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from fa3.distributed.transport.exchange import naming
from fa3.errors import InvalidArgument, Unsupported

Facts = Mapping[str, Any]
MOST = 4096  # kinds of calls that a group keeps in mind

seen: "weakref.WeakKeyDictionary[Any, dict]" = weakref.WeakKeyDictionary()


def agree(group, facts: Facts, error: Exception | None = None) -> None:
    """Raises on every rank what is wrong on one of them.

    Args:
        facts: names and values that must be equal on all ranks; hashable.
        error: what this rank found wrong with its own arguments.
    """
    key = tuple(facts.items())
    known = seen.setdefault(group, {})
    if error is None and key in known:
        return
    given: list[Any] = [None] * dist.get_world_size(group)
    with naming("what the other ranks were given"):
        dist.all_gather_object(given, (dict(facts), described(error)), group=group)
    refuse_errors([text for _, text in given])
    refuse_differences([of for of, _ in given])
    if len(known) >= MOST:  # at the same call on every rank
        known.clear()
    known[key] = True


KINDS = {kind.__name__: kind for kind in (InvalidArgument, Unsupported, TypeError)}


def described(error: Exception | None) -> tuple[str, str] | None:
    return None if error is None else (type(error).__name__, str(error))


def refuse_errors(errors: list[tuple[str, str] | None]) -> None:
    for rank, error in enumerate(errors):
        if error is not None:
            raise KINDS[error[0]](f"rank {rank}: {error[1]}")


def refuse_differences(given: list[Facts]) -> None:
    for name in given[0]:
        ranks: dict[Any, list[int]] = {}
        for rank, facts in enumerate(given):
            ranks.setdefault(facts.get(name), []).append(rank)
        if len(ranks) > 1:
            got = " and ".join(f"{value} on {listed(of)}" for value, of in ranks.items())
            raise InvalidArgument(f"{name}: expected the same on every rank, got {got}")


def listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"

# SPDX-License-Identifier: Apache-2.0
"""Ranks that call with different arguments learn so, by the same sentence, instead of waiting.

Before the first call of a kind, ranks gather what each of them was given, its own error included.
What must agree is kept as `seen`. Later calls of that kind compare 8 bytes a rank where the
group's backend is gloo: ranks that make another call, or go backward through another one, are
refused too. Other groups exchange nothing then, for a GPU would have to be waited for: ranks that
differ may end by the group's timeout, or compute with each other's rows.
"""

import hashlib
import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from fa3.distributed.transport.exchange import naming
from fa3.errors import InvalidArgument, Unsupported

Facts = Mapping[str, Any]
MOST = 4096  # kinds of calls that a group keeps in mind
DIGEST_BYTES = 8
DOING = "what the other ranks were given"

seen: "weakref.WeakKeyDictionary[Any, dict]" = weakref.WeakKeyDictionary()
calls: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()  # agreed upon so far


def agree(group, facts: Facts, error: Exception | None = None) -> int:
    """Raises on every rank what is wrong on one of them. Returns the call's number in the group.

    Args:
        facts: names and values that must be equal on all ranks; hashable.
        error: what this rank found wrong with its own arguments.
    """
    of_call = {"call": "a forward pass", **facts}
    key = tuple(of_call.items())
    known = seen.setdefault(group, {})
    if compares(group):
        mine = key if error is None else ("an error", dist.get_rank(group), str(error))
        agreed = same_digest(group, mine) and error is None
    else:
        agreed = key in known and error is None
    if not agreed:
        gather(group, of_call, error)
        if len(known) >= MOST:  # at the same call on every rank
            known.clear()
        known[key] = True
    calls[group] = calls.get(group, 0) + 1
    return calls[group]


def agree_backward(group, number: int) -> None:
    """Raises where ranks go backward through different calls."""
    facts = {"call": f"the backward pass of call {number}"}
    if compares(group) and not same_digest(group, tuple(facts.items())):
        gather(group, facts, None)


def compares(group) -> bool:
    return dist.get_backend(group) == dist.Backend.GLOO


def same_digest(group, key: tuple) -> bool:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=DIGEST_BYTES).digest()
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    given = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    with naming(DOING):
        dist.all_gather(given, mine, group=group)
    return all(torch.equal(given[0], of) for of in given)


def gather(group, facts: Facts, error: Exception | None) -> None:
    given: list[Any] = [None] * dist.get_world_size(group)
    with naming(DOING):
        dist.all_gather_object(given, (dict(facts), described(error)), group=group)
    refuse_errors([text for _, text in given])
    refuse_differences([of for of, _ in given])


KINDS = {kind.__name__: kind for kind in (InvalidArgument, Unsupported, TypeError)}


def described(error: Exception | None) -> tuple[str, str] | None:
    return None if error is None else (type(error).__name__, str(error))


def refuse_errors(errors: list[tuple[str, str] | None]) -> None:
    for rank, error in enumerate(errors):
        if error is not None:
            raise KINDS.get(error[0], InvalidArgument)(f"rank {rank}: {error[1]}")


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

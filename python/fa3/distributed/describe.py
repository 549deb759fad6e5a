# SPDX-License-Identifier: Apache-2.0
"""The arguments of fa3.distributed.attention, checked on this rank and between ranks, and its plan.

Whatever decides who sends what follows from numbers that all ranks have: shapes, the mask, the
whole length or cu_seqlens. So ranks that agree once make the same plan, without talking.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fa3 import _native
from fa3._arrays import CPU
from fa3._dropout import refuse_other_than_probability
from fa3._options import Options, window_ends
from fa3.distributed import choose, stages
from fa3.distributed.agree import agree
from fa3.distributed.cover import Mask
from fa3.distributed.documents import documents
from fa3.distributed.heads import Team
from fa3.distributed.layout import LAYOUTS, count, pieces, stream_rows
from fa3.distributed.run import Plan
from fa3.distributed.schedule import Schedule
from fa3.distributed.transport.device_memory import peers_of
from fa3.distributed.transport.exchange import Ring
from fa3.errors import InvalidArgument, Unsupported
from fa3.torch.checks import refuse_numbers_that_learn, refuse_other_than_tensor
from fa3.torch.dropout import given_or_drawn

METHODS = "auto", "ring", "all_gather", "ulysses", "hybrid"
DROPOUT_STEP = 64  # rows, from whose multiples on dropout_origin counts queries and keys


class Described(NamedTuple):
    plan: Plan
    team: Team | None  # that trades heads
    number: int = 0  # of the call in its group


def describe(q, k, v, *, group, **arguments) -> Described:
    group = group_of(group)
    facts: dict[str, Any] = {}
    error = seed = None
    try:
        refuse_wrong_tensors(q, k, v)
        refuse_other_backend(q, group)
        facts = facts_of(q, k, v, dist.get_world_size(group), dist.get_rank(group), arguments)
        if arguments["dropout_p"]:
            seed = given_or_drawn(arguments["dropout_seed"], q.device, arguments["generator"])
    except Exception as found:  # whatever it is, the other ranks wait for it
        error = found
    number = agree(group, facts, error)
    plan = plan_of(group, dist.get_rank(group), dist.get_world_size(group), tuple(facts.items()))
    if seed is not None and arguments["dropout_seed"] is None:
        dist.broadcast(seed, dist.get_global_rank(group, 0), group=group)
    ring = plan.plan.ring._replace(peers=peers_of(group, k, v))
    options = arguments["options"] | {"dropout_p": arguments["dropout_p"], "dropout_seed": seed}
    return plan._replace(plan=plan.plan._replace(options=options, ring=ring), number=number)


def group_of(group):
    """The process group that a caller means."""
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgument(
            "group: expected torch.distributed to be initialised; call "
            "torch.distributed.init_process_group, or start the program with torchrun"
        )
    if group is None:
        return dist.group.WORLD
    if hasattr(group, "get_group"):  # a DeviceMesh
        if group.ndim != 1:
            raise InvalidArgument(
                f"group: expected a mesh of one dimension, got {group.ndim}; pass mesh['name']"
            )
        return group.get_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument(
            "group: expected a group that this rank is in, got one that it is not"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group: expected a process group or a mesh, got {type(group)!r}")
    return group


def refuse_wrong_tensors(q, k, v) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        refuse_other_than_tensor(name, tensor)
        if tensor.ndim != q.ndim or tensor.ndim not in (3, 4):
            raise InvalidArgument(
                f"{name}: expected (b, s, h, d), or (s, h, d) with cu_seqlens, got "
                f"{tuple(tensor.shape)}"
            )
        for what, got, expected in (
            ("dtype", tensor.dtype, q.dtype),
            ("device", tensor.device, q.device),
            ("batch and rows", tuple(tensor.shape[:-2]), tuple(q.shape[:-2])),
        ):
            if got != expected:
                raise InvalidArgument(f"{name}: expected the {what} of q, {expected}, got {got}")
    if k.shape[-2] != v.shape[-2]:
        raise InvalidArgument(f"v: expected the {k.shape[-2]} heads of k, got {v.shape[-2]}")
    if k.shape[-2] < 1 or q.shape[-2] % k.shape[-2]:
        raise InvalidArgument(
            f"q: expected a multiple of the {k.shape[-2]} key heads, got {q.shape[-2]} heads"
        )
    if k.shape[-1] != q.shape[-1]:
        raise InvalidArgument(f"k: expected the head dim of q, {q.shape[-1]}, got {k.shape[-1]}")


def refuse_other_backend(q, group) -> None:
    backends = dist.get_backend_config(group)
    devices = [part.partition(":")[0] for part in backends.split(",")]
    if q.device.type not in devices:
        raise InvalidArgument(
            f"q: expected a tensor on {' or '.join(devices)}, where the group's backend works "
            f"({backends}), got one on {q.device}"
        )


def facts_of(q, k, v, world: int, rank: int, arguments) -> dict[str, Any]:
    """Names and values that all ranks must share; plan_of() needs no more."""
    chosen = {name: arguments[name] for name in ("method", "layout")}
    for name, known in (("method", METHODS), ("layout", LAYOUTS)):
        if chosen[name] not in known:
            raise InvalidArgument(
                f"{name}: expected one of {', '.join(known)}, got {chosen[name]!r}"
            )
    lengths = lengths_of(q, world, arguments["seqlen"], arguments["cu_seqlens"])
    refuse_dropout(arguments["dropout_p"], lengths, chosen["layout"], world)
    refuse_other_rows(q, lengths, chosen["layout"], world, rank)
    sink, options = arguments["sink"], arguments["options"]
    if sink is not None:
        refuse_other_than_tensor("sink", sink)
    if sink is not None and (tuple(sink.shape) != (q.shape[-2],) or sink.dtype != torch.float32):
        raise InvalidArgument(
            f"sink: expected ({q.shape[-2]},) float32, a number a query head, got "
            f"{tuple(sink.shape)} {sink.dtype}"
        )
    numbers = {name: options[name] for name in ("softcap", "scale")}
    refuse_numbers_that_learn(**numbers)
    refuse_other_counts(options)
    if (gate := arguments.get("gate")) is not None:  # plan() takes none
        refuse_other_shape(gate, q, v)
    degree = degree_of(k.shape[-2], world, arguments)
    needs = [x is not None and x.requires_grad for x in (q, k, v, sink)]
    return {
        **chosen,
        "q": ("packed" if q.ndim == 3 else f"batch {q.shape[0]}", *q.shape[-2:]),
        "k": tuple(k.shape[-2:]),
        "v": tuple(v.shape[-2:]),
        "dtype": str(q.dtype).removeprefix("torch."),
        "device": q.device.type,
        "lengths": lengths,
        "mask": mask_of(arguments["causal"], arguments["window"]),
        "ulysses_degree": degree,
        "stages": sizes_of(world, degree, arguments),
        "sink": sink is not None,
        "dropout_p": float(arguments["dropout_p"]),
        "dropout_seed": "drawn" if arguments["dropout_seed"] is None else "given",
        "gradients": torch.is_grad_enabled() and any(needs),
        **{name: x.item() if isinstance(x, torch.Tensor) else x for name, x in numbers.items()},
        "deterministic": options["deterministic"],
    }


def refuse_other_counts(options) -> None:
    """What the library would refuse of this rank's call alone, when others wait for its rows."""
    counts = {name: options.get(name, 0) for name in ("sm_margin", "num_threads")}
    number = 0, "float32", CPU, 0, (1, 1, 1, 1), (1, 1, 1, 1)  # a tensor without memory
    _native.forward_plan(number, number, number, None, None, *Options(**counts).given())


def refuse_other_shape(gate, q, v) -> None:
    shapes = tuple(q.shape[:-1]), (*q.shape[:-1], 1), (*q.shape[:-1], v.shape[-1])
    if not isinstance(gate, torch.Tensor) or tuple(gate.shape) not in shapes:
        got = tuple(gate.shape) if isinstance(gate, torch.Tensor) else repr(gate)
        raise InvalidArgument(f"gate: expected a tensor {shapes[0]} or {shapes[2]}, got {got}")


def mask_of(causal: bool, window) -> Mask:
    left, right = (None if side == -1 else side for side in window_ends(window))
    for name, side in (("window[0]", left), ("window[1]", right)):
        if side is not None and (not isinstance(side, int) or side < 0):
            raise InvalidArgument(f"{name}: expected None, -1 or a number of keys, got {side!r}")
    return Mask(left, 0 if causal else right)


def lengths_of(q, world: int, seqlen: int | None, cu_seqlens) -> tuple[int, ...]:
    """Rows of each document of the whole."""
    if (cu_seqlens is None) == (q.ndim == 3):
        raise InvalidArgument(
            "cu_seqlens: expected it together with packed tensors, (s, h, d), and only with them"
        )
    if cu_seqlens is None:
        rows = q.shape[1] * world if seqlen is None else seqlen
        if not isinstance(rows, int) or rows < 0:
            raise InvalidArgument(f"seqlen: expected a number of rows >= 0, got {rows!r}")
        return (rows,)
    if seqlen is not None:
        raise InvalidArgument("seqlen: expected None beside cu_seqlens, which has the lengths")
    return documents(cu_seqlens)


def refuse_other_rows(q, lengths, layout: str, world: int, rank: int) -> None:
    rows = count(pieces(layout, lengths, world, rank))
    if q.shape[-3] != rows:
        hint = "" if q.ndim == 3 else "; pass seqlen=, the rows of the whole sequence"
        raise InvalidArgument(
            f"q: expected {rows} rows, this rank's of {sum(lengths)} in the layout {layout}, got "
            f"{q.shape[-3]}{hint}"
        )


def refuse_dropout(p: float, lengths, layout: str, world: int) -> None:
    """Where parts begin between two multiples of a step, no call could say which they have."""
    refuse_other_than_probability(p)
    if not p:
        return
    parts = (piece for rank in range(world) for piece in pieces(layout, lengths, world, rank))
    wrong = next((piece for piece in parts if piece.begin % DROPOUT_STEP), None)
    if wrong is not None:
        number = 2 * world if layout in ("zigzag", "balanced") else world
        raise Unsupported(
            f"dropout_p: expected 0, or parts that begin at multiples of {DROPOUT_STEP} rows of "
            f"their document, got one that begins at row {wrong.begin} of document "
            f"{wrong.document} with {number} parts; pad to a multiple of {DROPOUT_STEP * number}"
        )


def degree_of(kv_heads: int, world: int, arguments) -> int | None:
    """How many ranks trade heads; None where "auto" decides."""
    method, degree = arguments["method"], arguments["ulysses_degree"]
    if method in ("ring", "all_gather"):
        degree, expected = degree or 1, 1
    elif method == "ulysses":
        degree, expected = degree or world, world
    elif method == "hybrid":
        degree = degree or choose.hybrid_degree(world, kv_heads)
        expected = degree
    else:
        if degree is not None:
            raise InvalidArgument("ulysses_degree: expected None with auto, which chooses it")
        return None
    if degree != expected or degree < 1 or world % degree or kv_heads % degree:
        raise InvalidArgument(
            f"ulysses_degree: expected a number of ranks that divides the group's {world} and the "
            f"{kv_heads} key heads{'' if degree == expected else f', {expected} for {method}'}, "
            f"got {degree}; ring and all_gather trade no heads"
        )
    return degree


def sizes_of(world: int, degree: int | None, arguments) -> stages.Sizes | None:
    """How many ranks' keys each stage has, if the caller says it."""
    given = arguments["stages"]
    if given is None:
        return None
    if degree is None or arguments["method"] not in ("ring", "hybrid"):
        raise InvalidArgument(
            f"stages: expected None, but with ring and hybrid, got {given} with "
            f"{arguments['method']}"
        )
    sizes, ranks = tuple(given), world // degree
    if not all(isinstance(n, int) and n > 0 for n in sizes) or sum(sizes) != ranks:
        raise InvalidArgument(
            f"stages: expected numbers of ranks that add up to the ring's {ranks}, got {given}"
        )
    return sizes


@functools.lru_cache(maxsize=256)
def plan_of(group, rank: int, world: int, facts: Sequence[tuple[str, Any]]) -> Described:
    known = dict(facts)
    if known["method"] == "auto":
        _, size, sizes = choose.choose(choose.Question.of(known, world))
    else:
        size = known["ulysses_degree"]
        of_method = stages.gathered if known["method"] == "all_gather" else stages.ring
        sizes = known["stages"] or of_method(world // size)
    layout, lengths = known["layout"], known["lengths"]
    joins = known["q"][0] in ("packed", "batch 1")
    step = DROPOUT_STEP if known["dropout_p"] else 0
    schedule = Schedule(sizes, layout, lengths, known["mask"], joins, step, size)
    ring = Ring(group, world // size, rank // size, size, rank % size)
    plan = Plan(schedule, ring, {}, rank % size * (known["q"][1] // size))
    return Described(plan, team_of(group, rank, world, size, layout, lengths))


def team_of(group, rank, world, size, layout, lengths) -> Team | None:
    if size == 1:
        return None
    first = rank // size * size
    held = [pieces(layout, lengths, world, first + i) for i in range(size)]
    order, back = reorders([stream_rows(of, lengths) for of in held])
    return Team(group, size, rank - first, first, world, tuple(map(count, held)), order, back)


def reorders(held):
    """Ranges to take that put the members' rows in the order of the stream, and that undo it."""
    found, local = [], 0
    for begin, end in (one for ranges in held for one in ranges):
        found.append((begin, local, local + end - begin))
        local += end - begin
    order = tuple((a, b) for _, a, b in sorted(found))
    back, place = {}, 0
    for a, b in order:
        back[a] = (place, place + b - a)
        place += b - a
    return order, tuple(back[a] for a in sorted(back))

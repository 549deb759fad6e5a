# SPDX-License-Identifier: Apache-2.0
"""torch.ops.fa3.mla_forward, mla_forward_out, mla_append and mla_gather, and fa3.mla through them.

No gradients: a tensor that needs one is refused by name.
"""

import torch

from fa3 import _mla_calls
from fa3._mla_calls import Append, Forward, Gather
from fa3.torch.checks import refuse_other_than_tensor
from fa3.torch.library import define, refuse_gradients, unrecorded, written
from fa3.torch.operators import threads_of

NUMBERS = {
    "rows": "int",
    "extra_rows": "int",
    "max_seqlen_q": "SymInt",
    "scale": "float?",
    "causal": "bool",
    "lse_with_sink": "bool",
    "empty_lse": "bool",
    "num_splits": "int",
    "batch_invariant": "bool",
    "engine": "int",
    "num_threads": "int",
    "rotary_interleaved": "bool",
    "scaling": "int",
    "dtype": "str",
    "dim": "int",
}
NEEDED = "q", "cache", "c_kv", "slots"
NO_GRADIENT = "since fa3.mla has no gradients"


def arguments(kind, **in_place):
    types = {**{n: "Tensor" if n in NEEDED else "Tensor?" for n in kind._fields}, **NUMBERS}
    return ", ".join(f"{in_place.get(name, types[name])} {name}" for name in kind._fields)


def with_threads(call, tensor):
    return call._replace(num_threads=threads_of(tensor, call.num_threads))


def results_of(call, returns_lse, returns_max):
    """out, lse and max; of those that are not wanted, tensors without elements."""
    out, *optional = _mla_calls.new_results(call, returns_lse, returns_max)
    nothing = call.q.new_empty((0,), dtype=torch.float32)
    return out, *(nothing.clone() if x is None else x for x in optional)


def forward_kernel(*given):
    call, wanted = Forward(*given[:-2]), given[-2:]
    out, lse, largest = results_of(call, *wanted)
    write(call, out, lse, largest, *wanted)
    return out, lse, largest


def forward_shapes(*given):
    return results_of(Forward(*given[:-2]), *given[-2:])


def forward_out_kernel(*given):
    call, wanted, out = Forward(*given[:-3]), given[-3:-1], given[-1]
    _, lse, largest = results_of(call, *wanted)
    write(call, out, lse, largest, *wanted)
    return lse, largest


def forward_out_shapes(*given):
    return results_of(Forward(*given[:-3]), *given[-3:-1])[1:]


def write(call, out, lse, largest, returns_lse, returns_max):
    call = with_threads(call, call.q)
    _mla_calls.forward(call, out, lse if returns_lse else None, largest if returns_max else None)


def record_forward(op, *given):
    refuse_gradients(NO_GRADIENT, **Forward(*given[: len(Forward._fields)])._asdict())
    return unrecorded(op, *given)


def record_forward_out(op, *given):
    refuse_gradients(NO_GRADIENT, out=given[-1])
    results = record_forward(op, *given)
    written(given[-1])
    return results


def append_kernel(*given):
    call = Append(*given)
    rotated = _mla_calls.append(with_threads(call, call.c_kv))
    return call.c_kv.new_empty((0,)) if rotated is None else rotated


def append_shapes(*given):
    call = Append(*given)
    return call.c_kv.new_empty((0,) if call.q_pe is None else call.q_pe.shape)


def record_append(op, *given):
    call = Append(*given)
    refuse_gradients(NO_GRADIENT, **call._asdict())
    rotated = unrecorded(op, *given)
    written(*(x for x in (call.cache, call.rope) if x is not None))
    return rotated


def gather_kernel(*given):
    call = Gather(*given)
    return _mla_calls.gather(with_threads(call, call.slots))


def gather_shapes(*given):
    call = Gather(*given)
    shape = (call.slots.shape[0], call.dim)
    return call.slots.new_empty(shape, dtype=getattr(torch, call.dtype))


def record_gather(op, *given):
    refuse_gradients(NO_GRADIENT, **Gather(*given)._asdict())
    return unrecorded(op, *given)


WANTED = "bool return_lse, bool return_max"
run_forward = define(
    "mla_forward",
    f"({arguments(Forward)}, {WANTED}) -> (Tensor out, Tensor lse, Tensor max)",
    forward_kernel,
    forward_shapes,
    record_forward,
)
run_forward_out = define(
    "mla_forward_out",
    f"({arguments(Forward)}, {WANTED}, Tensor(a!) out) -> (Tensor lse, Tensor max)",
    forward_out_kernel,
    forward_out_shapes,
    record_forward_out,
)
run_append = define(
    "mla_append",
    f"({arguments(Append, cache='Tensor(a!)', rope='Tensor(b!)?')}) -> Tensor",
    append_kernel,
    append_shapes,
    record_append,
)
run_gather = define(
    "mla_gather", f"({arguments(Gather)}) -> Tensor", gather_kernel, gather_shapes, record_gather
)


def attend(call, out, returns_lse, returns_max):
    """out, and lse and max or None."""
    refuse_others(call)
    wanted = returns_lse, returns_max
    if out is None:
        out, *optional = run_forward(*call, *wanted)
    else:
        refuse_other_than_tensor("out", out)
        optional = run_forward_out(*call, *wanted, out)
    return out, *(x if wants else None for x, wants in zip(optional, wanted, strict=True))


def append(call):
    refuse_others(call)
    rotated = run_append(*call)
    return None if call.q_pe is None else rotated


def gather(call):
    refuse_others(call)
    return run_gather(*call)


def refuse_others(call):
    for name, value in call._asdict().items():
        if value is not None and name not in NUMBERS:
            refuse_other_than_tensor(name, value)

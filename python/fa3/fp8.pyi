# SPDX-License-Identifier: Apache-2.0
from typing import Any, Generic, Literal, NamedTuple, overload

from typing_extensions import Unpack

from fa3.ops import Array, OptionsOfBothPasses
from fa3.ops import Options as OfForward

class Options(OptionsOfBothPasses[Array], Generic[Array], total=False):
    num_splits: int
    precision: Literal["fp8", "auto"]
    scaling: Literal["block", "head", "tensor"]
    hadamard: bool
    center: bool
    seed: int
    saved: Literal["inputs", "quantized"]
    out: Array | None

class Advice(NamedTuple):
    precision: str
    seconds: float
    seconds_fp8: float
    error: float
    error_fp8: float
    bytes: int
    bytes_fp8: int
    reason: str

def advise(
    q: Array, k: Array, v: Array, *, device: Any = None, **options: Unpack[OfForward[Array]]
) -> Advice: ...
@overload
def attention_fp8(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_max_logit: Literal[False] = False,
    **options: Unpack[Options[Array]],
) -> Array: ...
@overload
def attention_fp8(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_max_logit: Literal[False] = False,
    **options: Unpack[Options[Array]],
) -> tuple[Array, Array]: ...
@overload
def attention_fp8(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool,
    return_max_logit: Literal[False] = False,
    **options: Unpack[Options[Array]],
) -> Array | tuple[Array, Array]: ...
@overload
def attention_fp8(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    return_max_logit: bool,
    **options: Unpack[Options[Array]],
) -> Array | tuple[Array, ...]: ...
def watch(every: int) -> None: ...
def sampled_error() -> tuple[float, float, int] | None: ...

# SPDX-License-Identifier: Apache-2.0
from typing import Generic, Literal, overload

from typing_extensions import Unpack

from fa3.ops import Array, OptionsOfBothPasses

Scaling = Literal["block", "head", "tensor"]
Saved = Literal["inputs", "quantized"]

class Options(OptionsOfBothPasses[Array], Generic[Array], total=False):
    num_splits: int

@overload
def attention_fp8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scaling: Scaling = "block",
    hadamard: bool = True,
    center: bool = True,
    seed: int = 0,
    saved: Saved = "inputs",
    out: Array | None = None,
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
    scaling: Scaling = "block",
    hadamard: bool = True,
    center: bool = True,
    seed: int = 0,
    saved: Saved = "inputs",
    out: Array | None = None,
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
    scaling: Scaling = "block",
    hadamard: bool = True,
    center: bool = True,
    seed: int = 0,
    saved: Saved = "inputs",
    out: Array | None = None,
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
    scaling: Scaling = "block",
    hadamard: bool = True,
    center: bool = True,
    seed: int = 0,
    saved: Saved = "inputs",
    out: Array | None = None,
    return_lse: bool = False,
    return_max_logit: bool,
    **options: Unpack[Options[Array]],
) -> Array | tuple[Array, ...]: ...
def watch(every: int) -> None: ...
def sampled_error() -> tuple[float, float, int] | None: ...

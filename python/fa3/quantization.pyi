# SPDX-License-Identifier: Apache-2.0
from typing import Generic, Literal, NamedTuple

from fa3.ops import Array, Engine

class Quantized(NamedTuple, Generic[Array]):
    x: Array
    descale: Array
    mean: Array | None

def quantize(
    x: Array,
    *,
    scaling: Literal["block", "head", "tensor"] = "block",
    center: bool = False,
    hadamard: bool = False,
    seed: int = 0,
    rotary: tuple[Array, Array] | None = None,
    interleaved: bool = False,
    cu_seqlens: Array | None = None,
    seqused: Array | None = None,
    max_seqlen: int = 0,
    transposed: bool = False,
    engine: Engine = "auto",
    num_threads: int = 0,
) -> Quantized[Array]: ...

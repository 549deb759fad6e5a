# SPDX-License-Identifier: Apache-2.0
from typing import Any, Literal

from fa3.ops import Array

def attention_fp8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scaling: Literal["block", "head", "tensor"] = "block",
    hadamard: bool = True,
    center: bool = True,
    seed: int = 0,
    out: Array | None = None,
    **options: Any,
) -> Any: ...

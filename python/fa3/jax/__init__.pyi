# SPDX-License-Identifier: Apache-2.0
from typing import Literal, overload

import jax
from typing_extensions import Unpack

from fa3.ops import OptionsOfBothPasses

@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[OptionsOfBothPasses[jax.Array]],
) -> jax.Array: ...
@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    return_lse: Literal[True],
    **options: Unpack[OptionsOfBothPasses[jax.Array]],
) -> tuple[jax.Array, jax.Array]: ...
@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    return_lse: bool,
    **options: Unpack[OptionsOfBothPasses[jax.Array]],
) -> jax.Array | tuple[jax.Array, jax.Array]: ...

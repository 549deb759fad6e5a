# SPDX-License-Identifier: Apache-2.0
from typing import Literal, overload

import jax
from jax.typing import ArrayLike
from typing_extensions import TypedDict, Unpack

from fa3.ops import Options

class DotProductOptions(TypedDict, total=False):
    scale: float | None
    is_causal: bool
    query_seq_lengths: ArrayLike | None
    key_value_seq_lengths: ArrayLike | None
    local_window_size: int | tuple[int, int] | None
    implementation: str | None

@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    return_lse: Literal[False] = False,
    return_max_logit: Literal[False] = False,
    bias: jax.Array | None = None,
    **options: Unpack[Options[jax.Array]],
) -> jax.Array: ...
@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    return_lse: Literal[True],
    return_max_logit: Literal[False] = False,
    bias: jax.Array | None = None,
    **options: Unpack[Options[jax.Array]],
) -> tuple[jax.Array, jax.Array]: ...
@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    return_lse: bool,
    return_max_logit: Literal[False] = False,
    bias: jax.Array | None = None,
    **options: Unpack[Options[jax.Array]],
) -> jax.Array | tuple[jax.Array, jax.Array]: ...
@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    return_lse: bool = False,
    return_max_logit: bool,
    bias: jax.Array | None = None,
    **options: Unpack[Options[jax.Array]],
) -> jax.Array | tuple[jax.Array, ...]: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    return_residual: Literal[False] = False,
    **options: Unpack[DotProductOptions],
) -> jax.Array: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    return_residual: Literal[True],
    **options: Unpack[DotProductOptions],
) -> tuple[jax.Array, jax.Array]: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    return_residual: bool,
    **options: Unpack[DotProductOptions],
) -> jax.Array | tuple[jax.Array, jax.Array]: ...
def append(
    k_cache: jax.Array,
    v_cache: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    seqused: jax.Array,
    cu_seqlens_new: jax.Array | None = None,
    page_table: jax.Array | None = None,
    batch_index: jax.Array | None = None,
    rotary_cos: jax.Array | None = None,
    rotary_sin: jax.Array | None = None,
    rotary_interleaved: bool = False,
    first_position: jax.Array | None = None,
    q: jax.Array | None = None,
    cu_seqlens_q: jax.Array | None = None,
    queries_share_position: bool = False,
    k_descale: jax.Array | None = None,
    v_descale: jax.Array | None = None,
    num_threads: int = 0,
) -> tuple[jax.Array, ...]: ...

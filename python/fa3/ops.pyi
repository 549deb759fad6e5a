# SPDX-License-Identifier: Apache-2.0
from typing import Any, Generic, Literal, NamedTuple, TypeVar, overload

Array = TypeVar("Array")  # numpy.ndarray, torch.Tensor, or anything with __dlpack__
Engine = Literal["auto", "cpu", "reference", "standard", "hopper"]

class Gradients(NamedTuple, Generic[Array]):
    dq: Array
    dk: Array
    dv: Array
    dsink: Array | None

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    scale: float | None = None,
    sink: Array | None = None,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    k_mean: Array | None = None,
    v_mean: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    page_table: Array | None = None,
    batch_index: Array | None = None,
    left_padding: Array | None = None,
    num_splits: int = 0,
    out: Array | None = None,
    return_lse: Literal[False] = False,
    deterministic: bool = False,
    batch_invariant: bool = False,
    engine: Engine = "auto",
    num_threads: int = 0,
) -> Array: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    scale: float | None = None,
    sink: Array | None = None,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    k_mean: Array | None = None,
    v_mean: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    page_table: Array | None = None,
    batch_index: Array | None = None,
    left_padding: Array | None = None,
    num_splits: int = 0,
    out: Array | None = None,
    return_lse: Literal[True],
    deterministic: bool = False,
    batch_invariant: bool = False,
    engine: Engine = "auto",
    num_threads: int = 0,
) -> tuple[Array, Array]: ...
def attention_backward(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    sink: Array | None = None,
    **options: Any,
) -> Gradients[Array]: ...
def merge(o_partial: Array, lse_partial: Array, *, num_threads: int = 0) -> tuple[Array, Array]: ...
def append(
    k_cache: Array,
    v_cache: Array,
    k: Array,
    v: Array,
    *,
    seqused: Array,
    cu_seqlens_new: Array | None = None,
    page_table: Array | None = None,
    batch_index: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_interleaved: bool = False,
    first_position: Array | None = None,
    q: Array | None = None,
    cu_seqlens_q: Array | None = None,
    queries_share_position: bool = False,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    num_threads: int = 0,
) -> Array | None: ...
def plan(q: Array, k: Array, v: Array, *, sink: Array | None = None, **options: Any) -> str: ...
def validate(
    q: Array, k: Array, v: Array, *, sink: Array | None = None, **options: Any
) -> None: ...
def engines() -> list[tuple[str, bool, str]]: ...

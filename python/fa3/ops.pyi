# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar, overload

from typing_extensions import TypedDict, Unpack

Array = TypeVar("Array")  # numpy.ndarray, torch.Tensor, or anything with __dlpack__
Engine = Literal["auto", "cpu", "reference", "standard", "hopper", "ampere"]

class Gradients(NamedTuple, Generic[Array]):
    dq: Array
    dk: Array
    dv: Array
    dsink: Array | None
    dgate: Array | None = None

class OptionsOfBothPasses(TypedDict, Generic[Array], total=False):
    causal: bool
    window: Sequence[int | None] | None
    softcap: float | None
    scale: float | None
    sink: Array | None
    gate: Array | None
    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
    seqused_q: Array | None
    seqused_k: Array | None
    dropout_seed: Array | tuple[int, int] | None
    block_mask: Any
    max_seqlen_q: int
    max_seqlen_k: int
    deterministic: bool
    engine: Engine
    num_threads: int
    attention_chunk: int | None
    batch_invariant: bool
    window_shift: int
    sm_margin: int
    dropout_p: float | None
    dropout_origin: tuple[int, int, int, int] | None

class Options(OptionsOfBothPasses[Array], Generic[Array], total=False):
    page_table: Array | None
    batch_index: Array | None
    left_padding: Array | None
    num_splits: int
    q_descale: Array | None
    k_descale: Array | None
    v_descale: Array | None
    k_mean: Array | None
    v_mean: Array | None
    v_transposed: bool

class AttentionOptions(Options[Array], Generic[Array], total=False):
    out: Array | None
    generator: Any
    bias: Array | None
    alibi_slopes: Array | None

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_max_logit: Literal[False] = False,
    **options: Unpack[AttentionOptions[Array]],
) -> Array: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_max_logit: Literal[False] = False,
    **options: Unpack[AttentionOptions[Array]],
) -> tuple[Array, Array]: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool,
    return_max_logit: Literal[False] = False,
    **options: Unpack[AttentionOptions[Array]],
) -> Array | tuple[Array, Array]: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    return_max_logit: bool,
    **options: Unpack[AttentionOptions[Array]],
) -> Array | tuple[Array, ...]: ...
def attention_backward(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    **options: Unpack[OptionsOfBothPasses[Array]],
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
def plan(
    q: Array, k: Array, v: Array, *, device: Any = None, **options: Unpack[Options[Array]]
) -> str: ...
def validate(q: Array, k: Array, v: Array, **options: Unpack[Options[Array]]) -> None: ...
def engines() -> list[tuple[str, bool, str]]: ...

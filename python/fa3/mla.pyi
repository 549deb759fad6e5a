# SPDX-License-Identifier: Apache-2.0
from typing import Any, Literal, TypeVar, overload

from typing_extensions import TypedDict, Unpack

Array = TypeVar("Array")  # numpy.ndarray, torch.Tensor, or anything with __dlpack__
Rows = Literal["auto", "latent", "group128", "v4", "tensor", "token"]
Fp8Rows = Literal["group128", "v4", "tensor", "token"]

__all__ = [
    "append",
    "attention",
    "empty_cache",
    "gather",
    "page_bytes",
    "plan",
    "row_bytes",
    "sparse_attention",
]

class Options(TypedDict, total=False):
    rope: Any
    rows: Rows
    descale: Any
    page_table: Any
    seqused_k: Any
    causal: bool
    indices: Any
    index_count: Any
    extra_cache: Any
    extra_rope: Any
    extra_rows: Rows
    extra_descale: Any
    extra_indices: Any
    extra_index_count: Any
    sink: Any
    scale: float | None
    cu_seqlens_q: Any
    max_seqlen_q: int
    out: Any
    lse_with_sink: bool
    empty_lse: float
    num_splits: int
    batch_invariant: bool
    engine: Literal["auto", "cpu", "hopper", "reference"]
    num_threads: int

class SparseOptions(TypedDict, total=False):
    index_count: Any
    sink: Any
    scale: float | None
    causal: bool
    lse_with_sink: bool
    deterministic: bool
    engine: Literal["auto", "cpu", "reference"]
    num_threads: int

@overload
def attention(
    q: Array | tuple[Array, Array],
    cache: Array,
    *,
    return_lse: Literal[False] = False,
    return_max: Literal[False] = False,
    **options: Unpack[Options],
) -> Array: ...
@overload
def attention(
    q: Array | tuple[Array, Array],
    cache: Array,
    *,
    return_lse: bool = False,
    return_max: bool = False,
    **options: Unpack[Options],
) -> Array | tuple[Array, ...]: ...
@overload
def sparse_attention(
    q: Array,
    kv: Any,
    indices: Any,
    *,
    return_lse: Literal[False] = False,
    return_max: Literal[False] = False,
    **options: Unpack[SparseOptions],
) -> Array: ...
@overload
def sparse_attention(
    q: Array,
    kv: Any,
    indices: Any,
    *,
    return_lse: bool = False,
    return_max: bool = False,
    **options: Unpack[SparseOptions],
) -> Array | tuple[Array, ...]: ...
def plan(q: Any, cache: Any, **options: Unpack[Options]) -> str: ...
def append(
    cache: Any,
    c_kv: Array,
    k_pe: Array | None = None,
    *,
    slots: Any,
    rope: Any = None,
    rows: Rows = "auto",
    descale: Any = None,
    scaling: Literal["pow2", "exact"] = "pow2",
    smallest: Literal["flash_mla", "vllm"] = "flash_mla",
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = False,
    positions: Any = None,
    q_pe: Array | None = None,
    num_threads: int = 0,
) -> Array | None: ...
def gather(
    cache: Array,
    slots: Any,
    *,
    rope: Any = None,
    rows: Rows = "auto",
    descale: Any = None,
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16",
    dim: int | None = None,
) -> Array: ...
def row_bytes(rows: Fp8Rows) -> int: ...
def page_bytes(rows: Fp8Rows, page_size: int) -> int: ...
def empty_cache(pages: int, page_size: int, *, rows: Fp8Rows, device: Any = None) -> Any: ...

# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (MLA) over latent caches: FP8 rows, top-k, two caches (docs/mla.md).

A row of a latent cache serves all query heads. K is the row: its latent channels, then its rope
channels, 576 or 512 in all; V is the first 512 of K. Queries are absorbed: (..., h, 576), or 512.
fa3.attention(q, k, k[..., :512]) takes a 16-bit cache too, with k = cache[:, :, None].

docs/mla.md says which calls run on a GPU; others raise fa3.Unsupported there. Only
sparse_attention() has gradients.
"""

import numpy as np

from fa3 import _mla_calls
from fa3._arrays import is_torch, shape_of, type_of
from fa3._mla_calls import ROPE_DIM, ROWS, VALUE_DIM, Append, Forward, Gather
from fa3._options import engine_id
from fa3.errors import InvalidArgument
from fa3.ops import torch_backend

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

ROW_BYTES = {"group128": 656, "v4": 584, "tensor": 576, "token": 644}
ALIGNMENT = {"group128": 16, "v4": 576, "tensor": 1, "token": 16}  # of pages


def attention(
    q,
    cache,
    *,
    rope=None,
    rows="auto",
    descale=None,
    page_table=None,
    seqused_k=None,
    causal=False,
    indices=None,
    index_count=None,
    extra_cache=None,
    extra_rope=None,
    extra_rows="auto",
    extra_descale=None,
    extra_indices=None,
    extra_index_count=None,
    sink=None,
    scale=None,
    cu_seqlens_q=None,
    max_seqlen_q=0,
    out=None,
    return_lse=False,
    return_max=False,
    lse_with_sink=True,
    empty_lse=-np.inf,
    num_splits=0,
    batch_invariant=False,
    engine="auto",
    num_threads=0,
):
    """Attention of absorbed queries to the rows of a latent cache.

    Dense calls have page_table and seqused_k, sparse calls indices.

    Args:
        q: (b, sq, h, d), or (total_q, h, d); or a pair (latent, rope) of such, of 512 (or 448) and
            64 channels. float16, bfloat16 or float32; d is 576 or 512; 1 to 128 heads.
        cache: (pages, page_size, row) or (pages, page_size, 1, row): rows of 576 or 512 channels in
            16 or 32 bits or float8_e4m3fn, or of bytes (uint8, int8, float8_e4m3fn).
        rope: (pages, page_size, 64), the rope channels of a cache whose rows have 512 channels.
        rows: the layout of rows: "latent", "group128", "v4", "tensor", "token", or "auto", which
            follows from their type and size (docs/mla.md has the bytes).
        descale: float32 (1,), or (2,) for latent and rope channels: the scale of "tensor" rows.
        page_table: int32 (b, max_pages); row j of sequence n is row j % page_size of page
            page_table[n, j // page_size].
        seqused_k: int32 (b,): rows of each sequence that are in use.
        causal: the last query sees the last row; only in dense calls.
        indices: int32 (b, sq, k) or (total_q, k): rows of each query, page * page_size + row. A
            number that names no row, such as -1, is skipped; a row that is named twice counts
            twice.
        index_count: int32 (b,), (b, sq) or (total_q,): how many indices, from the left, count.
        extra_cache, extra_rope, extra_rows, extra_descale, extra_indices, extra_index_count: a
            second cache, in any layout, whose chosen rows join the same softmax. CPU only.
        sink: float32 (h,): one more logit of each head, which has no value.
        scale: of the scores; None is d**-0.5. DeepSeek's models were trained with the scale of the
            head dim before absorption, 192**-0.5, times a factor of their own: pass it.
        cu_seqlens_q, max_seqlen_q: packed queries of a dense call, as fa3.attention's.
        out: written instead of a new array: q's shape with 512 channels, q's dtype.
        return_lse, return_max: also return the natural log-sum-exp, float32 (b, h, sq) or (h,
            total_q), and the largest scaled score, of the same type and shape.
        lse_with_sink: False leaves the sink out of the LSE, as FlashMLA does.
        empty_lse: -inf or inf: the LSE of a query that sees no key and has no sink. Its out is 0.
        num_splits, batch_invariant: as fa3.attention's. CPU engines ignore both: their results
            never depend on other sequences.
        engine: "auto", "cpu", "reference" or "hopper".

    Returns:
        out (q's shape, 512) in q's dtype, or a tuple (out, lse), (out, max), (out, lse, max).

    Raises what fa3.attention() raises. Rows beyond lengths and counts, and rows that no valid entry
    names, are never read: they may hold NaN.
    """
    call = forward_call(
        q,
        cache=cache,
        rope=rope,
        rows=rows,
        descale=descale,
        page_table=page_table,
        seqused_k=seqused_k,
        causal=causal,
        indices=indices,
        index_count=index_count,
        extra_cache=extra_cache,
        extra_rope=extra_rope,
        extra_rows=extra_rows,
        extra_descale=extra_descale,
        extra_indices=extra_indices,
        extra_index_count=extra_index_count,
        sink=sink,
        scale=scale,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        lse_with_sink=lse_with_sink,
        empty_lse=empty_lse,
        num_splits=num_splits,
        batch_invariant=batch_invariant,
        engine=engine,
        num_threads=num_threads,
    )
    if is_torch(call.q):
        out, lse, largest = torch_backend().mla.attend(call, out, return_lse, return_max)
    else:
        new, lse, largest = _mla_calls.new_results(call, return_lse, return_max)
        is_new, out = out is None, new if out is None else out
        _mla_calls.forward(call, out, lse, largest, is_new)
    results = (out, *(x for x in (lse, largest) if x is not None))
    return results if len(results) > 1 else out


def plan(q, cache, **options):
    """The plan for `attention(q, cache, **options)` as text: engine, workspace and why.

    Raises what attention() raises. Computes nothing.
    """
    if unknown := options.keys() - DEFAULTS.keys():
        raise TypeError(f"plan() got an unexpected keyword argument {min(unknown)!r}")
    return _mla_calls.plan(forward_call(q, cache=cache, **{**DEFAULTS, **options}))


def append(
    cache,
    c_kv,
    k_pe=None,
    *,
    slots,
    rope=None,
    rows="auto",
    descale=None,
    scaling="pow2",
    smallest="flash_mla",
    rotary_cos=None,
    rotary_sin=None,
    rotary_interleaved=False,
    positions=None,
    q_pe=None,
    num_threads=0,
):
    """Writes rows into a latent cache, in place; rotates k_pe and q_pe on the way.

    Args:
        cache, rope, rows, descale: as attention's.
        c_kv: (n, 512), of "v4" rows (n, 448); float16, bfloat16 or float32.
        k_pe: (n, 64); None writes zeros where rows have rope channels.
        slots: int32 or int64 (n,): page * page_size + row; a slot outside of the cache, such as -1,
            is not written. If several rows have the same slot, it may end with parts of each.
        scaling: how rows that contain their scales compute them: "pow2", powers of two, as FlashMLA
            writes them, or "exact", amax / 448, as vLLM's concat_and_cache_mla does.
        smallest: the smallest power of two of "v4" rows: "flash_mla" (2**-13), or "vllm" (from
            amax = 1e-4).
        rotary_cos, rotary_sin: (positions, pairs), float32 or k_pe's dtype.
        rotary_interleaved: pairs are channels 2 i and 2 i + 1, as DeepSeek has them, instead of i
            and i + pairs.
        positions: int32 or int64 (n,): each token's row of rotary_cos and rotary_sin.
        q_pe: (n, h, 64): rotated with the same tables and positions.

    Returns:
        The rotated q_pe; None without q_pe.

    Raises what fa3.attention() raises.
    """
    if scaling not in ("pow2", "exact"):
        raise InvalidArgument(f"scaling: expected pow2 or exact, got {scaling!r}")
    if smallest not in ("flash_mla", "vllm"):
        raise InvalidArgument(f"smallest: expected flash_mla or vllm, got {smallest!r}")
    recipe = 2 if smallest == "vllm" and scaling == "pow2" else int(scaling == "exact")
    of_cache = cache, rope, descale, rows_id("rows", rows)
    tables = rotary_cos, rotary_sin, narrow(positions)
    call = Append(
        *of_cache, c_kv, k_pe, narrow(slots), *tables, q_pe, rotary_interleaved, recipe, num_threads
    )
    return torch_backend().mla.append(call) if is_torch(c_kv) else _mla_calls.append(call)


def gather(cache, slots, *, rope=None, rows="auto", descale=None, dtype="bfloat16", dim=None):
    """Reads rows of a latent cache, dequantized: (n, 576) or (n, 512).

    Args:
        cache, rope, rows, descale: as attention's.
        slots: int32 or int64 (n,): page * page_size + row; a slot outside of the cache gives zeros.
        dtype: of the result: "bfloat16", "float16" or "float32".
        dim: 512 leaves rope channels out; None is all channels of the rows.

    Raises what fa3.attention() raises.
    """
    if dim is None:
        wide = rope is not None or shape_of(cache, "cache")[-1] not in (VALUE_DIM, 584)
        dim = VALUE_DIM + ROPE_DIM * wide
    call = Gather(cache, rope, descale, rows_id("rows", rows), narrow(slots), dtype, dim, 0)
    return torch_backend().mla.gather(call) if is_torch(cache) else _mla_calls.gather(call)


def sparse_attention(
    q,
    kv,
    indices,
    *,
    index_count=None,
    sink=None,
    scale=None,
    causal=False,
    return_lse=False,
    return_max=False,
    lse_with_sink=True,
    deterministic=False,
    engine="auto",
    num_threads=0,
):
    """Attention of each query to the rows of kv that its indices name, with gradients.

    Takes torch tensors only. The indices have no gradient: an indexer needs a loss of its own.

    Args:
        q: (sq, h, d), or (b, sq, h, d): absorbed queries, d of 576 or 512.
        kv: (s_kv, d), or (b, s_kv, d), also with a head dimension of 1 before d: K; V is its first
            512 channels. float32, float16 or bfloat16.
        indices: int32 or int64 (sq, k), or (b, sq, k), also with a head dimension of 1 before k:
            rows of the sequence's kv. A number that names no row, such as -1, is skipped; a row
            that is named twice counts twice, in gradients too.
        index_count: int32 (sq,), or (b, sq): how many indices, from the left, count.
        sink: float32 (h,): one more logit of each head, which has no value.
        scale: of the scores; None is d**-0.5.
        causal: also skips indices of rows later than i + s_kv - sq, for query i.
        return_lse, return_max: as attention()'s: (h, sq), or (b, h, sq). The LSE has a gradient.
        lse_with_sink: False leaves the sink out of the LSE.
        deterministic: bitwise repeatable gradients. Engine cpu always has them; on a GPU they
            take longer.
        engine: "auto", "cpu", "hopper" or "reference"; "reference" has no gradients.

    Returns:
        out (q's shape, 512) in q's dtype, or a tuple (out, lse), (out, max), (out, lse, max).

    Raises what fa3.attention() raises.
    """
    if not is_torch(q):
        raise TypeError(f"q: expected a torch tensor, got {type(q).__name__}; arrays: attention()")
    numbers = scale, lse_with_sink, deterministic, engine_id(engine), num_threads
    tensors = q, kv, narrow(indices), narrow(index_count), sink
    out, lse, largest = torch_backend().sparse.attend(*tensors, causal, numbers)
    results = (out, *(x for x, wanted in ((lse, return_lse), (largest, return_max)) if wanted))
    return results if len(results) > 1 else out


def row_bytes(rows):
    """Bytes of one token in a cache of these rows, without the padding of pages.

    rows: "group128", "v4", "tensor" or "token"; others raise fa3.InvalidArgument.
    """
    if rows not in ROW_BYTES:
        raise InvalidArgument(f"rows: expected one of {', '.join(ROW_BYTES)}, got {rows!r}")
    return ROW_BYTES[rows]


def page_bytes(rows, page_size):
    """Bytes from one page to the next in empty_cache(), padding included."""
    row, unit = row_bytes(rows), ALIGNMENT[rows]
    return -(-row * page_size // unit) * unit


def empty_cache(pages, page_size, *, rows, device=None):
    """An unwritten cache of FP8 rows, uint8 (pages, page_size, row_bytes(rows)).

    A torch tensor on `device`; None: a NumPy array.
    """
    stride, row = page_bytes(rows, page_size), row_bytes(rows)
    if device is None:
        memory = np.empty(pages * stride, np.uint8)
        strided = np.lib.stride_tricks.as_strided
        return strided(memory, (pages, page_size, row), (stride, row, 1))
    import torch

    memory = torch.empty(pages * stride, dtype=torch.uint8, device=device)
    return memory.as_strided((pages, page_size, row), (stride, row, 1))


def forward_call(q, *, rows, extra_rows, empty_lse, engine, **given):
    """A Forward from the arguments of attention()."""
    q, q_rope = q if isinstance(q, (tuple, list)) else (q, None)
    shape_of(q, "q")
    if empty_lse not in (np.inf, -np.inf):
        raise InvalidArgument(f"empty_lse: expected inf or -inf, got {empty_lse!r}")
    changed = {
        "q": q,
        "q_rope": q_rope,
        "rows": rows_id("rows", rows),
        "extra_rows": rows_id("extra_rows", extra_rows),
        "empty_lse": empty_lse > 0,
        "engine": engine_id(engine),
    }
    return Forward(*(changed.get(name, given.get(name)) for name in Forward._fields))


DEFAULTS = dict(attention.__kwdefaults__ or {})


def rows_id(name, rows):
    if isinstance(rows, str) and rows in ROWS:
        return ROWS[rows]
    raise InvalidArgument(f"{name}: expected one of {', '.join(ROWS)}, got {rows!r}")


def narrow(numbers):
    """int32 of int64 numbers; those that do not fit stay outside of every cache."""
    if numbers is None or type_of(numbers) != "int64":
        return numbers
    low, high = -1, 2**31 - 1
    if is_torch(numbers):
        return numbers.clamp(low, high).int()
    return numbers.clip(low, high).astype(np.int32)

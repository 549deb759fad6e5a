# SPDX-License-Identifier: Apache-2.0
"""fa3.attention and its relatives: they name the arguments and call the library.

Rules, defaults and error sentences are the library's (include/fa3/fa3.h). Torch tensors go on to
fa3.torch; everything else is handled here without torch.
"""

import functools
from typing import NamedTuple

from fa3 import _backends, _calls, _native
from fa3._arrays import (
    empty,
    in_int32,
    is_meta,
    is_torch,
    lender,
    optional_view,
    output_view,
    question_view,
    shape_of,
    type_of,
    view,
)
from fa3._dropout import require_seed
from fa3._options import (
    BOTH_PASSES,
    IN_ORDER,
    OF_BOTH_PASSES,
    in_order,
    refuse_positions,
    takes_options,
    viewed,
)
from fa3.errors import InvalidArgument, Unsupported
from fa3.masks import refuse_other_extents


def load_torch_backend():
    if _backends.torch is None:
        import fa3.torch  # noqa: F401


# torch.compile cannot trace an import, so it calls this while it traces.
load_torch_backend._dynamo_marked_constant = True


def torch_backend():
    """fa3.torch, imported with the first tensor: `import fa3` needs no torch."""
    load_torch_backend()
    return _backends.torch


class Gradients(NamedTuple):
    """Gradients of sum(do * out) + sum(dlse * lse). dsink is None without a sink, dgate without a
    gate."""

    dq: object
    dk: object
    dv: object
    dsink: object
    dgate: object = None


@takes_options()
def attention(
    q,
    k,
    v,
    *others,
    out=None,
    return_lse=False,
    return_max_logit=False,
    generator=None,
    bias=None,
    alibi_slopes=None,
    **options,
):
    """Exact attention: out = softmax(mask(softcap(scale * q k^T))) v, in O(sequence) memory.

    Source: FlashAttention-3 (arXiv 2407.08608), Algorithm 1. Accepts NumPy arrays (ml_dtypes for
    bfloat16), torch tensors (differentiable), and any other array with __dlpack__; the result is
    of the same kind. q, k and v are not moved or converted. Any strides, but the last dimension
    must have stride 1: a (b, h, s, d) array is passed as its transpose(0, 2, 1, 3), without a copy.
    An option of None has its default.

    Args:
        q: (b, sq, hq, d), float32, float16, bfloat16 or float8_e4m3fn; 1 <= d <= 576.
        k: (b, sk, hk, d), dtype of q; or float8_e4m3fn or float8_e5m2 under wider q (a quantized
            cache). hq % hk == 0; query head i reads key head i // (hq // hk).
        v: (b, sk, hk, dv), dtype of k; 1 <= dv <= 576.
        causal: query i sees key j iff j <= i + sk - sq (bottom-right aligned); sq and sk count the
            rows of the sequence that are in use (cu_seqlens_*, seqused_*).
        window: (left, right) in keys: i + sk - sq - left <= j <= i + sk - sq + right, both ends
            included; a side of None or -1 is unbounded. With causal, both hold.
        window_shift: moves the window by this number of keys, to later keys if > 0.
            window=(None, 0), window_shift=-1 is every earlier key without the query's own.
        attention_chunk: keys per chunk, counted from key 0; 0 is off. Query i sees only the chunk
            that holds key i + sk - sq (Llama 4).
        softcap: scores become softcap * tanh(scale * q.k / softcap); 0 is off.
        scale: factor of q.k, finite and > 0; None is d ** -0.5.
        sink: (hq,) float32: one more logit per query head. It joins the denominator and the LSE
            but has no value.
        gate: (b, sq, hq, dv), or (b, sq, hq) for one number a row; packed (total_q, hq, dv) or
            (total_q, hq); float32, float16 or bfloat16: out is multiplied by sigmoid(gate), in
            float32, rounded once. The LSE is that without a gate.
        q_descale, k_descale, v_descale: float32, for float8 tensors only: the factor that turns
            their numbers into values. (1,), (b, h), or (b, h, n) with one for every 64 rows;
            q_descale may have hk heads. None is 1. fa3.quantize makes them.
        k_mean, v_mean: (b, hk, d | dv) float32, for float8 tensors only: added after the factors.
        v_transposed: v was written by fa3.quantize(transposed=True). For a q, k and v of
            float8_e4m3fn on an H100 or H200, without lengths of keys and without caches.
        cu_seqlens_q, cu_seqlens_k: (batch + 1,) int32: the tensor is packed, (total, heads, dim),
            and sequence n owns rows cu[n] .. cu[n + 1] - 1. Lengths and tables may be int64, too:
            they are converted on their device.
        seqused_q, seqused_k: (batch,) int32: only the first seqused[n] rows of sequence n count.
        max_seqlen_q, max_seqlen_k: upper bounds of the lengths in cu_seqlens, needed only when
            those live on a GPU; 0 is unset.
        page_table: (entries, max_pages) int32: k and v are pages, (pages, page_size, hk, d | dv),
            and key j of entry e is row j % page_size of page page_table[e][j // page_size]. The
            lengths are seqused_k. No gradients through a cache.
        batch_index: (batch,) int32: sequence n reads entry batch_index[n] of the page table, or of
            k and v.
        left_padding: (batch,) int32: the first left_padding[n] keys do not count.
        num_splits: split-KV: the keys of a sequence are split into at most this number of parts,
            whose results are combined. 0 chooses the fastest, or 1 if batch_invariant.
        out: written instead of a new array: (b, sq, hq, dv), dtype of q or float32. For a q of
            float8_e4m3fn: bfloat16 (the dtype of a new array), float16 or float32. Not for torch
            tensors that need a gradient.
        return_lse: also return the LSE.
        return_max_logit: also return the largest scale * q.k of each sequence and query head, over
            visible pairs: before softcap and dropout, without the sink. It has no gradient. Not
            with bias.
        deterministic: torch only: gradients are bitwise repeatable. The forward pass always is.
        batch_invariant: the bits of a sequence's results do not depend on the other sequences of
            the batch. Gradients need deterministic, too. Costs speed on a GPU: without num_splits
            one SM reads all keys of a query tile.
        engine: "auto", or one of fa3.engines(): that engine, or an error. "auto" is the
            engine that the environment variable FA3_ENGINE names, if it takes tensors of this
            device.
        num_threads: threads of the CPU engines; 0 is one per core, but no more than
            OMP_NUM_THREADS, the CPU quota of the process's cgroups and, for torch tensors,
            torch.get_num_threads(). Never changes the result.
        dropout_p: the probability, 0 to 1, with which a weight counts as 0 after the softmax
            (Srivastava et al., 2014); the others are divided by 1 - dropout_p. The LSE is that
            without dropout. Rounded to a multiple of 2^-16. Which weights are dropped depends only
            on the seed, sequence, query head, query and key (fa3.dropout_mask); Philox-4x32-7
            (Salmon et al., SC'11) draws them. Not with FP8, page_table or batch_index.
        dropout_seed: (seed, offset), two integers, or an int64 tensor of them on q's device. None:
            drawn from the generator, of torch tensors only.
        dropout_origin: (sequence, query head, query, key): the position of this call's first
            element in a larger batch. Parts of a batch, such as the ranks of a context-parallel
            group, then drop the weights that one call over the whole drops. The query is a multiple
            of 16, the key one of 64.
        block_mask: which blocks of 128 queries and 128 keys are visible, with a bit for each pair
            of those visible in part. Causal, window and chunks hold too. A fa3.masks.BlockMask
            (fa3.masks makes one of a boolean map, ranges, a rule or a dense mask), or torch's
            BlockMask, which is read again after it, or a tensor of its mask_mod, has changed.
        generator: torch only: the torch.Generator that gives dropout's seed, on q's device; None is
            the device's own. A call with dropout draws two numbers from it, others none.
        bias: torch only: added to the scores, behind the softcap and before the mask: 16-, 32- or
            64-bit floats that broadcast to (b, hq, sq, sk), differentiable; or booleans, True where
            a query sees a key, which are a block mask if sequences have one length (kept until
            torch or NumPy writes to them; writes through .data or DLPack are not seen). b counts
            sequences, packed ones too, whose rows are the first of sq and sk. In a cache sk is all
            keys of an entry, and j counts from the first one behind left_padding. Gradients are
            summed in float32. Not together with sinks, gate, block_mask, chunks, window_shift,
            batch_invariant, sm_margin, return_max_logit, generator, an engine or an FP8 q. On a GPU
            since Ampere it becomes a part of the kernel, which is compiled at first use as of
            fa3.flex_attention; elsewhere torch operations compute it, tile by tile. Under
            torch.compile the call is a break of the graph: not with fullgraph=True.
        alibi_slopes: the same, as a formula: (hq,) or (b, hq) floats, differentiable; scores get
            -slope * abs(i + sk - sq - j).
        sm_margin: number of SMs, >= 0 and fewer than the GPU has, that the forward pass leaves free
            for concurrent work, such as communication. Kernels with two CTAs on an SM may instead
            leave twice as many SMs half free. Gradients, and the short kernels before and after the
            main one, use any SM that is free; a green context bounds these too. Changes bits where
            another number of SMs does. CPUs ignore it.

    Returns:
        out, or a tuple of it and what else is asked for: out, lse, max_logit. out (b, sq, hq, dv),
        or (total_q, hq, dv) if packed. lse (b, hq, sq) or (hq, total_q), float32, natural log of
        the sum of exp(scores). max_logit (sequences, hq), float32, -inf where no pair is seen. A
        row that sees no key has out = 0 and lse = -inf (with a sink: lse = sink).

    Raises:
        fa3.InvalidArgument: the call is wrong. Also a ValueError.
        fa3.Unsupported: no engine does this on these tensors; says why. Also a
            NotImplementedError.
        TypeError: an argument is not an array, not a number, ...
    """
    if others:
        refuse_positions("attention", 3, others)
    if bias is not None or alibi_slopes is not None:
        name = "alibi_slopes" if bias is None else "bias"
        if not is_torch(q):
            raise Unsupported(f"{name}: expected None with arrays that are no torch tensors")
        if generator is not None:
            raise Unsupported(f"generator: not together with {name}; pass dropout_seed")
        given = q, k, v, bias, alibi_slopes, out, return_lse, options, return_max_logit
        return torch_backend().attend_with_bias(*given)
    if "block_mask" in options:
        refuse_other_extents(options["block_mask"], q, k, options)
    if is_torch(q):
        in_order_options = in_order("attention", options)
        given = q, k, v, out, return_lse, in_order_options, generator, return_max_logit
        return torch_backend().attend(*given)
    if generator is not None:
        raise InvalidArgument("generator: expected None with arrays that are no torch tensors")
    require_seed(options)
    inputs = view(q, "q"), view(k, "k"), view(v, "v")  # before any array that is made like them
    if out is None:
        out = empty(_out_shape(q, v), like=q, dtype=_out_type(q))
        out_view = view(out, "out")
    else:
        out_view = output_view(out, "out")
    lse = empty(_lse_shape(q), like=q, dtype="float32") if return_lse else None
    in_order_options = in_order("attention", viewed(options))
    results = out, lse
    if return_max_logit:
        max_logit = empty(_max_logit_shape(q, options), like=q, dtype="float32")
        missing = IN_ORDER[len(in_order_options) :]  # defaults, so that max_logit is in its place
        in_order_options += [*missing, view(max_logit, "max_logit")]
        results = out, lse, max_logit
    _native.forward(lender(q), *inputs, out_view, optional_view(lse, "lse"), *in_order_options)
    found = [x for x in results if x is not None]
    return tuple(found) if len(found) > 1 else out


@takes_options(OF_BOTH_PASSES)
def attention_backward(do, q, k, v, out, lse, *, dlse=None, **options):
    """Gradients of sum(do * out) + sum(dlse * lse), for arrays without autograd.

    Args:
        do: gradient of out, with its shape and dtype.
        q, k, v, options: exactly those of the forward call, without out, return_lse,
            return_max_logit, generator, bias, alibi_slopes and caches. Dropout needs dropout_seed.
        out, lse: what attention(..., return_lse=True) returned.
        dlse: gradient of lse, with its shape, float32; None is zero.
        deterministic: bitwise repeatable gradients.

    Returns:
        Gradients(dq, dk, dv, dsink, dgate) with the shapes and dtypes of q, k, v, sink and gate,
        every element written. Rows that see no key, and rows outside of every sequence, have
        gradient 0.

    Raises what attention() raises.
    """
    require_seed(options)
    if "block_mask" in options:
        refuse_other_extents(options["block_mask"], q, k, options)
    if is_torch(q):
        backend = torch_backend()
        in_order_options = in_order("attention_backward", options, OF_BOTH_PASSES)
        return Gradients(*backend.gradients(do, q, k, v, out, lse, dlse, in_order_options))
    in_order_options = in_order("attention_backward", viewed(options), OF_BOTH_PASSES)
    sink, gate = options.get("sink"), options.get("gate")
    named = {"do": do, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    views = [view(array, name) for name, array in named.items()]
    dq, dk, dv = (empty(shape_of(named[x], x), like=named[x]) for x in ("q", "k", "v"))
    dsink = None if sink is None else empty(shape_of(sink, "sink"), like=sink)
    dgate = None if gate is None else empty(shape_of(gate, "gate"), like=gate)
    if gate is not None:
        missing = IN_ORDER[len(in_order_options) : len(BOTH_PASSES)]
        in_order_options += [*missing, view(dgate, "dgate")]
    _native.backward(
        lender(q),
        *views,
        optional_view(dlse, "dlse"),
        view(dq, "dq"),
        view(dk, "dk"),
        view(dv, "dv"),
        None if sink is None else view(dsink, "dsink"),
        *in_order_options,
    )
    return Gradients(dq, dk, dv, dsink, dgate)


def merge(o_partial, lse_partial, *, num_threads=0):
    """Combines attention over disjoint sets of keys into attention over their union.

    lse = log(sum_i exp(lse_i)), o = sum_i exp(lse_i - lse) o_i (FlashAttention-2, arXiv
    2307.08691, section 3.1). Torch tensors: differentiable.

    Args:
        o_partial: (n, b, s, h, dv) float32: attention() with `out` an array of float32.
        lse_partial: (n, b, h, s) float32, of return_lse; -inf where partial i saw no key.
        num_threads: as attention's.

    Returns:
        out (b, s, h, dv) and lse (b, h, s), float32; 0 and -inf where every lse_i is -inf.

    Raises what attention() raises.
    """
    if is_torch(o_partial):
        return torch_backend().merge(o_partial, lse_partial, num_threads)
    return _calls.merge(o_partial, lse_partial, num_threads)


def append(
    k_cache,
    v_cache,
    k,
    v,
    *,
    seqused,
    cu_seqlens_new=None,
    page_table=None,
    batch_index=None,
    rotary_cos=None,
    rotary_sin=None,
    rotary_interleaved=False,
    first_position=None,
    q=None,
    cu_seqlens_q=None,
    queries_share_position=False,
    k_descale=None,
    v_descale=None,
    num_threads=0,
):
    """Writes new rows of keys and values into a cache, in place; rotates them and the queries.

    The attention that follows is attention(q, k_cache, v_cache, seqused_k=seqused + new rows, ...)
    with the same page_table and batch_index.

    Args:
        k_cache, v_cache: (b, s, hk, d | dv), or pages (pages, page_size, hk, d | dv).
        k, v: (b, s_new, hk, d | dv), or (total, hk, d | dv) with cu_seqlens_new (b + 1,).
        seqused: (b,) int32: rows in use before; row i of k becomes row seqused[n] + i.
        page_table, batch_index: as attention's.
        rotary_cos, rotary_sin: (positions, rotary_dim / 2), k's dtype or float32: the first
            rotary_dim columns of k are turned by the row's position, first_position[n] + i.
        rotary_interleaved: pairs are columns 2 i and 2 i + 1, instead of i and i + rotary_dim / 2.
        first_position: (b,) int32; None is seqused.
        q: (b, sq, hq, d), or (total_q, hq, d) with cu_seqlens_q: turned likewise.
        queries_share_position: all queries of a sequence are at first_position, for attention
            that is neither causal nor windowed.
        k_descale, v_descale: float32 (1,) or (b, hk), for a float8 cache: k and v of 16 or 32
            bits are divided by them; pass the same to attention(). k and v in the cache's own
            float8 type are written unchanged, and take no scales here. Finite numbers saturate.

    Returns:
        The rotated q; None without q. In torch it has a gradient, for q only. Caches, k and v must
        need no gradient.

    Raises what attention() raises.
    """
    call = _calls.Append(
        k_cache,
        v_cache,
        k,
        v,
        in_int32(cu_seqlens_new),
        in_int32(seqused),
        in_int32(page_table),
        in_int32(batch_index),
        rotary_cos,
        rotary_sin,
        in_int32(first_position),
        q,
        in_int32(cu_seqlens_q),
        k_descale,
        v_descale,
        rotary_interleaved,
        queries_share_position,
        num_threads,
    )
    return torch_backend().append(call) if is_torch(k_cache) else _calls.append(call)


@takes_options()
def plan(q, k, v, *, device=None, **options):
    """The plan for `attention(q, k, v, **options)` as text: engine, tiles, workspace and why.

    Args:
        q, k, v, options: those of the call. Tensors of torch's device "meta", which have a shape
            and a type but no memory, plan calls that need more memory than there is.
        device: "cpu" or "cuda": the device that meta tensors stand for; None is torch's GPU if
            there is one, else the CPU.

    Raises what that call would raise. Computes and allocates nothing.
    """
    if device is not None and not is_meta(q):
        raise InvalidArgument("device: expected None with arrays that have memory, as q has")
    as_view = functools.partial(question_view, device=device)
    return _native.forward_plan(*question("plan", q, k, v, options, as_view))


@takes_options()
def validate(q, k, v, **options):
    """Checks the entries of the lengths and tables of `attention(q, k, v, **options)`.

    Reads cu_seqlens, seqused, page_table, batch_index and left_padding, and waits for them on a
    GPU. attention() itself checks them only in host memory, because on a GPU it never waits.

    Raises:
        fa3.InvalidArgument: an entry is wrong; the message names it. Also what attention() raises.
    """
    _native.forward_validate(*question("validate", q, k, v, options))


def question(caller, q, k, v, options, as_view=view):
    """The arguments of a forward call without outputs."""
    views = (as_view(array, name) for name, array in (("q", q), ("k", k), ("v", v)))
    return *views, None, None, *in_order(caller, viewed(options, as_view))


def engines():
    """[(name, available, detail), ...]: the engines, and why one cannot run on this machine."""
    return _native.engines()


def _out_type(q):
    """dtype of a new output; None is that of q."""
    return "bfloat16" if type_of(q) == "float8_e4m3fn" else None


def _out_shape(q, v):
    return *shape_of(q, "q")[:-1], *shape_of(v, "v")[-1:]


def _max_logit_shape(q, options):
    cu_seqlens_q = options.get("cu_seqlens_q")
    if cu_seqlens_q is not None:
        return shape_of(cu_seqlens_q, "cu_seqlens_q")[0] - 1, shape_of(q, "q")[-2]
    return shape_of(q, "q")[0], shape_of(q, "q")[-2]


def _lse_shape(q):
    """(b, h, s), or (h, total) if packed. A q of wrong rank is left to the library to refuse."""
    shape = shape_of(q, "q")
    *batch, rows, heads = shape[:-1] if len(shape) >= 3 else (0, 0)
    return *batch, heads, rows

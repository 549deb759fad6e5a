# SPDX-License-Identifier: Apache-2.0
"""Drop-in for flashinfer.mla: BatchMLAPagedAttentionWrapper and append_paged_mla_kv_cache.

A cache is two tensors, latent and rope. LSE is of base 2 unless run() is asked for the natural one,
and -inf for a query that sees no key, whose output is 0. No gradients, as in the original. What
fa3 cannot do raises fa3.Unsupported with the argument's name (docs/mla.md says where calls run).
"""

import math

import torch

import fa3
from fa3.compat._arguments import int32, rows_of_stride_1, unsupported
from fa3.compat._kvcache import renamed
from fa3.errors import InvalidArgument, Unsupported

__all__ = ["BatchMLAPagedAttentionWrapper", "append_paged_mla_kv_cache"]


def __dir__():
    return __all__


BACKENDS = "auto", "fa2", "fa3"
NO_SCALES_BESIDE = (
    "fa3 has no scales in a tensor beside a cache; write rows of 656 bytes and call "
    "fa3.mla.attention"
)


class BatchMLAPagedAttentionWrapper:
    """Attention of absorbed queries to pages of a latent cache: plan() for a batch, then run()."""

    def __init__(
        self,
        float_workspace_buffer,
        use_cuda_graph=False,
        qo_indptr=None,
        kv_indptr=None,
        kv_indices=None,
        kv_len_arr=None,
        backend="auto",
    ):
        """float_workspace_buffer says the device; fa3 does not write it. With use_cuda_graph plan()
        writes into the four buffers, which a captured run() reads: the batch size stays, and no
        later batch has a sequence with more queries."""
        if backend not in BACKENDS:
            raise Unsupported(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
        self.device = float_workspace_buffer.device
        self.buffers = None
        if use_cuda_graph:
            self.buffers = qo_indptr, kv_indptr, kv_indices, kv_len_arr
            if any(x is None for x in self.buffers):
                raise InvalidArgument(
                    "qo_indptr, kv_indptr, kv_indices, kv_len_arr: expected buffers of int32 with "
                    "use_cuda_graph"
                )
        self.page_table = None
        self.page_size = None
        self.planned = None

    def plan(
        self,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_len_arr,
        num_heads,
        head_dim_ckv,
        head_dim_kpe,
        page_size,
        causal,
        sm_scale,
        q_data_type,
        kv_data_type,
        use_profiler=False,
    ):
        """Says where the keys of a batch lie. Waits for the lengths, as the original does.

        Args:
            qo_indptr: int32 (b + 1,): sequence n has the queries from qo_indptr[n] on.
            kv_indptr, kv_indices: int32 (b + 1,) and (pages,): sequence n has the pages
                kv_indices[kv_indptr[n]] and so on, in order.
            kv_len_arr: int32 (b,): keys of each sequence.
            page_size: that of the caches of run().
            num_heads, head_dim_ckv, head_dim_kpe, q_data_type, kv_data_type: accepted; the tensors
                of run() decide.
            causal: bottom right.
            sm_scale: of the scores.
        """
        unsupported(use_profiler=(use_profiler, False, "fa3 has no profiler within kernels"))
        given = [int32(x) for x in (qo_indptr, kv_indptr, kv_indices, kv_len_arr)]
        sequences = given[3].numel()
        is_replanned = self.buffers is not None and self.page_table is not None
        if is_replanned and sequences != self.page_table.shape[0]:
            raise InvalidArgument(
                f"kv_len_arr: expected {self.page_table.shape[0]} sequences, as in the first "
                f"plan() with use_cuda_graph, got {sequences}"
            )
        longest = int(given[0].diff().max()) if given[0].numel() > 1 else 0
        if is_replanned:
            most = self.planned["max_seqlen_q"]  # a captured run() has it
            if longest > most:
                raise InvalidArgument(
                    f"qo_indptr: expected at most {most} queries in a sequence, as in the first "
                    f"plan() with use_cuda_graph, got {longest}"
                )
            longest = most
        most_pages = int(given[1].diff().max()) if given[1].numel() > 1 else 0
        if self.buffers is None:
            given = [x.to(self.device, copy=True) for x in given]
        else:
            given = [written(*x) for x in zip(self.buffers, given, strict=True)]
            most_pages = self.buffers[2].numel()
        cu_seqlens_q, kv_indptr, kv_indices, lengths = given
        table = page_table(kv_indptr, kv_indices, max(most_pages, 1))
        if self.page_table is None or self.buffers is None:
            self.page_table = table
        else:
            self.page_table.copy_(table)
        self.page_size = page_size
        self.planned = {
            "cu_seqlens_q": cu_seqlens_q,
            "max_seqlen_q": longest,
            "seqused_k": lengths,
            "page_table": self.page_table,
            "causal": causal,
            "scale": sm_scale,
        }

    @torch.no_grad()
    def run(
        self,
        q_nope,
        q_pe,
        ckv_cache,
        kpe_cache,
        out=None,
        lse=None,
        return_lse=False,
        profiler_buffer=None,
        kv_len=None,
        page_table=None,
        return_lse_base_on_e=False,
        o_scale=None,
        *,
        ckv_scale=None,
        ckv_scale_arr=None,
        kpe_scale=None,
    ):
        """Attention of the planned batch.

        Args:
            q_nope, q_pe: (total_q, h, 512) and (total_q, h, 64), or (total_q, h, 0).
            ckv_cache, kpe_cache: (pages, page_size, 512) and (pages, page_size, 64 or 0) in q's
                type, or e4m3 with ckv_scale and kpe_scale.
            out, lse: written instead of new tensors: q_nope's shape, and (total_q, h) float32.
            return_lse_base_on_e: whether the LSE is natural; else of base 2.
            ckv_scale, kpe_scale: floats: e4m3 numbers are multiplied by them.

        Returns:
            out, or (out, lse) with return_lse.
        """
        scheduled = "an argument of the original's cutlass backend; plan() takes lengths and pages"
        unsupported(
            profiler_buffer=(profiler_buffer, None, "fa3 has no profiler within kernels"),
            kv_len=(kv_len, None, scheduled),
            page_table=(page_table, None, scheduled),
            o_scale=(o_scale, None, "fa3 writes no float8 outputs"),
            ckv_scale_arr=(ckv_scale_arr, None, NO_SCALES_BESIDE),
        )
        if self.planned is None:
            raise InvalidArgument("plan: expected a call before run(), got none")
        if ckv_cache.shape[1] != self.page_size:
            raise InvalidArgument(
                f"ckv_cache: expected pages of {self.page_size} rows, the page_size of plan(), got "
                f"{ckv_cache.shape[1]}"
            )
        has_rope = have_rope(q_pe=q_pe, kpe_cache=kpe_cache)
        q = (rows_of_stride_1(q_nope), rows_of_stride_1(q_pe)) if has_rope else q_nope
        if lse is not None and (lse.shape, lse.dtype) != (q_nope.shape[:2], torch.float32):
            raise InvalidArgument(
                f"lse: expected float32 of shape {tuple(q_nope.shape[:2])}, got {lse.dtype} of "
                f"shape {tuple(lse.shape)}"
            )
        e4m3 = ckv_cache.dtype == torch.float8_e4m3fn
        descale = descale_of(q_nope, ckv_scale, kpe_scale, has_rope) if e4m3 else None
        if not e4m3:
            why = f"numbers of {ckv_cache.dtype} have no scales"
            unsupported(
                ckv_scale=(ckv_scale, None if ckv_scale != 1 else ckv_scale, why),
                kpe_scale=(kpe_scale, None if kpe_scale != 1 else kpe_scale, why),
            )
        with renamed({"seqused_k": "kv_len_arr", "page_table": "kv_indices"}):
            result, natural = fa3.mla.attention(
                q,
                ckv_cache,
                rope=kpe_cache if has_rope else None,
                rows="tensor" if e4m3 else "latent",
                descale=descale,
                out=out,
                return_lse=True,
                **self.planned,
            )
        if not return_lse and lse is None:
            return result
        new = natural.T if return_lse_base_on_e else natural.T * math.log2(math.e)
        lse = new.contiguous() if lse is None else lse.copy_(new)
        return (result, lse) if return_lse else result


def have_rope(**tensors):
    """Whether both tensors have rope channels; refuses one alone."""
    wide = {name: 0 if x is None else x.shape[-1] for name, x in tensors.items()}
    if all(wide.values()) != any(wide.values()):
        given = " and ".join(map(str, wide.values()))
        raise InvalidArgument(
            f"{', '.join(wide)}: expected rope channels in both or in none, got {given}"
        )
    return all(wide.values())


def written(buffer, numbers):
    """The part of a buffer that the numbers fill."""
    if numbers.numel() > buffer.numel():
        raise InvalidArgument(
            f"plan: expected at most the {buffer.numel()} numbers of a buffer of the wrapper, got "
            f"{numbers.numel()}"
        )
    return buffer[: numbers.numel()].copy_(numbers)


def page_table(kv_indptr, kv_indices, most_pages):
    """(b, most_pages); -1 behind a sequence's pages."""
    first = kv_indptr[:-1, None]
    if kv_indices.numel() == 0:
        return first.new_full((first.shape[0], most_pages), -1)
    places = first + torch.arange(most_pages, dtype=first.dtype, device=first.device)
    pages = kv_indices[places.clamp(max=kv_indices.numel() - 1).long()]
    return pages.where(places < kv_indptr[1:, None], -1)


def descale_of(q, ckv_scale, kpe_scale, has_rope):
    """Filled on the device: a call may be captured into a graph."""
    given = {"ckv_scale": ckv_scale, **({"kpe_scale": kpe_scale} if has_rope else {})}
    scales = q.new_empty(len(given), dtype=torch.float32)
    for i, (name, scale) in enumerate(given.items()):
        if scale is None or not 0 < scale < math.inf:
            raise InvalidArgument(f"{name}: expected a finite number > 0 for e4m3, got {scale!r}")
        scales[i].fill_(scale)
    return scales


@torch.no_grad()
def append_paged_mla_kv_cache(
    append_ckv,
    append_kpe,
    batch_indices,
    positions,
    ckv_cache,
    kpe_cache,
    kv_indices,
    kv_indptr,
    kv_last_page_len,
):
    """Writes rows into pages, in place: row i to place positions[i] of sequence batch_indices[i].

    append_ckv (n, 512), append_kpe (n, 64 or 0); kv_last_page_len is not used. A row that has no
    place in the pages of a sequence is not written.
    """
    page_size = ckv_cache.shape[1]
    sequence, positions = batch_indices.long(), positions.long()
    is_sequence = (sequence >= 0) & (sequence < kv_indptr.shape[0] - 1)
    sequence = sequence.where(is_sequence, 0)
    place = kv_indptr[sequence] + positions // page_size
    has_place = is_sequence & (positions >= 0) & (place < kv_indptr[sequence + 1])
    page = kv_indices[place.where(has_place, 0).long()].where(has_place, -1)
    has_rope = have_rope(append_kpe=append_kpe, kpe_cache=kpe_cache)
    fa3.mla.append(
        ckv_cache,
        append_ckv,
        append_kpe if has_rope else None,
        rope=kpe_cache if has_rope else None,
        rows="latent",
        slots=page.long() * page_size + positions % page_size,
    )

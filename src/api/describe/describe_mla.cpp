// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_mla.h"

#include <algorithm>
#include <cmath>

#include "api/describe/describe_cache.h"
#include "api/describe/describe_latent_cache.h"
#include "api/describe/describe_lengths.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/overlap.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

constexpr int64_t kMaxHeads = 128;

// Names of the arguments of one of the two sets of selected keys.
struct Selection {
  const char* cache_name;
  const fa3_mla_cache& cache;
  Named indices, count;
};

Status describe_selection(const Selection& of, const fa3_tensor& q, Purpose purpose,
                          SelectedKeys* keys) {
  const fa3_tensor& indices = of.indices.tensor;
  const int rank = q.rank - 1;
  FA3_TRY(check_form(of.indices, rank, rank == 3 ? "(batch, seq, k)" : "(total_q, k)"));
  FA3_TRY(check_dtype(of.indices, {DType::int32}));
  FA3_TRY(check_last_stride(of.indices));
  for (int dim = 0; dim < rank - 1; ++dim) {
    FA3_TRY(check_extent(of.indices, dim, q.shape[dim], "the extent of q"));
  }
  FA3_TRY(check_same_device(of.indices, {"q", q}));
  if (purpose == Purpose::call) FA3_TRY(check_data(of.indices));
  keys->indices = static_cast<const int32_t*>(indices.data);
  keys->num_indices = indices.shape[rank - 1];
  keys->batch_stride = stride_of(indices, rank - 3);
  keys->row_stride = stride_of(indices, rank - 2);
  int64_t rows = 0;
  if (__builtin_mul_overflow(keys->cache.pages, keys->cache.page_size, &rows) || rows > INT32_MAX) {
    return invalid(of.cache_name, ": expected fewer than 2^31 rows with ", of.indices.name,
                   ", which are int32, got ", keys->cache.pages, " pages of ",
                   keys->cache.page_size);
  }
  if (!present(of.count.tensor)) return {};
  const fa3_tensor& count = of.count.tensor;
  const bool of_rows = rank == 2 || count.rank == 2;
  FA3_TRY(check_form(of.count, of_rows ? rank - 1 : 1,
                     rank == 2 ? "(total_q)" : "(batch) or (batch, seq)"));
  FA3_TRY(check_dtype(of.count, {DType::int32}));
  for (int dim = 0; dim < count.rank; ++dim) {
    FA3_TRY(check_extent(of.count, dim, q.shape[dim], "the extent of q"));
  }
  FA3_TRY(check_same_device(of.count, {"q", q}));
  if (purpose == Purpose::call) FA3_TRY(check_data(of.count));
  keys->count = static_cast<const int32_t*>(count.data);
  keys->count_batch_stride = rank == 3 ? stride_of(count, 0) : 0;
  keys->count_row_stride = of_rows ? stride_of(count, count.rank - 1) : 0;
  return {};
}

Status describe_sparse(const fa3_mla_forward_params& p, Purpose purpose, MlaProblem* problem) {
  for (const Named& of_dense :
       {Named{"seqused_k", p.seqused_k}, {"cu_seqlens_q", p.cu_seqlens_q}}) {
    FA3_TRY(check_none(of_dense, "with indices, which say what each query sees"));
  }
  if (p.causal != 0) {
    return invalid("causal: expected 0 with indices, which say what a query sees, got ", p.causal);
  }
  FA3_TRY(
      describe_selection({"cache", p.cache, {"indices", p.indices}, {"index_count", p.index_count}},
                         p.q, purpose, &problem->keys));
  if (!problem->has_extra) return {};
  if (!present(p.extra_indices)) {
    return invalid("extra_indices: expected with extra_cache, got none");
  }
  return describe_selection({"extra_cache",
                             p.extra_cache,
                             {"extra_indices", p.extra_indices},
                             {"extra_index_count", p.extra_index_count}},
                            p.q, purpose, &problem->extra);
}

Status describe_dense(const fa3_mla_forward_params& p, Purpose purpose, MlaProblem* problem) {
  FA3_TRY(check_none({"index_count", p.index_count}, "without indices"));
  FA3_TRY(check_none({"extra_cache", p.extra_cache.rows}, "without indices"));
  if (!present(p.seqused_k)) return invalid("seqused_k: expected with page_table, got none");
  const LatentCache& cache = problem->keys.cache;
  const fa3_tensor pages{.rank = 4, .shape = {cache.pages, cache.page_size, 1, 1}};
  const CacheArguments arguments{{"page_table", p.page_table}, kAbsent, kAbsent, kAbsent};
  int64_t rows = 0;
  FA3_TRY(describe_places(arguments, pages, p.q, problem->batch, purpose, &problem->places, &rows));
  const LengthArguments lengths{kAbsent, {"seqused_k", p.seqused_k}, 0, ""};
  FA3_TRY(describe_lengths(lengths, rows, p.q, problem->batch, purpose, &problem->lengths_k));
  return check_places(arguments, problem->batch, problem->places,
                      [&](int64_t b) { return problem->lengths_k.rows_of(b); });
}

// d, and where the rope channels of queries are.
Status describe_queries(const fa3_mla_forward_params& p, Purpose purpose, MlaProblem* problem) {
  const bool packed = p.q.rank == 3;
  const Named q{"q", p.q}, q_rope{"q_rope", p.q_rope};
  FA3_TRY(check_form(q, packed ? 3 : 4, "(batch, seq, heads, dim)"));
  FA3_TRY(check_last_stride(q));
  FA3_TRY(check_float(q));
  if (purpose == Purpose::call) FA3_TRY(check_data(q));
  problem->dtype = static_cast<DType>(p.q.dtype);
  problem->heads = p.q.shape[p.q.rank - 2];
  problem->head_dim = p.q.shape[p.q.rank - 1];
  problem->q = operand(p.q);
  if (problem->heads < 1 || problem->heads > kMaxHeads) {
    return invalid("q: expected 1 to ", kMaxHeads, " heads over one latent head, got ",
                   problem->heads);
  }
  if (!present(p.q_rope)) return {};
  FA3_TRY(check_like(q_rope, p.q, kRopeDim, packed, purpose));
  FA3_TRY(check_same_dtype(q_rope, q));
  FA3_TRY(check_same_device(q_rope, q));
  problem->q_rope = operand(p.q_rope);
  problem->q_rope_dim = kRopeDim;
  problem->head_dim += kRopeDim;
  return {};
}

// Rows have the channels of queries; those without rope leave that of GROUP128 rows alone.
Status fit_rows(const char* name, const MlaProblem& problem, LatentCache* cache) {
  if (problem.head_dim == cache->channels()) return {};
  if (problem.head_dim == kLatentValueDim && cache->latent.channels == kLatentValueDim) {
    cache->rope.channels = 0;
    return {};
  }
  return invalid("q: expected head dim ", cache->channels(), ", that of the rows of ", name,
                 ", got ", problem.head_dim);
}

Status describe_results(const fa3_mla_forward_params& p, Purpose purpose, MlaProblem* problem) {
  const bool packed = p.q.rank == 3;
  const Named q{"q", p.q}, o{"o", p.o}, lse{"lse", p.lse}, max{"max", p.max};
  FA3_TRY(check_like(o, p.q, kLatentValueDim, packed, purpose));
  FA3_TRY(check_output_dtype(o, q));
  FA3_TRY(check_same_device(o, q));
  problem->o = operand(p.o);
  if (present(p.lse)) {
    FA3_TRY(check_row_scalars(lse, p.q, packed, purpose));
    problem->lse = row_scalars(p.lse);
  }
  if (present(p.max)) {
    FA3_TRY(check_row_scalars(max, p.q, packed, purpose));
    problem->max = row_scalars(p.max);
  }
  if (present(p.sink)) {
    FA3_TRY(check_head_vector({"sink", p.sink}, p.q, purpose));
    problem->sink = static_cast<const float*>(p.sink.data);
  }
  FA3_TRY(check_flag("lse_with_sink", p.lse_with_sink));
  FA3_TRY(check_flag("empty_lse", p.empty_lse));
  problem->lse_with_sink = p.lse_with_sink != 0;
  problem->empty_lse = p.empty_lse != 0 ? INFINITY : -INFINITY;
  return {};
}

Status check_options(const fa3_mla_forward_params& p) {
  if (p.scale != FA3_SCALE_AUTO && !(p.scale > 0 && std::isfinite(p.scale))) {
    return invalid("scale: expected a finite number > 0 or FA3_SCALE_AUTO, got ", p.scale);
  }
  FA3_TRY(check_flag("causal", p.causal));
  FA3_TRY(check_flag("batch_invariant", p.batch_invariant));
  if (p.num_splits >= 0 && p.num_splits <= kMaxSplits) return {};
  return invalid("num_splits: expected 0 (the library chooses) to ", kMaxSplits, ", got ",
                 p.num_splits);
}

}  // namespace

Status describe(const fa3_mla_forward_params& p, Purpose purpose, MlaProblem* problem) {
  FA3_TRY(describe_queries(p, purpose, problem));
  FA3_TRY(check_options(p));
  problem->sparse = present(p.indices);
  problem->has_extra = present(p.extra_cache.rows);
  if (problem->sparse == present(p.page_table)) {
    return invalid("indices, page_table: expected one of them, got ",
                   problem->sparse ? "both" : "none");
  }
  int32_t format = 0;
  FA3_TRY(describe_latent_cache({"cache", "rope", "descale"}, p.cache, purpose,
                                &problem->keys.cache, &format));
  FA3_TRY(fit_rows("cache", *problem, &problem->keys.cache));
  FA3_TRY(check_same_device({"cache", p.cache.rows}, {"q", p.q}));
  if (problem->has_extra) {
    FA3_TRY(describe_latent_cache({"extra_cache", "extra_rope", "extra_descale"}, p.extra_cache,
                                  purpose, &problem->extra.cache, &format));
    FA3_TRY(fit_rows("extra_cache", *problem, &problem->extra.cache));
    FA3_TRY(check_same_device({"extra_cache", p.extra_cache.rows}, {"q", p.q}));
  } else {
    for (const Named& of_extra : {Named{"extra_rope", p.extra_cache.rope},
                                  {"extra_descale", p.extra_cache.descale},
                                  {"extra_indices", p.extra_indices},
                                  {"extra_index_count", p.extra_index_count}}) {
      FA3_TRY(check_none(of_extra, "without extra_cache"));
    }
  }
  const bool packed = present(p.cu_seqlens_q);
  if (!problem->sparse && packed != (p.q.rank == 3)) {
    return invalid("cu_seqlens_q: expected with a q of rank 3, and only then, got a q of rank ",
                   p.q.rank);
  }
  problem->batch = packed          ? std::max<int64_t>(p.cu_seqlens_q.shape[0], 1) - 1
                   : p.q.rank == 4 ? p.q.shape[0]
                                   : 1;
  const LengthArguments lengths{
      {"cu_seqlens_q", p.cu_seqlens_q}, kAbsent, p.max_seqlen_q, "max_seqlen_q"};
  if (!problem->sparse) {
    FA3_TRY(describe_lengths(lengths, p.q.shape[p.q.rank - 3], p.q, problem->batch, purpose,
                             &problem->lengths_q));
    FA3_TRY(describe_dense(p, purpose, problem));
  } else {
    FA3_TRY(describe_sparse(p, purpose, problem));
    problem->lengths_q.max = p.q.shape[p.q.rank - 3];
    problem->lengths_k.max = problem->keys.num_indices + problem->extra.num_indices;
    if (__builtin_mul_overflow(problem->batch, problem->lengths_q.max, &problem->lengths_q.total)) {
      return invalid("q: batch times seq overflows 64 bits");
    }
  }
  FA3_TRY(describe_results(p, purpose, problem));
  problem->scale = p.scale != FA3_SCALE_AUTO
                       ? p.scale
                       : static_cast<float>(1 / std::sqrt(static_cast<double>(problem->head_dim)));
  problem->causal = p.causal != 0;
  problem->num_splits = p.num_splits;
  problem->batch_invariant = p.batch_invariant != 0;
  FA3_TRY(resolve_threads(p.num_threads, p.q.device_type, &problem->num_threads));
  FA3_TRY(resolve_engine(p.engine, &problem->engine));
  problem->device = static_cast<fa3_device_type>(p.q.device_type);
  problem->device_index = p.q.device_index;
  return purpose == Purpose::call ? check_outputs(tensors_of(p)) : Status{};
}

Status check_workspace(const fa3_mla_forward_params& p, const Memory& workspace) {
  return check_apart(workspace, tensors_of(p));
}

}  // namespace fa3::api

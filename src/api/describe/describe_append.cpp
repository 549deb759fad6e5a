// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_append.h"

#include <algorithm>

#include "api/describe/describe_cache.h"
#include "api/describe/describe_lengths.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/overlap.h"
#include "api/describe/rules/quantization_rules.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

constexpr Purpose kCall = Purpose::call;

// Rows that come later find the scales as they are: none for blocks of rows. Those that come as
// e4m3 have been divided by them.
Status describe_divisor(Named cache, Named descale, const AppendProblem& problem,
                        Descales<const float>* result) {
  if (present(descale.tensor) && is_float8(problem.dtype)) {
    return invalid(descale.name, ": expected none, as k and v are ", name_of(problem.dtype),
                   " already: they enter the cache as they are");
  }
  if (descale.tensor.rank > 2) {
    return invalid(descale.name,
                   ": expected one scale, or one for each sequence and head (rank 2), "
                   "got rank ",
                   descale.tensor.rank);
  }
  const QuantizedShape shape{.batch = problem.batch,
                             .heads = problem.heads_k,
                             .rows = 0,
                             .dim = 0,
                             .tensor = cache.tensor};
  Quantization quantization;
  FA3_TRY(
      describe_quantization({cache, descale, kAbsent}, shape, {.total = 1}, kCall, &quantization));
  *result = quantization.descale;
  return {};
}

// Queries are there to be rotated, and only for that.
Status describe_queries(const fa3_append_params& p, AppendProblem* problem) {
  const Named q{"q", p.q}, rotated{"q_rotated", p.q_rotated};
  FA3_TRY(check_flag("queries_share_position", p.queries_share_position));
  if (present(p.q) != present(p.q_rotated)) {
    return invalid("q, q_rotated: expected both or neither");
  }
  if (!present(p.q)) return {};
  if (!present(p.rotary_cos)) return invalid("q: expected none, since rotary_cos is not given");
  const bool packed = present(p.cu_seqlens_q);
  FA3_TRY(check_operand(q, packed, kCall));
  FA3_TRY(check_like(rotated, p.q, problem->head_dim, packed, kCall));
  FA3_TRY(check_extent(q, p.q.rank - 1, problem->head_dim, "the head dim of k_cache"));
  if (!packed) FA3_TRY(check_extent(q, 0, problem->batch, "batch"));
  for (const Named& same : {q, rotated}) {
    FA3_TRY(check_same_dtype(same, {"k", p.k}));
    FA3_TRY(check_same_device(same, {"k_cache", p.k_cache}));
  }
  const LengthArguments lengths{{"cu_seqlens_q", p.cu_seqlens_q}, kAbsent, 0, ""};
  FA3_TRY(describe_lengths(lengths, p.q.shape[p.q.rank - 3], p.k_cache, problem->batch, kCall,
                           &problem->lengths_q));
  problem->rotates_queries = true;
  problem->queries_share_position = p.queries_share_position != 0;
  problem->heads_q = p.q.shape[p.q.rank - 2];
  problem->q = operand(p.q);
  problem->q_rotated = operand(p.q_rotated);
  return {};
}

// A position beyond the tables is their nearest, so there is one. In device memory nobody looks at
// the positions themselves.
Status check_positions(const AppendProblem& problem) {
  const int64_t queries = problem.rotates_queries ? problem.lengths_q.total : 0;
  const bool rotates = problem.rotary.pairs > 0 && problem.lengths_new.total + queries > 0;
  if (!rotates || problem.rotary.positions > 0) return {};
  return invalid("rotary_cos: expected a row for each position, got none");
}

// What is appended fits behind what is in use, and every position has a row in the tables.
Status check_room(const AppendProblem& problem) {
  const int64_t room = problem.room, positions = problem.rotary.positions;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t used = problem.seqused[b];
    const int64_t added = problem.lengths_new.rows_of(b).used;
    if (used < 0 || used > room - added) {
      return invalid("seqused: expected a length in [0, ", room - added, "] for sequence ", b,
                     ", so that its ", added, " new rows fit into the ", room,
                     " of the cache, got ", used);
    }
    if (problem.rotary.pairs == 0) continue;
    const int64_t queries = !problem.rotates_queries         ? 0
                            : problem.queries_share_position ? 1
                                                             : problem.lengths_q.rows_of(b).used;
    const int64_t first = problem.first_position[b];
    const int64_t rows = std::max(added, queries);
    if (rows == 0) continue;
    if (first < 0 || first > positions - rows) {
      return invalid("rotary_cos: expected a row for each of the positions ", first, " to ",
                     first + rows - 1, " of sequence ", b, ", got ", positions, " rows");
    }
  }
  return {};
}

}  // namespace

Status describe(const fa3_append_params& p, AppendProblem* problem) {
  const Named k_cache{"k_cache", p.k_cache}, v_cache{"v_cache", p.v_cache};
  const Named k{"k", p.k}, v{"v", p.v};
  const CacheArguments cache{
      {"page_table", p.page_table}, {"batch_index", p.batch_index}, kAbsent, kAbsent};
  const bool packed = present(p.cu_seqlens_new);
  FA3_TRY(check_operand(k_cache, false, kCall));
  FA3_TRY(check_dtype(k_cache, {DType::float32, DType::float16, DType::bfloat16, DType::float8_e4m3,
                                DType::float8_e5m2}));
  problem->cache_dtype = static_cast<DType>(p.k_cache.dtype);
  problem->head_dim = p.k_cache.shape[3];
  problem->head_dim_v = p.v_cache.rank > 0 ? p.v_cache.shape[p.v_cache.rank - 1] : 0;
  problem->heads_k = p.k_cache.shape[2];
  FA3_TRY(check_head_dim("k_cache", problem->head_dim));
  FA3_TRY(check_like(v_cache, p.k_cache, problem->head_dim_v, false, kCall));
  FA3_TRY(check_head_dim("v_cache", problem->head_dim_v));
  FA3_TRY(check_operand(k, packed, kCall));
  const bool batch_of_cache = !cache.has_entries_of_its_own();
  problem->batch = packed           ? std::max<int64_t>(p.cu_seqlens_new.shape[0], 1) - 1
                   : batch_of_cache ? p.k_cache.shape[0]
                                    : p.k.shape[0];
  if (batch_of_cache) FA3_TRY(check_extent(k_cache, 0, problem->batch, "batch"));
  if (!packed) FA3_TRY(check_extent(k, 0, problem->batch, "batch"));
  FA3_TRY(check_extent(k, p.k.rank - 2, problem->heads_k, "the heads of k_cache"));
  FA3_TRY(check_extent(k, p.k.rank - 1, problem->head_dim, "the head dim of k_cache"));
  FA3_TRY(check_like(v, p.k, problem->head_dim_v, packed, kCall));
  FA3_TRY(check_same_dtype(v_cache, k_cache));
  if (is_float8(problem->cache_dtype)) {
    FA3_TRY(
        check_dtype(k, {DType::float32, DType::float16, DType::bfloat16, problem->cache_dtype}));
  } else {
    FA3_TRY(check_same_dtype(k, k_cache));
  }
  FA3_TRY(check_same_dtype(v, k));
  problem->dtype = static_cast<DType>(p.k.dtype);
  for (const Named& same : {v_cache, k, v}) FA3_TRY(check_same_device(same, k_cache));
  FA3_TRY(describe_divisor(k_cache, {"k_descale", p.k_descale}, *problem, &problem->k_descale));
  FA3_TRY(describe_divisor(v_cache, {"v_descale", p.v_descale}, *problem, &problem->v_descale));
  FA3_TRY(describe_places(cache, p.k_cache, p.k_cache, problem->batch, kCall, &problem->places,
                          &problem->room));
  const LengthArguments lengths{{"cu_seqlens_new", p.cu_seqlens_new}, kAbsent, 0, ""};
  FA3_TRY(describe_lengths(lengths, p.k.shape[p.k.rank - 3], p.k_cache, problem->batch, kCall,
                           &problem->lengths_new));
  FA3_TRY(check_length_array({"seqused", p.seqused}, problem->batch, p.k_cache, kCall));
  problem->seqused = static_cast<const int32_t*>(p.seqused.data);
  problem->first_position = problem->seqused;
  if (present(p.first_position)) {
    FA3_TRY(
        check_length_array({"first_position", p.first_position}, problem->batch, p.k_cache, kCall));
    problem->first_position = static_cast<const int32_t*>(p.first_position.data);
  }
  FA3_TRY(describe_rotary(
      {{"rotary_cos", p.rotary_cos}, {"rotary_sin", p.rotary_sin}, p.rotary_interleaved}, k,
      problem->head_dim, &problem->rotary));
  FA3_TRY(describe_queries(p, problem));
  FA3_TRY(check_positions(*problem));
  if (p.k_cache.device_type == FA3_CPU) {
    FA3_TRY(check_room(*problem));
    FA3_TRY(check_places(cache, problem->batch, problem->places, [&](int64_t b) {
      return Rows{problem->seqused[b], problem->lengths_new.rows_of(b).used, 0};
    }));
  }
  FA3_TRY(check_outputs(tensors_of(p)));
  const Named q{"q", p.q}, rotated{"q_rotated", p.q_rotated};
  const bool in_place = problem->rotates_queries && p.q.data == p.q_rotated.data &&
                        std::equal(p.q.stride, p.q.stride + p.q.rank, p.q_rotated.stride);
  for (const Named& output : {k_cache, v_cache}) FA3_TRY(check_no_overlap(output, q));
  if (!in_place) FA3_TRY(check_no_overlap(rotated, q));
  problem->k_cache = operand(p.k_cache);
  problem->v_cache = operand(p.v_cache);
  problem->k = operand(p.k);
  problem->v = operand(p.v);
  problem->device = static_cast<fa3_device_type>(p.k_cache.device_type);
  problem->device_index = p.k_cache.device_index;
  return resolve_threads(p.num_threads, problem->device, &problem->num_threads);
}

}  // namespace fa3::api

// SPDX-License-Identifier: Apache-2.0
// Calls that write rows of a latent cache, or read them.

#include "api/describe/describe_latent_cache.h"
#include "api/describe/describe_lengths.h"
#include "api/describe/describe_mla.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/overlap.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

// Which row of the tables each new token takes.
Status describe_positions(const fa3_mla_append_params& p, MlaAppendProblem* problem) {
  if (problem->rotary.pairs == 0) {
    FA3_TRY(check_none({"positions", p.positions}, "without rotary_cos"));
    return check_none({"q_pe", p.q_pe}, "without rotary_cos");
  }
  FA3_TRY(check_numbers({"positions", p.positions}, problem->rows, p.cache.rows, Purpose::call));
  problem->positions = static_cast<const int32_t*>(p.positions.data);
  const int64_t positions = problem->rotary.positions;
  for (int64_t i = 0; readable(p.positions) && i < problem->rows; ++i) {
    if (problem->positions[i] < 0 || problem->positions[i] >= positions) {
      return invalid("positions: expected a row of rotary_cos in [0, ", positions, "), got ",
                     problem->positions[i], " at entry ", i);
    }
  }
  return {};
}

Status describe_rotated_queries(const fa3_mla_append_params& p, MlaAppendProblem* problem) {
  const Named q{"q_pe", p.q_pe}, rotated{"q_pe_rotated", p.q_pe_rotated};
  if (present(p.q_pe) != present(p.q_pe_rotated)) {
    return invalid("q_pe, q_pe_rotated: expected both or neither");
  }
  if (!present(p.q_pe)) return {};
  for (const Named& queries : {q, rotated}) {
    FA3_TRY(check_operand(queries, true, Purpose::call));
    FA3_TRY(check_same_dtype(queries, {"c_kv", p.c_kv}));
    FA3_TRY(check_same_device(queries, {"cache", p.cache.rows}));
    FA3_TRY(check_extent(queries, 0, problem->rows, "rows"));
    FA3_TRY(check_extent(queries, 1, p.q_pe.shape[1], "heads"));
    FA3_TRY(check_extent(queries, 2, kRopeDim, "rope channels"));
  }
  problem->heads = p.q_pe.shape[1];
  problem->q_pe = operand(p.q_pe);
  problem->q_pe_rotated = operand(p.q_pe_rotated);
  return {};
}

// New rows of one part: (n, channels).
Status check_new_rows(Named rows, int64_t channels, const fa3_mla_append_params& p) {
  FA3_TRY(check_form(rows, 2, "(rows, channels)"));
  FA3_TRY(check_last_stride(rows));
  FA3_TRY(check_float(rows));
  FA3_TRY(check_extent(rows, 0, p.c_kv.shape[0], "rows"));
  FA3_TRY(check_extent(rows, 1, channels, "channels"));
  FA3_TRY(check_same_dtype(rows, {"c_kv", p.c_kv}));
  FA3_TRY(check_same_device(rows, {"cache", p.cache.rows}));
  return check_data(rows);
}

Status check_scaling(int32_t scaling, int32_t format) {
  if (scaling < FA3_MLA_SCALING_POW2 || scaling > FA3_MLA_SCALING_POW2_SMALL) {
    return invalid("scaling: expected a value of fa3_mla_scaling, got ", scaling);
  }
  const bool is_v4 = format == FA3_MLA_ROWS_V4;
  if (is_v4 && scaling == FA3_MLA_SCALING_EXACT) {
    return invalid("scaling: expected powers of two for v4 rows, whose scales are exponents");
  }
  if (!is_v4 && scaling == FA3_MLA_SCALING_POW2_SMALL) {
    return invalid("smallest: expected flash_mla for other rows than v4, got vllm");
  }
  return {};
}

}  // namespace

Status describe(const fa3_mla_append_params& p, MlaAppendProblem* problem) {
  constexpr Purpose kCall = Purpose::call;
  int32_t format = 0;
  FA3_TRY(describe_latent_cache({"cache", "rope", "descale"}, p.cache, kCall, &problem->cache,
                                &format));
  FA3_TRY(check_form({"c_kv", p.c_kv}, 2, "(rows, channels)"));
  FA3_TRY(check_new_rows({"c_kv", p.c_kv}, problem->cache.latent.channels, p));
  problem->rows = p.c_kv.shape[0];
  problem->dtype = static_cast<DType>(p.c_kv.dtype);
  problem->c_kv = p.c_kv.data;
  problem->c_kv_stride = stride_of(p.c_kv, 0);
  if (present(p.k_pe)) {
    if (problem->cache.rope.channels == 0) {
      return invalid("k_pe: expected none, as rows of the cache have no rope channels, got one");
    }
    FA3_TRY(check_new_rows({"k_pe", p.k_pe}, kRopeDim, p));
    problem->k_pe = p.k_pe.data;
    problem->k_pe_stride = stride_of(p.k_pe, 0);
  }
  FA3_TRY(check_numbers({"slots", p.slots}, problem->rows, p.cache.rows, kCall));
  problem->slots = static_cast<const int32_t*>(p.slots.data);
  FA3_TRY(describe_rotary(
      {{"rotary_cos", p.rotary_cos}, {"rotary_sin", p.rotary_sin}, p.rotary_interleaved},
      {"c_kv", p.c_kv}, kRopeDim, &problem->rotary));
  FA3_TRY(describe_positions(p, problem));
  FA3_TRY(describe_rotated_queries(p, problem));
  FA3_TRY(check_scaling(p.scaling, format));
  problem->scaling = static_cast<fa3_mla_scaling>(p.scaling);
  FA3_TRY(check_outputs(tensors_of(p)));
  const Named rotated{"q_pe_rotated", p.q_pe_rotated}, q{"q_pe", p.q_pe};
  for (const Named& output : {Named{"cache", p.cache.rows}, Named{"rope", p.cache.rope}}) {
    FA3_TRY(check_no_overlap(output, q));
  }
  if (!is_same_view(p.q_pe, p.q_pe_rotated)) FA3_TRY(check_no_overlap(rotated, q));
  problem->device = static_cast<fa3_device_type>(p.cache.rows.device_type);
  problem->device_index = p.cache.rows.device_index;
  return resolve_threads(p.num_threads, problem->device, &problem->num_threads);
}

Status describe(const fa3_mla_gather_params& p, MlaGatherProblem* problem) {
  constexpr Purpose kCall = Purpose::call;
  int32_t format = 0;
  FA3_TRY(describe_latent_cache({"cache", "rope", "descale"}, p.cache, kCall, &problem->cache,
                                &format));
  const Named o{"o", p.o};
  FA3_TRY(check_form(o, 2, "(rows, channels)"));
  FA3_TRY(check_last_stride(o));
  FA3_TRY(check_float(o));
  FA3_TRY(check_same_device(o, {"cache", p.cache.rows}));
  FA3_TRY(check_data(o));
  const bool without_rope =
      problem->cache.latent.channels == kLatentValueDim && p.o.shape[1] == kLatentValueDim;
  if (without_rope) problem->cache.rope.channels = 0;
  FA3_TRY(check_extent(o, 1, problem->cache.channels(), "the channels of the cache's rows"));
  problem->rows = p.o.shape[0];
  FA3_TRY(check_numbers({"slots", p.slots}, problem->rows, p.cache.rows, kCall));
  problem->slots = static_cast<const int32_t*>(p.slots.data);
  problem->o = {
      .data = p.o.data, .dtype = static_cast<DType>(p.o.dtype), .row_stride = stride_of(p.o, 0)};
  FA3_TRY(check_outputs(tensors_of(p)));
  problem->device = static_cast<fa3_device_type>(p.cache.rows.device_type);
  problem->device_index = p.cache.rows.device_index;
  return resolve_threads(p.num_threads, problem->device, &problem->num_threads);
}

}  // namespace fa3::api

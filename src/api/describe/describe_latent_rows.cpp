// SPDX-License-Identifier: Apache-2.0
// Calls that write rows of a latent cache, or read them.
#include <algorithm>
#include <array>

#include "api/describe/describe_latent_cache.h"
#include "api/describe/describe_lengths.h"
#include "api/describe/describe_mla.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/overlap.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

// The two tables, and which row each new token takes.
Status describe_rotary(const fa3_mla_append_params& p, MlaAppendProblem* problem) {
  const Named cos{"rotary_cos", p.rotary_cos}, sin{"rotary_sin", p.rotary_sin};
  if (present(cos.tensor) != present(sin.tensor)) {
    return invalid("rotary_cos, rotary_sin: expected both or neither");
  }
  FA3_TRY(check_flag("rotary_interleaved", p.rotary_interleaved));
  if (!present(cos.tensor)) {
    FA3_TRY(check_none({"positions", p.positions}, "without rotary_cos"));
    return check_none({"q_pe", p.q_pe}, "without rotary_cos");
  }
  for (const Named& table : {cos, sin}) {
    FA3_TRY(check_form(table, 2, "(positions, pairs)"));
    FA3_TRY(check_last_stride(table));
    FA3_TRY(check_dtype(table, {DType::float32, problem->dtype}));
    FA3_TRY(check_same_device(table, {"cache", p.cache.rows}));
    FA3_TRY(check_data(table));
  }
  FA3_TRY(check_same_dtype(sin, cos));
  for (int dim : {0, 1}) FA3_TRY(check_extent(sin, dim, cos.tensor.shape[dim], "rotary_cos has"));
  const int64_t pairs = cos.tensor.shape[1], positions = cos.tensor.shape[0];
  if (pairs < 1 || pairs > kRopeDim / 2) {
    return invalid("rotary_cos: expected between 1 and ", kRopeDim / 2, " pairs of channels, got ",
                   pairs);
  }
  FA3_TRY(check_numbers({"positions", p.positions}, problem->rows, p.cache.rows, Purpose::call));
  problem->positions = static_cast<const int32_t*>(p.positions.data);
  for (int64_t i = 0; readable(p.positions) && i < problem->rows; ++i) {
    if (problem->positions[i] < 0 || problem->positions[i] >= positions) {
      return invalid("positions: expected a row of rotary_cos in [0, ", positions, "), got ",
                     problem->positions[i], " at entry ", i);
    }
  }
  problem->rotary = {.cos = cos.tensor.data,
                     .sin = sin.tensor.data,
                     .dtype = static_cast<DType>(cos.tensor.dtype),
                     .cos_stride = stride_of(cos.tensor, 0),
                     .sin_stride = stride_of(sin.tensor, 0),
                     .pairs = pairs,
                     .positions = positions,
                     .interleaved = p.rotary_interleaved != 0};
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
  FA3_TRY(describe_rotary(p, problem));
  FA3_TRY(describe_rotated_queries(p, problem));
  FA3_TRY(check_scaling(p.scaling, format));
  problem->scaling = static_cast<fa3_mla_scaling>(p.scaling);
  const Named inputs[] = {{"c_kv", p.c_kv},
                          {"k_pe", p.k_pe},
                          {"slots", p.slots},
                          {"rotary_cos", p.rotary_cos},
                          {"rotary_sin", p.rotary_sin},
                          {"positions", p.positions},
                          {"descale", p.cache.descale}};
  const Named rotated{"q_pe_rotated", p.q_pe_rotated}, q{"q_pe", p.q_pe};
  const Named outputs[] = {{"cache", p.cache.rows}, {"rope", p.cache.rope}, rotated};
  FA3_TRY(check_outputs(outputs, inputs));
  for (const Named& output : {outputs[0], outputs[1]}) FA3_TRY(check_no_overlap(output, q));
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
  const Named inputs[] = {{"cache", p.cache.rows},
                          {"rope", p.cache.rope},
                          {"descale", p.cache.descale},
                          {"slots", p.slots}};
  FA3_TRY(check_outputs(std::to_array<Named>({o}), inputs));
  problem->device = static_cast<fa3_device_type>(p.cache.rows.device_type);
  problem->device_index = p.cache.rows.device_index;
  return resolve_threads(p.num_threads, problem->device, &problem->num_threads);
}

}  // namespace fa3::api

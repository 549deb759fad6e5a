// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "api/describe/describe.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/overlap.h"
#include "api/describe/rules/tensor_rules.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

// The first partial of a stacked tensor.
fa3_tensor first_partial(const fa3_tensor& stacked) {
  fa3_tensor view = stacked;
  view.rank = stacked.rank - 1;
  std::copy(stacked.shape + 1, stacked.shape + stacked.rank, view.shape);
  std::copy(stacked.stride + 1, stacked.stride + stacked.rank, view.stride);
  return view;
}

// A merged row is written after all its partials were read, so an output may be exactly a partial.
Status check_merge_aliasing(const fa3_merge_params& params) {
  const Named o{"o", params.o}, o_partial{"o_partial", params.o_partial};
  const Named lse{"lse", params.lse}, lse_partial{"lse_partial", params.lse_partial};
  if (!is_entry_of(params.o, params.o_partial)) FA3_TRY(check_no_overlap(o, o_partial));
  FA3_TRY(check_no_overlap(o, lse_partial));
  if (!present(params.lse)) return {};
  if (!is_entry_of(params.lse, params.lse_partial)) FA3_TRY(check_no_overlap(lse, lse_partial));
  return check_no_overlap(lse, o_partial);
}

}  // namespace

Status describe(const fa3_merge_params& params, MergeProblem* problem) {
  const Named o_partial{"o_partial", params.o_partial},
      lse_partial{"lse_partial", params.lse_partial};
  const Named o{"o", params.o}, lse{"lse", params.lse};
  FA3_TRY(check_form(o_partial, 5, "(partials, batch, seq, heads, dim)"));
  FA3_TRY(check_last_stride(o_partial));
  FA3_TRY(check_dtype(o_partial, {DType::float32}));
  FA3_TRY(check_form(lse_partial, 4, "(partials, batch, heads, seq)"));
  FA3_TRY(check_dtype(lse_partial, {DType::float32}));
  FA3_TRY(check_form(o, 4, "(batch, seq, heads, dim)"));
  FA3_TRY(check_last_stride(o));
  FA3_TRY(check_dtype(o, {DType::float32, DType::float16, DType::bfloat16}));
  const int64_t* shape = params.o_partial.shape;
  if (shape[0] < 1) return invalid("o_partial: expected at least one partial, got ", shape[0]);
  for (int dim = 0; dim < 4; ++dim) {
    FA3_TRY(check_extent(o, dim, shape[dim + 1], "the extent of o_partial"));
  }
  FA3_TRY(check_extent(lse_partial, 0, shape[0], "partials"));
  FA3_TRY(check_extent(lse_partial, 1, shape[1], "batch"));
  FA3_TRY(check_extent(lse_partial, 2, shape[3], "heads"));
  FA3_TRY(check_extent(lse_partial, 3, shape[2], "seq"));
  for (const Named& same : {lse_partial, o}) FA3_TRY(check_same_device(same, o_partial));
  for (const Named& needed : {o_partial, lse_partial, o}) FA3_TRY(check_data(needed));
  if (present(params.lse)) {
    FA3_TRY(check_form(lse, 3, "(batch, heads, seq)"));
    FA3_TRY(check_dtype(lse, {DType::float32}));
    for (int dim = 0; dim < 3; ++dim) {
      FA3_TRY(
          check_extent(lse, dim, params.lse_partial.shape[dim + 1], "the extent of lse_partial"));
    }
    FA3_TRY(check_same_device(lse, o_partial));
    FA3_TRY(check_data(lse));
    FA3_TRY(check_distinct_elements(lse));
    FA3_TRY(check_no_overlap(lse, o));
  }
  FA3_TRY(check_distinct_elements(o));
  FA3_TRY(resolve_threads(params.num_threads, params.o.device_type, &problem->num_threads));
  FA3_TRY(check_merge_aliasing(params));

  const int num_threads = problem->num_threads;
  *problem = {.num_partials = shape[0],
              .batch = shape[1],
              .rows = shape[2],
              .heads = shape[3],
              .head_dim_v = shape[4],
              .o_partial = operand(first_partial(params.o_partial)),
              .lse_partial = row_scalars(first_partial(params.lse_partial)),
              .o_partial_stride = stride_of(params.o_partial, 0),
              .lse_partial_stride = stride_of(params.lse_partial, 0),
              .o = operand(params.o),
              .lse = present(params.lse) ? row_scalars(params.lse) : RowScalars{},
              .device = static_cast<fa3_device_type>(params.o_partial.device_type),
              .device_index = params.o_partial.device_index,
              .num_threads = num_threads};
  return {};
}

}  // namespace fa3::api

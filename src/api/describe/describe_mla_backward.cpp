// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_mla.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/overlap.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

// The forward call whose gradients these are.
fa3_mla_forward_params forward_of(const fa3_mla_backward_params& p) {
  fa3_mla_forward_params forward;
  fa3_mla_forward_params_init(&forward);
  forward.q = p.q;
  forward.cache = {.rows = p.cache, .format = FA3_MLA_ROWS_LATENT};
  forward.indices = p.indices;
  forward.index_count = p.index_count;
  forward.sink = p.sink;
  forward.o = p.o;
  forward.lse = p.lse;
  forward.scale = p.scale;
  forward.lse_with_sink = p.lse_with_sink;
  forward.num_threads = p.num_threads;
  forward.engine = p.engine;
  return forward;
}

Status describe_output_gradient(const fa3_mla_backward_params& p, Purpose purpose,
                                MlaBackwardProblem* problem) {
  const bool packed = p.q.rank == 3;
  const Named d_o{"d_o", p.d_o}, d_lse{"d_lse", p.d_lse};
  FA3_TRY(check_like(d_o, p.q, kLatentValueDim, packed, purpose));
  FA3_TRY(check_dtype(d_o, {DType::float32, DType::float16, DType::bfloat16}));
  FA3_TRY(check_same_device(d_o, {"q", p.q}));
  problem->d_o = operand(p.d_o);
  if (!present(p.d_lse)) return {};
  FA3_TRY(check_row_scalars(d_lse, p.q, packed, purpose));
  problem->d_lse = row_scalars(p.d_lse);
  return {};
}

// In the cache's shape.
Status describe_cache_gradient(const fa3_mla_backward_params& p, Purpose purpose,
                               MlaBackwardProblem* problem) {
  const Named d_cache{"d_cache", p.d_cache};
  const fa3_tensor& cache = p.cache;
  FA3_TRY(check_form(d_cache, cache.rank, "that of cache"));
  FA3_TRY(check_last_stride(d_cache));
  for (int dim = 0; dim < cache.rank; ++dim) {
    FA3_TRY(check_extent(d_cache, dim, cache.shape[dim], "that of cache"));
  }
  FA3_TRY(check_output_dtype(d_cache, {"cache", cache}));
  FA3_TRY(check_same_device(d_cache, {"q", p.q}));
  if (purpose == Purpose::call) FA3_TRY(check_data(d_cache));
  problem->d_cache = {.data = p.d_cache.data,
                      .dtype = static_cast<DType>(p.d_cache.dtype),
                      .batch_stride = stride_of(p.d_cache, 0),
                      .row_stride = stride_of(p.d_cache, 1)};
  return {};
}

}  // namespace

Status describe(const fa3_mla_backward_params& p, Purpose purpose, MlaBackwardProblem* problem) {
  if (!present(p.indices)) {
    return invalid("indices: expected the rows that each query has attended to, got none");
  }
  if (!present(p.lse)) return invalid("lse: expected that of fa3_mla_forward(), got none");
  FA3_TRY(check_flag("deterministic", p.deterministic));
  FA3_TRY(describe(forward_of(p), purpose, static_cast<MlaProblem*>(problem)));
  problem->deterministic = p.deterministic != 0;
  FA3_TRY(describe_output_gradient(p, purpose, problem));
  const Named dq{"dq", p.dq};
  FA3_TRY(check_like(dq, p.q, problem->head_dim, p.q.rank == 3, purpose));
  FA3_TRY(check_output_dtype(dq, {"q", p.q}));
  FA3_TRY(check_same_device(dq, {"q", p.q}));
  problem->dq = operand(p.dq);
  FA3_TRY(describe_cache_gradient(p, purpose, problem));
  if (present(p.dsink)) {
    if (!present(p.sink)) return invalid("dsink: expected none without sink, got one");
    FA3_TRY(check_head_vector({"dsink", p.dsink}, p.q, purpose));
    problem->dsink = static_cast<float*>(p.dsink.data);
  }
  return purpose == Purpose::call ? check_outputs(tensors_of(p)) : Status{};
}

Status check_workspace(const fa3_mla_backward_params& p, const Memory& workspace) {
  return check_apart(workspace, tensors_of(p));
}

}  // namespace fa3::api

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/ceil_div.h"
#include "core/error.h"
#include "core/macros.h"
#include "core/workspace.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/cuda/softmax/constants.h"
#include "engine/hopper/engine.h"
#include "engine/hopper/latent/backward/latent_backward_params.h"
#include "engine/hopper/latent/check_alignment.h"
#include "engine/hopper/latent/plan_latent.h"

namespace fa3::hopper {
namespace {

struct LatentBackwardPlan {
  LatentBackwardKernel kernel;
  LatentBackwardParams params;  // without the problem's pointers and those into the workspace
};

Status check(const MlaBackwardProblem& p) {
  if (p.dtype == DType::float32) return unsupported("q: expected float16 or bfloat16, got float32");
  struct Rows {
    const char* name;
    DType dtype;
  };
  for (const Rows& of :
       {Rows{"cache", p.keys.cache.latent.dtype}, Rows{"o", p.o.dtype}, Rows{"d_o", p.d_o.dtype}}) {
    if (of.dtype == p.dtype) continue;
    return unsupported(of.name, ": expected q's type, ", name_of(p.dtype), ", got ",
                       name_of(of.dtype));
  }
  FA3_TRY(check_row_alignment("q", p.q));
  FA3_TRY(check_row_alignment("o", p.o));
  FA3_TRY(check_row_alignment("d_o", p.d_o));
  FA3_TRY(check_row_alignment("dq", p.dq));
  const RowPart& rows = p.keys.cache.latent;
  FA3_TRY(check_alignment("cache", rows.data, {rows.page_stride, rows.row_stride}));
  for (const int64_t count : {p.batch * p.lengths_q.max * p.heads, p.keys.num_indices,
                              p.keys.cache.pages * p.keys.cache.page_size}) {
    if (count > INT32_MAX) return unsupported("more queries, indices or rows than 32 bits count");
  }
  return {};
}

// A power of two near 1 / scale; see LatentBackwardParams.
float weight_factor_of(float scale) {
  return std::exp2(std::clamp(std::round(-std::log2(scale)), 0.0f, 10.0f));
}

int64_t place_in_workspace(LatentBackwardParams& params, void* workspace) {
  const MlaBackwardProblem& p = params.problem;
  const int64_t rows = params.cache_rows();
  WorkspaceAllocator allocator(workspace);
  if (p.deterministic) {
    params.integer_sums = allocator.take<int64_t>(rows, p.head_dim);
    params.bounds = allocator.take<RowBound>(rows);
    params.scales = allocator.take<RowScale>(rows);
  } else {
    params.sums = allocator.take<float>(rows, p.head_dim);
  }
  const int64_t heads = p.dsink != nullptr ? p.heads : 0;
  params.sink_sums = allocator.take<float>(heads, params.all_tokens());
  return allocator.bytes();
}

}  // namespace

Status plan_mla_backward(const MlaBackwardProblem& p, Plan* plan) {
  FA3_TRY(cuda::check_device(p.device_index, kCapability));
  FA3_TRY(check(p));
  LatentBackwardPlan decided{.kernel =
                                 latent_backward_kernel_of(p.head_dim, p.dtype, p.deterministic)};
  LatentBackwardParams& params = decided.params;
  params.problem = p;
  params.scale_log2 = cuda::log2_scale(p.scale);
  params.weight_factor = weight_factor_of(p.scale);
  params.page_size = int(p.keys.cache.page_size);
  params.tokens = int(p.lengths_q.max);
  params.row_tiles = int(ceil_div(p.heads, kGradientRows));
  plan->engine = "hopper";
  plan->block_q = kGradientRows;
  plan->block_k = kGradientKeys;
  plan->num_tasks = params.all_tokens() * params.row_tiles;
  plan->workspace_bytes = place_in_workspace(params, nullptr);
  plan->decided.store(decided);
  if (!plan->wants_words) return {};
  plan->kernel = concat("latent backward, ", kGradientRows, " heads x ", kGradientKeys, " keys");
  plan->why =
      concat("a CTA for 64 heads of a query; the gradient of a row is added to in any order",
             p.deterministic ? ", in integers: repeatable" : "");
  return {};
}

Status run_mla_backward(const MlaBackwardProblem& problem, const Plan& plan, void* workspace,
                        void* stream) {
  auto decided = plan.decided.load<LatentBackwardPlan>();
  LatentBackwardParams& params = decided.params;
  params.problem = problem;
  place_in_workspace(params, workspace);
  const cuda::DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const auto on = static_cast<cudaStream_t>(stream);
  const auto then = [&](auto&& queue) {
    if (error == cudaSuccess) error = queue();
  };
  const auto clear = [&](auto* array, int64_t count) {
    then([&] {
      return count == 0 ? cudaSuccess
                        : cudaMemsetAsync(array, 0, size_t(count) * sizeof(*array), on);
    });
  };
  const int64_t rows = params.cache_rows();
  if (problem.deterministic) {
    clear(params.integer_sums, rows * problem.head_dim);
    clear(params.bounds, rows);
    then([&] { return scale_integer_sums(params, on); });
  } else {
    clear(params.sums, rows * problem.head_dim);
  }
  then([&] {
    return cuda::launch(decided.kernel.function, dim3(unsigned(plan.num_tasks)),
                        decided.kernel.threads, decided.kernel.smem_bytes, &params, {}, on);
  });
  then([&] { return store_cache_gradient(params, on); });
  if (problem.dsink != nullptr) {
    then([&] {
      return cuda::sum_sink_gradients({.sums = params.sink_sums,
                                       .batches = 1,
                                       .heads = int(problem.heads),
                                       .q_blocks = int(params.all_tokens()),
                                       .d_sink = problem.dsink},
                                      on);
    });
  }
  return cuda::finish(error, "hopper mla backward");
}

}  // namespace fa3::hopper

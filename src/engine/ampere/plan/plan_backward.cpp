// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/plan/plan.h"

#include <algorithm>

#include "core/error.h"
#include "core/macros.h"
#include "engine/ampere/engine.h"
#include "engine/ampere/plan/backward_plan.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/host/forward_call.h"
#include "engine/cuda/jit/score_program.h"

namespace fa3::ampere {
namespace {

constexpr int64_t kMaxBlocks = int64_t{1} << 28;  // numbers of CTAs are 31-bit

// Registers of a score function are those that P's other form takes.
bool has_other_p(const BackwardProblem& p) {
  return p.softcap != 0.0f || p.dropout.on() || p.score != nullptr;
}

std::string reasons(const BackwardPlan& plan, const char* why_the_row) {
  const BackwardConfig& c = plan.kernel.config;
  std::string why =
      concat("kernel for head dims up to ", c.head_dim, " and ", c.head_dim_v, ": ", why_the_row);
  if (plan.call.has_gate()) why += "; preprocess applies the gate to dO";
  if (plan.call.deterministic) why += "; key blocks add to dQ in one order";
  return why;
}

Status check_score(const BackwardProblem& p) {
  if (p.score != nullptr && cuda::tensor_with_stored_gradient(*p.score) != nullptr) {
    return unsupported("stores_gradient of a score function's element");
  }
  if (p.score == nullptr || p.score->gradients == nullptr || !p.deterministic) return {};
  return unsupported("gradients of captured tensors in one order (deterministic)");
}

// The row's kernels, of which the main one is compiled when the plan runs.
BackwardKernel with_score_function(BackwardKernel kernel, const fa3_score_function& score) {
  const bool apart = score.gradients != nullptr && cuda::keeps_scores_or_slopes(score);
  const BackwardConfig row = kernel.config;
  kernel.config = row.with_score_function(apart);
  kernel.smem_bytes += kernel.config.tile_bytes() - row.tile_bytes();
  return kernel;
}

}  // namespace

const BackwardRow* select_backward_kernel(const BackwardProblem& p, int smem_bytes) {
  const bool scored = p.block_mask.on || has_other_p(p);
  const auto row = std::ranges::find_if(kBackward, [&](const BackwardRow& candidate) {
    const BackwardConfig& c = candidate.kernel;
    return c.block_mask == p.block_mask.on && c.scored == scored && c.smem_class <= smem_bytes &&
           c.head_dim >= p.head_dim && c.head_dim_v >= p.head_dim_v;
  });
  return row == kBackward.end() ? nullptr : &*row;
}

Status plan_backward(const BackwardProblem& problem, Plan* plan) {
  FA3_TRY(check_forward(problem));
  if (problem.has_float8()) return unsupported("gradients of ", name_of(problem.kv_dtype));
  if (problem.o.dtype != problem.dtype) {
    return unsupported("gradients of an output of ", name_of(problem.o.dtype), " from inputs of ",
                       name_of(problem.dtype));
  }
  if (problem.has_wide_gradients()) {
    return unsupported("gradients of float32 from inputs of ", name_of(problem.dtype));
  }
  FA3_TRY(check_score(problem));
  FA3_TRY(cuda::check_device(problem.device_index, kCapability));
  int smem_bytes = 0;
  FA3_TRY(cuda::count_smem_bytes(problem.device_index, &smem_bytes));
  const BackwardRow* row = select_backward_kernel(problem, smem_bytes);
  if (!row) {
    return unsupported("no backward kernel for head dims ", problem.head_dim, " and ",
                       problem.head_dim_v, "; the largest have 256 and 256");
  }
  BackwardKernel kernel = backward_kernel_at(*row, cuda::element_of(problem.dtype));
  if (problem.score != nullptr) kernel = with_score_function(kernel, *problem.score);
  const cuda::BackwardCall call = cuda::call_of(problem);
  const BackwardPlan decided = plan_launches(kernel, call);
  if (decided.grids.largest() > kMaxBlocks) {
    return unsupported("more than 2^28 blocks of queries or keys");
  }

  const BackwardConfig& c = decided.kernel.config;
  plan->engine = "ampere";
  plan->decided.store(decided);
  plan->block_q = c.block_m;
  plan->block_k = c.block_n;
  plan->num_tasks = decided.grids.main;
  plan->workspace_bytes = decided.workspace.bytes;
  if (plan->wants_words) {
    plan->kernel = concat("backward ", name_of(problem.dtype), " d", c.head_dim, "/", c.head_dim_v,
                          " ", c.block_m, "x", c.block_n, cuda::mask_name(call.mask),
                          c.block_mask ? " block mask" : "", problem.dropout.on() ? " dropout" : "",
                          call.deterministic ? " deterministic" : "",
                          problem.score ? " with a score function" : "");
    plan->why = reasons(decided, row->why);
  }
  return {};
}

}  // namespace fa3::ampere

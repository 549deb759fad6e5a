// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/run.h"

#include <algorithm>

#include "core/macros.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/jit/kernel_cache.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/cuda/softmax/constants.h"
#include "engine/hopper/launch/launch_forward.h"
#include "engine/hopper/launch/score_program.h"

namespace fa3::hopper {
namespace {

cudaError_t queue(const ForwardPlan& plan, void* workspace, cudaStream_t stream) {
  return launch_forward(plan, nullptr, workspace, stream);
}

// A plan and a score function, whose kernel is found or made here.
struct ScoredPlan {
  ForwardPlan plan;
  ScoreOperands score;
};

cudaError_t queue(const ScoredPlan& scored, void* workspace, cudaStream_t stream) {
  return launch_forward(scored.plan, &scored.score, workspace, stream);
}

cudaError_t queue(const E4m3Plan& plan, void* workspace, cudaStream_t stream) {
  return launch_e4m3(plan, workspace, stream);
}

bool has_work(const ForwardPlan& plan) {
  return plan.grid.x > 0;
}

bool has_work(const E4m3Plan& plan) {
  return has_work(plan.forward);
}

bool has_work(const ScoredPlan& scored) {
  return has_work(scored.plan);
}

template <class Decided>
Status run(int device, const Decided& plan, void* workspace, void* stream) {
  if (!has_work(plan)) return {};
  const cuda::DeviceScope scope(device);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) error = queue(plan, workspace, static_cast<cudaStream_t>(stream));
  return cuda::finish(error, "hopper forward");
}

// Finds or makes the kernel of a plan with outputs, and clears the numbers that it raises.
Status prepare_outputs(int device, const Problem& problem, ForwardPlan* plan, void* stream) {
  ForwardKernel& kernel = plan->kernel;
  if (!kernel.config.outputs.any()) return {};
  const cuda::DeviceScope scope(device);
  cudaError_t error = scope.error();
  if (error == cudaSuccess && has_work(*plan)) {
    FA3_TRY(cuda::find_kernel(output_key(kernel.config), nullptr, &kernel.function,
                              [&] { return output_program(kernel.config); }));
  }
  if (error == cudaSuccess && kernel.config.outputs.max_logit) {
    error = cuda::clear_max_logits(plan->call.max_logit, problem.batch, int(problem.heads_q),
                                   static_cast<cudaStream_t>(stream));
  }
  return cuda::finish(error, "hopper forward");
}

Status run_scored(const fa3_score_function& score, int device, const ForwardPlan& decided,
                  void* workspace, void* stream) {
  const float scale = decided.call.scale;
  ScoredPlan scored{decided,
                    {.captures = cuda::captures_of(score),
                     .captured_map = {},
                     .together = decided.together,
                     .scale_log2 = cuda::log2_scale(scale),
                     .inverse_scale = std::min(1.0f / scale, 0x1p126f)}};
  if (!has_work(scored)) return {};
  ForwardKernel& kernel = scored.plan.kernel;
  const cuda::DeviceScope scope(device);
  if (kernel.config.captured.loads_tile() &&
      !encode_captured_map(scored.score.captured_map, score.tensors[decided.captured_tile],
                           kernel.config.captured_tile())) {
    return cuda::finish(cudaErrorInvalidValue, "hopper forward");
  }
  FA3_TRY(cuda::find_kernel(score_key(score, kernel.config), score.compiler, &kernel.function,
                            [&] { return score_program(score, kernel.config); }));
  if (score.only_compiles != 0) return {};
  return run(device, scored, workspace, stream);
}

}  // namespace

Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  const int device = problem.device_index;
  if (problem.dtype == DType::float8_e4m3) {
    auto decided = plan.decided.load<E4m3Plan>();
    FA3_TRY(prepare_outputs(device, problem, &decided.forward, stream));
    return run(device, decided, workspace, stream);
  }
  auto decided = plan.decided.load<ForwardPlan>();
  if (problem.score != nullptr)
    return run_scored(*problem.score, device, decided, workspace, stream);
  FA3_TRY(prepare_outputs(device, problem, &decided, stream));
  return run(device, decided, workspace, stream);
}

}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/run_backward.h"

#include "core/macros.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/jit/kernel_cache.h"
#include "engine/hopper/launch/launch_backward.h"
#include "engine/hopper/launch/score_program.h"

namespace fa3::hopper {
namespace {

// The main kernel of a score function is found or made here.
Status find_main(const fa3_score_function& score, BackwardPlan* plan) {
  if (plan->grids.main == 0) return {};
  return cuda::find_kernel(score_program(score, plan->main_config), score.compiler, &plan->main);
}

}  // namespace

Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                    void* stream) {
  auto decided = plan.decided.load<BackwardPlan>();
  if (decided.call.has_nothing_to_do()) return {};
  const cuda::DeviceScope scope(problem.device_index);
  cuda::ScoreGradientParams score{};
  if (problem.score != nullptr) {
    FA3_TRY(find_main(*problem.score, &decided));
    score = gradients_of(*problem.score, problem.scale);
  }
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    error = launch_backward(decided, workspace, static_cast<cudaStream_t>(stream), kAllLaunches,
                            &score);
  }
  return cuda::finish(error, "hopper backward");
}

}  // namespace fa3::hopper

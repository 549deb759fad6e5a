// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/launch/launch.h"

#include "core/macros.h"
#include "engine/ampere/launch/score_program.h"
#include "engine/cuda/engine_parts.h"
#include "engine/cuda/jit/kernel_cache.h"

namespace fa3::ampere {
namespace {

// The main kernel of a score function is found or made here.
Status find_main(const fa3_score_function& score, int device, BackwardPlan* plan) {
  if (plan->grids.main == 0) return {};
  cuda::Capability gpu;
  FA3_TRY(cuda::find_capability(device, &gpu));
  BackwardKernel& kernel = plan->kernel;
  return cuda::find_kernel(score_key(score, kernel.config, gpu), score.compiler, &kernel.main,
                           [&] { return score_program(score, kernel.config, gpu); });
}

}  // namespace

Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                    void* stream) {
  const fa3_score_function* const function = problem.score;
  cuda::ScoreGradientParams score{};
  const auto prepare = [&](BackwardPlan* decided) -> Status {
    if (function == nullptr) return {};
    score = cuda::gradients_of(*function, problem.scale);
    return find_main(*function, problem.device_index, decided);
  };
  const auto launch = [&](const BackwardPlan& decided, void* memory, cudaStream_t on) {
    if (function != nullptr && function->only_compiles != 0) return cudaSuccess;
    return launch_backward(decided, memory, on, kAllLaunches, function ? &score : nullptr);
  };
  return cuda::run_backward<BackwardPlan>(problem, plan, workspace, stream, prepare, launch,
                                          "ampere backward");
}

}  // namespace fa3::ampere

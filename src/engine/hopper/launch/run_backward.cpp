// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/run.h"

#include "core/macros.h"
#include "engine/cuda/engine_parts.h"
#include "engine/cuda/jit/kernel_cache.h"
#include "engine/hopper/launch/launch_backward.h"
#include "engine/hopper/launch/score_program.h"

namespace fa3::hopper {
namespace {

// The main kernel of a score function is found or made here.
Status find_main(const fa3_score_function& score, BackwardPlan* plan,
                 ScoreGradientOperands* operands) {
  if (plan->grids.main == 0) return {};
  const BackwardConfig& c = plan->main_config;
  int captured = kNoTile;
  if (c.takes_captured_tile()) {
    captured = find_captured_tile(score, plan->call.seqlen_q, plan->call.seqlen_k);
  }
  if (captured != kNoTile) {
    const fa3_captured_tensor& tensor = score.tensors[captured];
    bool encoded = encode_captured_map(operands->captured_map, tensor, c.ds_tile());
    if (cuda::tensor_with_stored_gradient(score) != nullptr) {
      encoded = encoded && encode_gradient_map(operands->gradient_map, tensor, c.ds_tile());
    }
    if (!encoded) return cuda::finish(cudaErrorInvalidValue, "hopper backward");
  }
  return cuda::find_kernel(score_key(score, c, captured), score.compiler, &plan->main,
                           [&] { return score_program(score, c, captured); });
}

}  // namespace

Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                    void* stream) {
  const fa3_score_function* const function = problem.score;
  ScoreGradientOperands score{};
  const auto prepare = [&](BackwardPlan* decided) -> Status {
    if (function == nullptr) return {};
    static_cast<cuda::ScoreGradientParams&>(score) = cuda::gradients_of(*function, problem.scale);
    return find_main(*function, decided, &score);
  };
  const auto launch = [&](const BackwardPlan& decided, void* memory, cudaStream_t on) {
    if (function != nullptr && function->only_compiles != 0) return cudaSuccess;
    return launch_backward(decided, memory, on, kAllLaunches, function ? &score : nullptr);
  };
  return cuda::run_backward<BackwardPlan>(problem, plan, workspace, stream, prepare, launch,
                                          "hopper backward");
}

}  // namespace fa3::hopper

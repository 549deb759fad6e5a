// SPDX-License-Identifier: Apache-2.0
// Encodes a forward plan, as tensor maps and parameters, and queues it. Decides nothing. Next:
// launch_forward.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/hopper/plan/forward_plan.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/score_operands.h"

namespace fa3::hopper {

// What a kernel with a score function is given, which for the kernel itself, compiled at run time,
// is ForwardParams.
struct ScoredForwardParams {
  ForwardParams forward;
  alignas(CUtensorMap) ScoreOperands score;
};

// What the launches of a plan do not have in common.
struct LaunchOperands {
  TensorSpan v;
  TensorSpan o;
  GateParams gate;
  E4m3Params e4m3{};                     // kernels of e4m3
  HeadsInWork heads_in_work{};           // the same
  const ScoreOperands* score = nullptr;  // kernels with a score function
};

// Queues one launch and its combine; allocates nothing, waits for nothing. The workspace has
// plan.workspace.bytes.
cudaError_t launch_forward(const ForwardPlan& plan, const LaunchOperands& operands, void* workspace,
                           cudaStream_t stream);

// Queues all launches of a plan. score: null, but for a kernel with a score function.
cudaError_t launch_forward(const ForwardPlan& plan, const ScoreOperands* score, void* workspace,
                           cudaStream_t stream);

// ---- e4m3: V is transposed into the workspace, then comes the launch of the forward ----

// In two steps, so that a benchmark can time them one by one.
cudaError_t prepare_e4m3_launch(const E4m3Plan& plan, void* workspace, cudaStream_t stream);
cudaError_t launch_prepared_e4m3(const E4m3Plan& plan, void* workspace, cudaStream_t stream);

cudaError_t launch_e4m3(const E4m3Plan& plan, void* workspace, cudaStream_t stream);

}  // namespace fa3::hopper

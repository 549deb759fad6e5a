// SPDX-License-Identifier: Apache-2.0
// Encodes plans as parameters, and queues them. Decides nothing. Next: launch_forward.cpp,
// launch_backward.cpp.
#pragma once

#include <cuda_runtime_api.h>
#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"
#include "engine/ampere/plan/backward_plan.h"
#include "engine/ampere/plan/forward_plan.h"
#include "engine/cuda/softmax/score_captures.h"

namespace fa3::ampere {

// Queues all launches of a plan; allocates nothing, waits for nothing.
// With splits, their partial results go to the workspace (ForwardPlan::partials). captures: of a
// plan whose kernel has a score function; else null.
cudaError_t launch_forward(const ForwardPlan& plan, const cuda::ScoreCaptures* captures,
                           void* workspace, cudaStream_t stream);

// ---- The backward: three launches; behind them the sinks' gradient ----

// Which launches of a plan are queued: all, except for measurements.
enum BackwardLaunch { kPreprocess = 1, kMain = 2, kPostprocess = 4, kAllLaunches = 7 };

// Queues the launches; allocates nothing, waits for nothing. The workspace has
// plan.workspace.bytes, aligned to 256.
// score: of a plan whose main kernel has a score function; else null.
cudaError_t launch_backward(const BackwardPlan& plan, void* workspace, cudaStream_t stream,
                            int launches = kAllLaunches,
                            const cuda::ScoreGradientParams* score = nullptr);

// Queues what plan/plan.h has decided.
Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream);
Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                    void* stream);

}  // namespace fa3::ampere

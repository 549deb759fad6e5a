// SPDX-License-Identifier: Apache-2.0
// Encodes a backward plan as parameters and queues it. Decides nothing. Three launches; behind them
// the sinks' gradient.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/ampere/plan/backward_plan.h"
#include "engine/cuda/softmax/score_gradient_params.h"

namespace fa3::ampere {

// Which launches of a plan are queued: all, except for measurements.
enum BackwardLaunch { kPreprocess = 1, kMain = 2, kPostprocess = 4, kAllLaunches = 7 };

// Queues the launches; allocates nothing, waits for nothing. The workspace has
// plan.workspace.bytes, aligned to 256.
// score: of a plan whose main kernel has a score function; else null.
cudaError_t launch_backward(const BackwardPlan& plan, void* workspace, cudaStream_t stream,
                            int launches = kAllLaunches,
                            const cuda::ScoreGradientParams* score = nullptr);

}  // namespace fa3::ampere

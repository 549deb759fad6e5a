// SPDX-License-Identifier: Apache-2.0
// Encodes a backward plan, as tensor maps and parameters, and queues it. Decides nothing. Three
// launches, each of which starts under the end of the one before (PDL); in front of them the lists
// of varlen tiles, behind them the sinks. Short sequences take one launch. Next:
// launch_backward.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/plan/backward/backward_plan.h"

namespace fa3::hopper {

// Which launches of a plan are queued: all, except for measurements.
enum BackwardLaunch { kPreprocess = 1, kMain = 2, kPostprocess = 4, kAllLaunches = 7 };

// Queues the launches; allocates nothing, waits for nothing. The workspace has
// plan.workspace.bytes, aligned to 256. `score`: of a plan whose main kernel has a score function.
cudaError_t launch_backward(const BackwardPlan& plan, void* workspace, cudaStream_t stream,
                            int launches = kAllLaunches,
                            const ScoreGradientOperands* score = nullptr);

}  // namespace fa3::hopper

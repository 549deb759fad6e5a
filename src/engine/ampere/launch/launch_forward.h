// SPDX-License-Identifier: Apache-2.0
// Encodes a forward plan as parameters, and queues it. Decides nothing. Next: launch_forward.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/ampere/plan/forward_plan.h"
#include "engine/cuda/softmax/score_captures.h"

namespace fa3::ampere {

// Queues all launches of a plan; allocates nothing, waits for nothing.
// With splits, their partial results go to the workspace (ForwardPlan::partials). captures: of a
// plan whose kernel has a score function; else null.
cudaError_t launch_forward(const ForwardPlan& plan, const cuda::ScoreCaptures* captures,
                           void* workspace, cudaStream_t stream);

}  // namespace fa3::ampere

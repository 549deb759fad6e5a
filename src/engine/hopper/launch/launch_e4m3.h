// SPDX-License-Identifier: Apache-2.0
// Queues an e4m3 plan: V is transposed into the workspace, then launch_forward.h's launch.
#pragma once

#include "engine/hopper/launch/launch_forward.h"
#include "engine/hopper/plan/plan_e4m3.h"

namespace fa3::hopper {

// In two steps, so that a benchmark can time them one by one.
cudaError_t prepare_e4m3_launch(const E4m3Plan& plan, void* workspace, cudaStream_t stream);
cudaError_t launch_prepared_e4m3(const E4m3Plan& plan, void* workspace, cudaStream_t stream);

cudaError_t launch_e4m3(const E4m3Plan& plan, void* workspace, cudaStream_t stream);

}  // namespace fa3::hopper

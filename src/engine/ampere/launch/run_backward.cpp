// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/launch/run_backward.h"

#include "engine/ampere/launch/launch_backward.h"
#include "engine/cuda/host/device.h"

namespace fa3::ampere {

Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                    void* stream) {
  const auto decided = plan.decided.load<BackwardPlan>();
  if (decided.call.has_nothing_to_do()) return {};
  const cuda::DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    error = launch_backward(decided, workspace, static_cast<cudaStream_t>(stream));
  }
  return cuda::finish(error, "ampere backward");
}

}  // namespace fa3::ampere

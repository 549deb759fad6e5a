// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/launch/run_forward.h"

#include "engine/ampere/launch/launch_forward.h"
#include "engine/cuda/host/device.h"

namespace fa3::ampere {

Status run_forward(const Problem& problem, const Plan& plan, void*, void* stream) {
  const auto decided = plan.decided.load<ForwardPlan>();
  if (!decided.has_work()) return {};
  const cuda::DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) error = launch_forward(decided, static_cast<cudaStream_t>(stream));
  return cuda::finish(error, "ampere forward");
}

}  // namespace fa3::ampere

// SPDX-License-Identifier: Apache-2.0
// What the engines for NVIDIA GPUs have in common beside kernels: functions of an Engine, for GPUs
// of a capability.
#pragma once

#include "core/macros.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/engine.h"

namespace fa3::cuda {

template <Capability kNeeded>
struct EngineParts {
  static Availability probe() { return cuda::probe(kNeeded); }

  static Status run_merge(const MergeProblem& problem, void* stream) {
    FA3_TRY(check_device(problem.device_index, kNeeded));
    return cuda::run_merge(problem, stream);
  }
  static Status run_append(const AppendProblem& problem, void* stream) {
    FA3_TRY(check_device(problem.device_index, kNeeded));
    return cuda::run_append(problem, stream);
  }
  static Status run_mla_append(const MlaAppendProblem& problem, void* stream) {
    FA3_TRY(check_device(problem.device_index, kNeeded));
    return cuda::run_mla_append(problem, stream);
  }
  static Status run_mla_gather(const MlaGatherProblem& problem, void* stream) {
    FA3_TRY(check_device(problem.device_index, kNeeded));
    return cuda::run_mla_gather(problem, stream);
  }
};

// Queues the `Decided` of a plan by launch(decided, workspace, stream), behind prepare(&decided).
template <class Decided, class Prepare, class Launch>
Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace, void* stream,
                    const Prepare& prepare, const Launch& launch, const char* what) {
  auto decided = plan.decided.load<Decided>();
  if (decided.call.has_nothing_to_do()) return {};
  const DeviceScope scope(problem.device_index);
  FA3_TRY(prepare(&decided));
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    error = launch(decided, workspace, static_cast<cudaStream_t>(stream));
  }
  return finish(error, what);
}

}  // namespace fa3::cuda

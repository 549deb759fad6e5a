// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/run.h"

#include "engine/cuda/host/device.h"
#include "engine/hopper/plan/backward/backward_plan.h"
#include "engine/hopper/plan/forward_plan.h"

namespace fa3::hopper {
namespace {

Status make(int device, cuda::BlockListParams lists, cuda::ListsOf pass, void* memory,
            void* stream) {
  set_own_memory(lists, pass, memory);
  const cuda::DeviceScope scope(device);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    error = prepare_block_lists(lists, static_cast<cudaStream_t>(stream));
  }
  return cuda::finish(error, "lists of a block mask");
}

}  // namespace

Status make_forward_lists(const Problem& problem, const Plan& plan, void* memory, void* stream) {
  const auto decided = plan.decided.load<ForwardPlan>();
  return make(problem.device_index, decided.lists, cuda::ListsOf::kForward, memory, stream);
}

Status make_backward_lists(const BackwardProblem& problem, const Plan& plan, void* memory,
                           void* stream) {
  const auto decided = plan.decided.load<BackwardPlan>();
  return make(problem.device_index, decided.lists, lists_of(decided.call), memory, stream);
}

}  // namespace fa3::hopper

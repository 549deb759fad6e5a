// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/engine.h"

#include "core/macros.h"
#include "engine/ampere/capability.h"
#include "engine/ampere/launch/run_backward.h"
#include "engine/ampere/launch/run_forward.h"
#include "engine/ampere/plan/plan_backward.h"
#include "engine/ampere/plan/plan_forward.h"
#include "engine/cuda/host/clock.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/kernels/append.h"
#include "engine/cuda/kernels/merge.h"

namespace fa3::ampere {

const Engine kAmpereEngine = {
    .name = "ampere",
    .id = FA3_ENGINE_AMPERE,
    .memory = FA3_CUDA,
    .automatic = true,
    .probe = [] { return cuda::probe(kCapability); },
    .plan_forward = plan_forward,
    .run_forward = run_forward,
    .plan_backward = plan_backward,
    .run_backward = run_backward,
    .run_merge = [](const MergeProblem& problem, void* stream) -> Status {
      FA3_TRY(cuda::check_device(problem.device_index, kCapability));
      return cuda::run_merge(problem, stream);
    },
    .run_append = [](const AppendProblem& problem, void* stream) -> Status {
      FA3_TRY(cuda::check_device(problem.device_index, kCapability));
      return cuda::run_append(problem, stream);
    },
    .read_back = cuda::read_back,
    .clock = &cuda::kClock,
};

}  // namespace fa3::ampere

// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/engine.h"

#include "engine/ampere/launch/launch.h"
#include "engine/ampere/plan/plan.h"
#include "engine/cuda/engine_parts.h"

namespace fa3::ampere {

using Parts = cuda::EngineParts<kCapability>;

const Engine kAmpereEngine = {
    .name = "ampere",
    .id = FA3_ENGINE_AMPERE,
    .memory = FA3_CUDA,
    .automatic = true,
    .probe = Parts::probe,
    .plan_forward = plan_forward,
    .run_forward = run_forward,
    .plan_backward = plan_backward,
    .run_backward = run_backward,
    .run_merge = Parts::run_merge,
    .run_append = Parts::run_append,
    .read_back = cuda::read_back,
    .follow = cuda::follow,
    .clear = cuda::clear,
    .write = cuda::write,
    .has_score_functions = true,
    .run_mla_append = Parts::run_mla_append,
    .run_mla_gather = Parts::run_mla_gather,
    .clock = &cuda::kClock,
    .limits = cuda::limits,
};

}  // namespace fa3::ampere

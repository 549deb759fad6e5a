// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/engine.h"

#include "core/error.h"
#include "engine/hopper/device.h"
#include "engine/hopper/merge.h"
#include "engine/hopper/plan_forward.h"

namespace fa3::hopper {

const Engine kHopperEngine = {
    .name = "hopper",
    .id = FA3_ENGINE_HOPPER,
    .memory = FA3_CUDA,
    .automatic = true,
    .probe = probe,
    .plan_forward = plan_forward,
    .run_forward = run_forward,
    .plan_backward = [](const BackwardProblem&, Plan*) { return unsupported("no backward yet"); },
    .run_backward = [](const BackwardProblem&, const Plan&, void*,
                       void*) { return unsupported("no backward yet"); },
    .run_merge = run_merge,
};

}  // namespace fa3::hopper

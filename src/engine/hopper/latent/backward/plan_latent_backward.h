// SPDX-License-Identifier: Apache-2.0
// Gradients of selected rows of a latent cache: what runs, and how it is queued.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "engine/hopper/latent/backward/latent_backward_kernel.h"

namespace fa3::hopper {

Status plan_mla_backward(const MlaBackwardProblem& problem, Plan* plan);
Status run_mla_backward(const MlaBackwardProblem& problem, const Plan& plan, void* workspace,
                        void* stream);

}  // namespace fa3::hopper

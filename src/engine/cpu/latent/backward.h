// SPDX-License-Identifier: Apache-2.0
//
// Gradients of attention to selected rows of a latent cache, by the tiled backward. Bitwise
// repeatable, whatever the number of threads. Next: ../tiled/backward.cpp.
#pragma once

#include <fa3/status.h>

#include "core/latent.h"
#include "core/plan.h"

namespace fa3::cpu {

Status plan_mla_backward(const MlaBackwardProblem& problem, Plan* plan);
Status run_mla_backward(const MlaBackwardProblem& problem, const Plan& plan, void* workspace,
                        void* stream);

}  // namespace fa3::cpu

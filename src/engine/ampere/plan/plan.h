// SPDX-License-Identifier: Apache-2.0
// Plans a problem, or says why no kernel can. The plan_* functions ask which GPU there is. Next:
// forward_plan.h, backward_plan.h, launch/run.h.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::ampere {

// What no kernel can do yet, in a sentence; OK if one can. Needs no GPU.
Status check_forward(const Problem& problem);

Status plan_forward(const Problem& problem, Plan* plan);

Status plan_backward(const BackwardProblem& problem, Plan* plan);

}  // namespace fa3::ampere

// SPDX-License-Identifier: Apache-2.0
// Plans and runs a forward problem, or says why no kernel can. plan_forward asks which GPU there
// is.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::hopper {

// What no kernel of either pass can do yet, in a sentence; OK if one can. Needs no GPU.
Status check_forward(const Problem& problem);

Status plan_forward(const Problem& problem, Plan* plan);
Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream);

}  // namespace fa3::hopper

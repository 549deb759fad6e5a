// SPDX-License-Identifier: Apache-2.0
// Plans a forward problem, or says why no kernel can. plan_forward asks which GPU there is. Next:
// launch/run.h.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::hopper {

// A part of a plan's reasons, in both passes.
inline constexpr const char* kListsBefore = "; the block mask's lists were made before";

// What no kernel of either pass can do yet, in a sentence; OK if one can. Needs no GPU.
Status check_forward(const Problem& problem);

Status plan_forward(const Problem& problem, Plan* plan);

// Whether a kernel goes on from the problem's partial result.
bool continues(const Problem& problem);

}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
// Queues what makes the lists of a block mask for many calls, each of which would make them in its
// workspace.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::hopper {

Status make_forward_lists(const Problem& problem, const Plan& plan, void* memory, void* stream);
Status make_backward_lists(const BackwardProblem& problem, const Plan& plan, void* memory,
                           void* stream);

}  // namespace fa3::hopper

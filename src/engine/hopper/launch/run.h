// SPDX-License-Identifier: Apache-2.0
// Queues what the plans have decided.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::hopper {

Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream);
Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                    void* stream);

// Queues what makes the lists of a block mask for many calls, each of which would make them in its
// workspace.
Status make_forward_lists(const Problem& problem, const Plan& plan, void* memory, void* stream);
Status make_backward_lists(const BackwardProblem& problem, const Plan& plan, void* memory,
                           void* stream);

}  // namespace fa3::hopper

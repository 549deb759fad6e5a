// SPDX-License-Identifier: Apache-2.0
// Queues what plan/plan_backward.h has decided.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::ampere {

Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                    void* stream);

}  // namespace fa3::ampere

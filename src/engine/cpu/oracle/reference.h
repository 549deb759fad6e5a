// SPDX-License-Identifier: Apache-2.0
//
// Attention as the textbook has it, in double precision: the oracle, meant to be read.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::cpu {

Status plan_reference_forward(const Problem& problem, Plan* plan);
Status run_reference_forward(const Problem& problem, const Plan& plan, void* workspace, void*);
Status plan_reference_backward(const BackwardProblem& problem, Plan* plan);
Status run_reference_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                              void*);

}  // namespace fa3::cpu

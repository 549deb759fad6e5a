// SPDX-License-Identifier: Apache-2.0
//
// Two engines to compare with.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::cpu {

// Attention as the textbook has it, in double precision: the oracle, meant to be read.
Status plan_reference_forward(const Problem& problem, Plan* plan);
Status run_reference_forward(const Problem& problem, const Plan& plan, void* workspace, void*);
Status plan_reference_backward(const BackwardProblem& problem, Plan* plan);
Status run_reference_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                              void*);

// Standard attention: S and P stored whole, rounded to the input dtype, each step its own pass.
// The baseline whose O(N^2) memory and whose rounding error tiled attention is compared with.
Status plan_standard_forward(const Problem& problem, Plan* plan);
Status run_standard_forward(const Problem& problem, const Plan& plan, void* workspace, void*);
Status plan_standard_backward(const BackwardProblem& problem, Plan* plan);
Status run_standard_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                             void*);

}  // namespace fa3::cpu

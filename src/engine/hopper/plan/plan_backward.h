// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels for a backward problem, or says why there are none. plan_backward asks which
// GPU there is; everything else here is a pure function.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"
#include "engine/hopper/launch/launch_backward.h"

namespace fa3::hopper {

constexpr int kNoBackwardKernel = -1;

// The row of kBackwardTable for head dims, or kNoBackwardKernel.
int select_backward_kernel(int64_t head_dim, int64_t head_dim_v);

BackwardArguments arguments_of(const BackwardProblem& problem, void* workspace);

Status plan_backward(const BackwardProblem& problem, Plan* plan);
Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                    void* stream);

}  // namespace fa3::hopper

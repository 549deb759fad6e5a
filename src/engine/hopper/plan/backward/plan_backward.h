// SPDX-License-Identifier: Apache-2.0
// Plans a backward problem, or says why no kernel can. plan_backward asks which GPU there is. Next:
// run_backward.h.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"
#include "engine/hopper/config/sm90.h"

namespace fa3::hopper {

constexpr int kNoBackwardKernel = -1;

// The row of kBackwardTable for head dims, or kNoBackwardKernel.
int select_backward_kernel(int64_t head_dim, int64_t head_dim_v);

// The same of kMaskBackwardTable.
int select_mask_backward_kernel(int64_t head_dim, int64_t head_dim_v);

// The same of kWideBackwardTable, among those of a variant.
int select_wide_backward_kernel(int64_t head_dim, int64_t head_dim_v, Variant variant);

// The same of kDropoutBackwardTable.
int select_dropout_backward_kernel(int64_t head_dim, int64_t head_dim_v, Variant variant);

Status plan_backward(const BackwardProblem& problem, Plan* plan);

}  // namespace fa3::hopper

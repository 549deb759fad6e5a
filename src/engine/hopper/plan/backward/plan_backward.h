// SPDX-License-Identifier: Apache-2.0
// Plans a backward problem, or says why no kernel can. plan_backward asks which GPU there is. Next:
// launch/launch_backward.h.
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

// The same of kPairBackwardTable, for a call whose mask is full: where the row for the head dims
// has one in pairs, and the keys leave no CTA of a pair without a key block.
int select_pair_backward_kernel(int64_t head_dim, int64_t head_dim_v, int64_t keys);

Status plan_backward(const BackwardProblem& problem, Plan* plan);

}  // namespace fa3::hopper

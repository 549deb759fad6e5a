// SPDX-License-Identifier: Apache-2.0
// Plans a backward problem, or says why no kernel can. plan_backward asks which GPU there is. Next:
// backward_plan.h.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::ampere {

// The row of kBackwardTable, or beside a block mask of kMaskBackwardTable, for head dims and a
// device's shared memory; or kNoKernel.
int select_backward_kernel(int64_t head_dim, int64_t head_dim_v, int smem_bytes);
int select_mask_backward_kernel(int64_t head_dim, int64_t head_dim_v, int smem_bytes);

Status plan_backward(const BackwardProblem& problem, Plan* plan);

}  // namespace fa3::ampere

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

// What rows of kDenseBackwardTable ask of a call.
struct DenseCall {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t group = 1;      // query heads that share keys
  int64_t key_heads = 1;  // of all batch entries
  bool is_causal = false;
  bool deterministic = false;
};

// The same of kDenseBackwardTable: a row for the head dims that is faster than that of
// kBackwardTable.
int select_dense_backward_kernel(int64_t head_dim, int64_t head_dim_v, const DenseCall& call);

Status plan_backward(const BackwardProblem& problem, Plan* plan);

}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
// Kernels without functions and calls without addresses, for tests of the backward's plans.
#pragma once

#include "engine/hopper/plan/backward/backward_plan.h"
#include "engine/hopper/plan/backward/plan_backward.h"
#include "engine/hopper/plan/plain_problem.h"

namespace fa3::hopper {

// A kernel instance without functions.
inline BackwardKernel kernel_for(int64_t head_dim, int64_t head_dim_v,
                                 Variant v = Variant::kDense) {
  const BackwardRow* const row =
      select_backward({.head_dim = head_dim, .head_dim_v = head_dim_v, .variant = v});
  BackwardKernel kernel{.config = row->kernel};
  if (kernel.config.can_split_steps()) kernel.splits.config = kernel.config.with_step_splits();
  return kernel;
}
inline BackwardKernel kernel_for(int64_t head_dim) {
  return kernel_for(head_dim, head_dim);
}

inline BackwardPlan plan_128(const BackwardCall& a, Variant v = Variant::kDense) {
  return plan_launches(kernel_for(128, 128, v), a, kSms);
}

inline BackwardCall call(int64_t batches, int64_t rows, int64_t heads) {
  BackwardCall a;
  a.q = {.batches = batches, .rows = rows, .heads = heads, .columns = 128};
  a.k = a.q;
  return a;
}

// Four kv heads, causal.
inline BackwardCall grouped(int64_t batches, int64_t rows, int64_t heads) {
  BackwardCall a = call(batches, rows, heads);
  a.k.heads = 4;
  a.mask.right = 0;
  return a;
}

}  // namespace fa3::hopper

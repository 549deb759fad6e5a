// SPDX-License-Identifier: Apache-2.0
// Plans a backward problem, or says why no kernel can. plan_backward asks which GPU there is. Next:
// launch/launch_backward.h.
#pragma once

#include <fa3/status.h>

#include <optional>

#include "core/plan.h"
#include "core/problem.h"
#include "engine/hopper/kernels/backward.h"

namespace fa3::hopper {

// A dense call, by what rows for some dense calls alone ask of it.
struct DenseCall {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t group = 1;      // query heads that share keys
  int64_t key_heads = 1;  // of all batch entries
  bool is_causal = false;
  bool has_sink = false;
  bool deterministic = false;
};

// What the choice of a backward kernel depends on.
struct BackwardWants {
  int64_t head_dim = 0, head_dim_v = 0;
  Variant variant = Variant::kDense;
  bool dropout = false;
  bool block_mask = false;
  bool wide = false;                    // gradients of keys, or those of queries, in float32
  std::optional<DenseCall> dense = {};  // none: the call is for no row of some dense calls
};

// The first row of kBackward that does it, or null.
const BackwardRow* select_backward(const BackwardWants& wants);

Status plan_backward(const BackwardProblem& problem, Plan* plan);

}  // namespace fa3::hopper

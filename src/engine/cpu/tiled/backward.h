// SPDX-License-Identifier: Apache-2.0
//
// Tiled backward pass, O(N) memory, bitwise repeatable: FlashAttention-3 Algorithm 3's five
// products over recomputed P. Reading order: gradient_tile.h, backward.cpp,
// simd/backward/gradient_products.h.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::cpu {

Status plan_backward(const BackwardProblem& problem, Plan* plan);
Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace, void*);

}  // namespace fa3::cpu

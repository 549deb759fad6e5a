// SPDX-License-Identifier: Apache-2.0
//
// The fast passes of the CPU engine: tiles, O(N) memory. Reading order: tile_shape.h (sizes),
// schedule.h (tasks), plan_forward.h, forward.cpp (runs tasks), and the kernels: simd/vector/
// (vector.h, convert.h, exp2.h, multiply.h, pack.h), then simd/forward/ (softmax.h, attend_block.h,
// attend_rows.h, write_rows.h).
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::cpu {

// Online softmax.
Status plan_forward(const Problem& problem, Plan* plan);
Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream);

// Bitwise repeatable: FlashAttention-3 Algorithm 3's five products over recomputed P. Reading
// order: gradient_tile.h, backward.cpp, simd/backward/gradient_products.h.
Status plan_backward(const BackwardProblem& problem, Plan* plan);
Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace, void*);

}  // namespace fa3::cpu

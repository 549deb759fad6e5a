// SPDX-License-Identifier: Apache-2.0
// Chooses the kernel for a forward problem, or says why there is none. plan_forward asks which GPU
// there is; everything else here is a pure function.
#pragma once

#include "core/plan.h"
#include "core/problem.h"
#include "engine/engine.h"
#include "engine/hopper/launch_forward.h"

namespace fa3::hopper {

constexpr int kNoRow = -1;

// What the choice of a row of kForwardTable depends on.
struct ForwardShape {
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t seqlen_q;
  int64_t seqlen_k;
};

// The row of kForwardTable for a shape, or kNoRow.
int choose_row(const ForwardShape& shape);

// What the kernels cannot do yet, in a sentence; OK if they can. Needs no GPU.
Status check_features(const Problem& problem);

// A problem's words in the kernels'. Shared with the backward.
bool is_causal(const MaskRule& mask);
Element element_of(DType dtype);
TensorSpan span_of(const Operand& operand, int64_t batches, int64_t rows, int64_t heads,
                   int64_t columns);

ForwardLaunch launch_of(const Problem& problem);

Status plan_forward(const Problem& problem, Plan* plan);
Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream);

}  // namespace fa3::hopper

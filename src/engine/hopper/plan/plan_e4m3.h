// SPDX-License-Identifier: Apache-2.0
// plan_forward.h for e4m3 queries, keys and values.
#pragma once

#include "core/plan.h"
#include "engine/hopper/launch/launch_e4m3.h"
#include "engine/hopper/plan/select_kernel.h"

namespace fa3::hopper {

// What no e4m3 kernel can do yet, in a sentence; OK if one can. Needs no GPU.
Status check_e4m3(const Problem& problem);

// The same of addresses and strides.
Status check_e4m3_layouts(const Problem& problem);

// The row of kE4m3Table for a shape and what its kernel must know of, or kNoKernel.
int select_e4m3_kernel(const ForwardShape& shape, Variant variant);

E4m3Launch e4m3_launch_of(const Problem& problem);

Status plan_e4m3(const Problem& problem, Plan* plan);
Status run_e4m3(const Problem& problem, const Plan& plan, void* workspace, void* stream);

}  // namespace fa3::hopper

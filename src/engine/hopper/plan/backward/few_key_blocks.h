// SPDX-License-Identifier: Apache-2.0
// Few key blocks: where they are a wave or two of CTAs at most, the longest one's time is the
// call's. Their steps are split over all SMs instead, as stream-K does with the last tiles of a
// product (Osama et al., arXiv 2301.03598, section 4).
#pragma once

#include "engine/hopper/plan/backward/backward_plan.h"

namespace fa3::hopper {

// The number of splits of all key blocks' steps; 1: they stay whole. Requires the plan's kernel,
// call and blocks. Causal groups of heads: backward_plan.cpp.
int splits_of_few(const BackwardPlan& plan, int num_sms);

}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
// What a call (cuda/host/forward_call.h) asks of the Hopper engine's kernels. Pure functions. Next:
// forward_plan.h.
#pragma once

#include "engine/cuda/host/forward_call.h"
#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

// Whether head dims are multiples of 16 bytes. TMA moves other rows too, if their strides are.
bool has_whole_copies(const Problem& problem);

// Whether O's rows are such that not every general kernel stores them.
bool has_other_rows(const Problem& problem);

// Whether keys must be copied row by row.
bool reads_single_rows(const KeyPlaces& places, const Lengths& keys);

// The least variant that can do the problem.
Variant variant_of(const Problem& problem);
// The least variant of kernels that walk lists, which have the rule in them.
Variant variant_of_lists(const Problem& problem);

}  // namespace fa3::hopper

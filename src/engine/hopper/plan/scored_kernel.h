// SPDX-License-Identifier: Apache-2.0
// What a score function changes in a kernel: stages of shared memory that it takes for itself, and
// what the kernel loads ahead of the scores. Next: launch/score_program.h, which compiles it.
#pragma once

#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/host/captured_tile.h"

namespace fa3::hopper {

// Whether the kernel can load tiles of a captured tensor.
bool takes_captured_tile(const Kernel& kernel);
bool takes_captured_tile(const BackwardConfig& kernel);

// The kernel for a function. captured: the tensor of which tiles could be loaded.
Kernel with_score(Kernel kernel, const fa3_score_function& score, int captured = kNoTile);

}  // namespace fa3::hopper

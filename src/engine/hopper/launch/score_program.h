// SPDX-License-Identifier: Apache-2.0
// The program of a kernel of this engine that takes a score function (cuda/jit/score_program.h).
#pragma once

#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/host/captured_tile.h"

namespace fa3::hopper {

// Whether the kernel can load tiles of a captured tensor.
bool takes_captured_tile(const Kernel& config);
bool takes_captured_tile(const BackwardConfig& config);

// captured: the number of the tensor of which it does.
cuda::Program score_program(const fa3_score_function& score, const Kernel& config,
                            int captured = kNoTile);

// The main kernel of the backward; its others know nothing of scores.
cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& config,
                            int captured = kNoTile);

// What these programs follow from.
cuda::ProgramKey score_key(const fa3_score_function& score, const Kernel& config,
                           int captured = kNoTile);
cuda::ProgramKey score_key(const fa3_score_function& score, const BackwardConfig& config,
                           int captured = kNoTile);

}  // namespace fa3::hopper

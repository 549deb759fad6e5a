// SPDX-License-Identifier: Apache-2.0
// The programs of kernels that are compiled at run time: with a score function
// (cuda/jit/score_program.h), or one of the catalogue's with a gate or the largest score
// (cuda/softmax/outputs.h).
#pragma once

#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/host/captured_tile.h"

namespace fa3::hopper {

// kernel: what with_score() makes of one (plan/forward_plan.h).
cuda::Program score_program(const fa3_score_function& score, const Kernel& kernel);

// The main kernel of the backward; its others know nothing of scores. captured: the number of the
// tensor of which it loads tiles.
cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& config,
                            int captured = kNoTile);

// What these programs follow from.
cuda::ProgramKey score_key(const fa3_score_function& score, const Kernel& kernel);
cuda::ProgramKey score_key(const fa3_score_function& score, const BackwardConfig& config,
                           int captured = kNoTile);

cuda::Program output_program(const Kernel& config);
cuda::ProgramKey output_key(const Kernel& config);

}  // namespace fa3::hopper

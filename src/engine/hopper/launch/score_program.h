// SPDX-License-Identifier: Apache-2.0
// The program of a kernel of this engine that takes a score function (cuda/jit/score_program.h).
#pragma once

#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/config/forward_config.h"

namespace fa3::hopper {

cuda::Program score_program(const fa3_score_function& score, const ForwardConfig& config);

// The main kernel of the backward; its others know nothing of scores.
cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& config);

}  // namespace fa3::hopper

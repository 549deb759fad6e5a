// SPDX-License-Identifier: Apache-2.0
// A score function of the caller's as a kernel of this engine: the program that NVRTC compiles, and
// what the kernel is given beside ForwardParams or BackwardParams. Next: cuda/jit/kernel_cache.h.
#pragma once

#include "core/problem.h"
#include "engine/cuda/jit/nvrtc.h"
#include "engine/cuda/softmax/score_gradient_params.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/config/forward_config.h"

namespace fa3::hopper {

cuda::Program score_program(const fa3_score_function& score, const ForwardConfig& config);

cuda::ScoreCaptures captures_of(const fa3_score_function& score);

// The main kernel of the backward; its others know nothing of scores.
cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& config);

cuda::ScoreGradientParams gradients_of(const fa3_score_function& score, float scale);

}  // namespace fa3::hopper

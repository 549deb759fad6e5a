// SPDX-License-Identifier: Apache-2.0
// A score function of the caller's as a kernel of this engine: the program that NVRTC compiles, and
// what the kernel is given beside ForwardParams. Next: cuda/jit/kernel_cache.h.
#pragma once

#include "core/problem.h"
#include "engine/cuda/jit/nvrtc.h"
#include "engine/cuda/softmax/score_captures.h"
#include "engine/hopper/config/forward_config.h"

namespace fa3::hopper {

cuda::Program score_program(const fa3_score_function& score, const ForwardConfig& config);

cuda::ScoreCaptures captures_of(const fa3_score_function& score);

}  // namespace fa3::hopper

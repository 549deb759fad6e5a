// SPDX-License-Identifier: Apache-2.0
// The programs of this engine's kernels with a score function (cuda/jit/score_program.h), and of
// those with a gate or max_logit (cuda/softmax/outputs.h), for a GPU of this compute capability.
#pragma once

#include "engine/ampere/config/backward_config.h"
#include "engine/ampere/config/forward_config.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/jit/score_program.h"

namespace fa3::ampere {

cuda::Program score_program(const fa3_score_function& score, const ForwardConfig& config,
                            const cuda::Capability& gpu);

// The main kernel of the backward; its others know nothing of scores.
cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& config,
                            const cuda::Capability& gpu);

// A kernel with outputs and without a score function.
cuda::Program output_program(const ForwardConfig& config, const cuda::Capability& gpu);

// What these programs follow from.
cuda::ProgramKey output_key(const ForwardConfig& config, const cuda::Capability& gpu);
cuda::ProgramKey score_key(const fa3_score_function& score, const ForwardConfig& config,
                           const cuda::Capability& gpu);
cuda::ProgramKey score_key(const fa3_score_function& score, const BackwardConfig& config,
                           const cuda::Capability& gpu);

}  // namespace fa3::ampere

// SPDX-License-Identifier: Apache-2.0
// The captured tensors of a score function with their gradients, as a backward kernel is given
// them. Next: score_gradient.cuh.
#pragma once

#include "engine/cuda/softmax/score_captures.h"

namespace fa3::cuda {

// What a backward pass is given: beside the tensors, their gradients, of the same extents.
struct ScoreGradientParams {
  struct Gradient {
    float* data;  // null: not wanted
    int stride[ScoreCaptures::kDims];
  };
  ScoreCaptures captures;
  Gradient gradients[ScoreCaptures::kMost];
  float scale;  // softmax scale
};

}  // namespace fa3::cuda

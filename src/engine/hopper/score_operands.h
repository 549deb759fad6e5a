// SPDX-License-Identifier: Apache-2.0
// What a forward kernel with a score function is given beside ForwardParams.
#pragma once

#include <cuda.h>

#include "engine/cuda/softmax/score_captures.h"
#include "engine/hopper/scheduler/tiles_together.h"

namespace fa3::hopper {

struct ScoreOperands {
  cuda::ScoreCaptures captures;
  CUtensorMap captured_map;  // of the tensor whose tiles the kernel loads, if it does
  TilesTogether together;    // where sequences have one length, and no lists
  // For products that begin with what the function adds to the score: the softmax scale * log2(e),
  // and what the scale is divided out by.
  float scale_log2;
  float inverse_scale;
};

}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
// The sinks' gradients, from what preprocess has summed for each query block.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/hopper/backward/backward_params.h"

namespace fa3::hopper {

struct SinkSums {
  const float* sums;  // of query blocks, as QueryScratch numbers them; zero where there is none
  int batches;        // of QueryScratch
  int heads;
  int q_blocks;
  float* d_sink;  // one for each query head
};

// Queues a launch behind preprocess: a CTA a head.
cudaError_t sum_sink_gradients(const SinkSums& sums, cudaStream_t stream);

}  // namespace fa3::hopper

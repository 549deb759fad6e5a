// SPDX-License-Identifier: Apache-2.0
// The sinks' gradients, from what preprocess has summed for each query block.
#pragma once

#include <cuda_runtime_api.h>

namespace fa3::cuda {

struct SinkSums {
  const float* sums;  // by query block, in QueryScratch's order; zero for blocks without rows
  int batches;        // QueryScratch's batch entries
  int heads;
  int q_blocks;
  float* d_sink;  // one for each query head
};

// Queues a launch behind preprocess: a CTA for each head.
cudaError_t sum_sink_gradients(const SinkSums& sums, cudaStream_t stream);

}  // namespace fa3::cuda

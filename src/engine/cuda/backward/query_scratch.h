// SPDX-License-Identifier: Apache-2.0
// What the kernels of a backward pass leave each other for each block of query rows, in the
// workspace, and where. Next: query_steps.h.
#pragma once

#include "engine/cuda/backward/query_steps.h"

namespace fa3::cuda {

// Numbers of blocks of rows, over all heads and batch entries.
struct BlockNumbers {
  int of_head;
  int heads;

  FA3_HD constexpr int64_t block(int batch, int head, int block) const {
    return (int64_t{batch} * heads + head) * of_head + block;
  }
  FA3_HD constexpr int64_t block(const ScratchPlace& place, int head, int block) const {
    return this->block(place.batch, head, place.first_block + block);
  }
};

// By query block: what preprocess leaves for the main kernel, and the main kernel for postprocess.
// Rows are padded to whole blocks.
struct QueryScratch {
  float* lse_log2;    // log-sum-exp in log2 units; padding +inf, so that its P is zero
  float* delta;       // rowsum(dO * O) - dLSE, FlashAttention-3's dPsum; padding 0
  float* dq_accum;    // blocks in an order that the kernels agree on
  int* dq_semaphore;  // how many key blocks have added to dQ; null: they add in any order
  BlockNumbers numbers;
};

}  // namespace fa3::cuda

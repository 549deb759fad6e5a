// SPDX-License-Identifier: Apache-2.0
// Hides keys: a score whose key a row must not see becomes -inf. Only edge blocks come here.
#pragma once

#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/softmax.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/fragment.h"

namespace fa3::hopper {

// `first_key` is that of the thread's first column: one comparison of a constant with a register for
// each score.
template <int Count>
__device__ __forceinline__ void mask_scores(float (&scores)[Count], const int (&key_limits)[2],
                                            int first_key) {
  int limit[kRowsPerThread];
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    limit[row] = key_limits[row] - first_key;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    if (tile::fragment_column(i) >= limit[fragment_row_slot(i)]) scores[i] = -kInfinity;
  }
}

// Scores of key block `block` for a warpgroup's rows, whose blocks are `blocks`.
template <int Keys>
__device__ __forceinline__ void mask_block(float (&scores)[Keys / 2], const ForwardParams& params,
                                           const KeyBlocks& blocks, int block) {
  if (block < blocks.masked_from) return;
  const int thread = int(ptx::tid_x() % kWarpgroupSize);
  const int row = tile::fragment_row(thread);
  int key_limits[kRowsPerThread];
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int query = (row + r * tile::kRowDistance) >> params.pack_log2;
    const int limit = blocks.first_limit + query;
    key_limits[r] = limit < params.seqlen_k ? limit : params.seqlen_k;
  }
  mask_scores(scores, key_limits, block * Keys + tile::fragment_lane_column(thread));
}

}  // namespace fa3::hopper

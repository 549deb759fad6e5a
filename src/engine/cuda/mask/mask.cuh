// SPDX-License-Identifier: Apache-2.0
// The mask: hides keys in the blocks that core/mask/key_blocks.h calls masked. A score becomes -inf
// if its row must not see its key.
#pragma once

#include "engine/cuda/mask/right_edge.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/cuda/tile/rows.h"

namespace fa3::cuda {

// Masks the scores of the keys from `first_key` up and of the 16 rows of `thread`'s warp.
template <class Edge, int Count>
__device__ __forceinline__ void mask_scores(float (&scores)[Count], const Edge& edge, PackGqa pack,
                                            int thread, int first_key) {
  const int row = fragment_row(thread);
  const int lane_key = first_key + fragment_lane_column(thread);
  // Counted from the thread's first column, so that they are compared with constants.
  int begin[kRowsPerThread], end[kRowsPerThread];
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int query = pack.query(row + r * kRowDistance);
    if constexpr (Edge::kHidesRight) end[r] = edge.end_of(query) - lane_key;
    if constexpr (Edge::kHidesLeft) begin[r] = edge.begin_of(query) - lane_key;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const int column = fragment_column(i), r = fragment_row_index(i);
    bool hidden = false;
    if constexpr (Edge::kHidesRight) hidden = column >= end[r];
    if constexpr (Edge::kHidesLeft) hidden = hidden || column < begin[r];
    if (hidden) scores[i] = -kInfinity;
  }
}

}  // namespace fa3::cuda

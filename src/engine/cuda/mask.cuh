// SPDX-License-Identifier: Apache-2.0
// The mask policy: hides keys in the blocks that core/key_blocks.h calls masked. A score whose key a
// row must not see becomes -inf.
#pragma once

#include "engine/cuda/fragment.h"
#include "engine/cuda/right_edge.h"
#include "engine/cuda/rows.h"
#include "engine/cuda/softmax.cuh"

namespace fa3::cuda {

// Scores of the keys from `first_key` up, for the 16 rows of each warp that holds `thread`.
template <int Count>
__device__ __forceinline__ void mask_scores(float (&scores)[Count], const RightEdge& edge,
                                            HeadPack pack, int thread, int first_key) {
  const int row = fragment_row(thread);
  int end[kRowsPerThread];  // from the thread's first column, so that scores compare with constants
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    end[r] =
        edge.end_of(pack.query(row + r * kRowDistance)) - first_key - fragment_lane_column(thread);
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    if (fragment_column(i) >= end[fragment_row_slot(i)]) scores[i] = -kInfinity;
  }
}

}  // namespace fa3::cuda

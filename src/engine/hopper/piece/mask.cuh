// SPDX-License-Identifier: Apache-2.0
// Hides keys: a score whose key a row must not see becomes -inf. Only edge blocks come here.
#pragma once

#include "engine/hopper/piece/schedule.h"
#include "engine/hopper/piece/softmax.cuh"
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

}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
// The softmax step of e4m3's peaked rows, all of which have a reference: online_step() without a
// mask, whose first P are computed while the maximum is still looked for. Next: peaked_rows.h.
#pragma once

#include <cfloat>

#include "engine/cuda/softmax/softmax.cuh"

namespace fa3::cuda {

// The thread's first Early of P are computed against the reference that its own scores would give,
// in the shadow of the shuffles that find the row's, and multiplied afterwards. So they stand
// behind the thread's comparisons, which they would hold up, and are at most Score::kTop. Measured:
// docs/lab/fp8.md.
template <int Early, class Score, int Count>
__device__ __forceinline__ void max_tracking_step(float (&scores)[Count], RowState& rows,
                                                  const Score& score,
                                                  typename Score::Result& result) {
  constexpr int kSize = Count / Score::kGroups;
  static_assert(Early % 4 == 0);
  float max[kRowsPerThread];
  thread_max(scores, score, max);
  float own_ref[kRowsPerThread], finite_ref[kRowsPerThread];
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    own_ref[row] = fmaxf(fmaxf(rows.ref[row], score.reference(max[row])), -FLT_MAX);
    max[row] = quad_max(max[row]);
  }
  float early[kRowsPerThread] = {}, late[kRowsPerThread] = {};
#pragma unroll
  for (int group = 0; group < Score::kGroups; ++group) {
    float sums[kRowsPerThread][2] = {};
#pragma unroll
    for (int i = group * kSize; i < (group + 1) * kSize && i < Early; ++i) {
      const int row = fragment_row_index(i);
      scores[i] = ex2(score.exponent(group, row, scores[i], own_ref[row]));
      add_p<Score>(sums[row][i % 2], scores[i], i, group * kSize);
    }
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      if (group * kSize < Early) early[row] += score.unboosted(group, sums[row][0] + sums[row][1]);
    }
  }
  float to_row[kRowsPerThread];
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    result.rescale[row] = move_reference(rows.ref[row], max[row], score, finite_ref[row]);
    to_row[row] = ex2(own_ref[row] - finite_ref[row]);
    early[row] *= to_row[row];
  }
#pragma unroll
  for (int i = 0; i < Early; ++i) scores[i] *= to_row[fragment_row_index(i)];
#pragma unroll
  for (int group = 0; group < Score::kGroups; ++group) {
    float sums[kRowsPerThread][2] = {};
#pragma unroll
    for (int i = group * kSize; i < (group + 1) * kSize; ++i) {
      const int row = fragment_row_index(i);
      if (i < Early) continue;
      scores[i] = ex2(score.exponent(group, row, scores[i], finite_ref[row]));
      add_p<Score>(sums[row][i % 2], scores[i], i, group * kSize > Early ? group * kSize : Early);
    }
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      if ((group + 1) * kSize > Early) {
        late[row] += score.unboosted(group, sums[row][0] + sums[row][1]);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) result.block_sum[row] = early[row] + late[row];
}

}  // namespace fa3::cuda

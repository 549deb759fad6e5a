// SPDX-License-Identifier: Apache-2.0
// The softmax step of e4m3's peaked rows, all of which have a reference: online_step() without a
// mask, whose first P are computed while the maximum is still looked for. Next: peaked_rows.h.
#pragma once

#include "engine/cuda/softmax/softmax.cuh"

namespace fa3::cuda {

// The thread's first `Early` P are computed against the reference of before, while the maximum is
// looked for, and multiplied afterwards. Measured: docs/lab/fp8.md.
template <int Early, class Score, int Count>
__device__ __forceinline__ void max_tracking_step(float (&scores)[Count], RowState& rows,
                                                  const Score& score,
                                                  typename Score::Result& result) {
  constexpr int kSize = Count / Score::kGroups;
  static_assert(Early % 4 == 0);
  float max[kRowsPerThread];
  row_max(scores, score, max);
  float early[kRowsPerThread] = {}, late[kRowsPerThread] = {};
  float finite_ref[kRowsPerThread];
#pragma unroll
  for (int group = 0; group < Score::kGroups; ++group) {
    float sums[kRowsPerThread][2] = {};
#pragma unroll
    for (int i = group * kSize; i < (group + 1) * kSize && i < Early; ++i) {
      const int row = fragment_row_index(i);
      scores[i] = ex2(score.exponent(group, row, scores[i], rows.ref[row]));
      add_p<Score>(sums[row][i % 2], scores[i], i, group * kSize);
    }
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      if (group * kSize < Early) early[row] += score.unboosted(group, sums[row][0] + sums[row][1]);
    }
  }
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    result.rescale[row] = move_reference(rows.ref[row], max[row], score, finite_ref[row]);
    early[row] *= result.rescale[row];
  }
#pragma unroll
  for (int i = 0; i < Early; ++i) scores[i] *= result.rescale[fragment_row_index(i)];
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

// Whether the early P of a max-tracking step may have overflowed in this warp: then its scores are
// lost. Below this growth they, and a thread's sums of them, are at most 2^100 * Score::kTop *
// Early.
inline constexpr float kLeastKeptRescale = 0x1p-100f;

template <class Result>
__device__ __forceinline__ bool outgrown(const Result& result) {
  const bool within = fminf(result.rescale[0], result.rescale[1]) >= kLeastKeptRescale;
  return __any_sync(0xffffffff, !within);
}

// Scores are computed again by other instructions, whose roundings differ: the row's largest may be
// far below the reference that the lost ones have set. What was before them weighs nothing, so such
// rows are like rows that have seen no key.
template <class Result>
__device__ __forceinline__ void forget_outgrown_references(RowState& rows, const Result& result) {
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    if (!(result.rescale[row] >= kLeastKeptRescale)) rows.ref[row] = -kInfinity;
  }
}

}  // namespace fa3::cuda

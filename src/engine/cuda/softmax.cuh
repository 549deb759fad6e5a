// SPDX-License-Identifier: Apache-2.0
// Online softmax of one score block, in three forms that leave the same kind of state.
//
// A row keeps a reference `ref` (log2 units) and the sum of 2^(s - ref) over the keys seen so far,
// s being the scores in log2 units. Softmax does not depend on ref; it only must keep the weights
// in range. A row's largest weight is 1 (for e4m3: Score::kTop) where ref was taken from it, so
// that one key alone, or one that rules the row, gives its V unrounded.
//   ordinary  ref follows the row maximum: right for any scores, costs a max, two shuffles and a
//             rescale a block.
//   followed  the same for e4m3's peaked rows, all of which have a reference: no mask, and the
//   maximum is
//             looked for while the first weights are already taken.
//   guarded   ref stays. No max, no shuffle, no rescale: the block's weights are computed at once
//             and their sum, needed anyway, tells whether any grew too large. Then, and only then,
//             scale_back() moves ref to the largest weight. Weights that overflowed cannot be
//             scaled back: the caller computes the scores again and takes the ordinary step.
// The rules side by side with the CPU's: docs/numerics.md.
#pragma once

#include "engine/cuda/fragment.h"
#include "engine/cuda/instructions.cuh"

namespace fa3::cuda {

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.69314718055994531f;

// Up to here a weight's reciprocal is a normal number of fp32. The farther weights can be scaled
// back, the fewer scores are computed again, which takes several steps' time.
inline constexpr float kLargestScalable = 0x1p126f;

struct RowState {
  float ref[kRowsPerThread] = {-kInfinity, -kInfinity};  // -inf: no key seen
  float sum[kRowsPerThread] = {0.0f, 0.0f};              // this thread's columns only
};

// Block sums by row, and what the rows' earlier sums and outputs must be multiplied by.
struct StepResult {
  float block_sum[kRowsPerThread];
  float rescale[kRowsPerThread] = {1.0f, 1.0f};
};

// The same of weights whose guard looks at parts of the sums.
struct PartedStepResult : StepResult {
  float largest_part[kRowsPerThread];
};

__device__ __forceinline__ float guarded_sum(const StepResult& result, int row) {
  return result.block_sum[row];
}
__device__ __forceinline__ float guarded_sum(const PartedStepResult& result, int row) {
  return result.largest_part[row];
}

// What scale_back() multiplies: neither may have overflowed.
__device__ __forceinline__ float largest_sum(const StepResult& result, int row) {
  return result.block_sum[row];
}
__device__ __forceinline__ float largest_sum(const PartedStepResult& result, int row) {
  return max_nan(result.largest_part[row], result.block_sum[row]);
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// With two accumulators a row for each of the score's groups of keys.
template <class Score>
struct BlockSums {
  float part[kRowsPerThread][Score::kGroups][2] = {};

  __device__ __forceinline__ void store(const Score& score, typename Score::Result& result) const {
    for (int row = 0; row < kRowsPerThread; ++row) score.add_up(part[row], row, result);
  }
};

// scores [Begin, End) -> their weights against `ref`, of the thread's first rows.
template <int Begin, int End, int Rows = kRowsPerThread, class Score, int Count>
__device__ __forceinline__ void exponentiate(float (&scores)[Count], const float (&ref)[2],
                                             const Score& score, BlockSums<Score>& sums) {
#pragma unroll
  for (int i = Begin; i < End; ++i) {
    const int row = fragment_row_index(i), group = i / (Count / Score::kGroups);
    if (Rows < kRowsPerThread && row >= Rows) continue;
    scores[i] = ex2(score.exponent(group, row, scores[i], ref[row]));
    sums.part[row][group][i % 2] += scores[i];
  }
}

// Of the thread's values [begin, end), constants at every call. In two parts a row: one chain would
// wait for itself.
template <int Count>
__device__ __forceinline__ void partial_max(const float (&values)[Count], int begin, int end,
                                            float (&partial)[kRowsPerThread][2]) {
#pragma unroll
  for (int i = begin; i < end; ++i) {
    float& p = partial[fragment_row_index(i)][i % 2];
    p = i < begin + 4 ? values[i] : fmaxf(p, values[i]);
  }
}

template <int Rows = kRowsPerThread, int Count>
__device__ __forceinline__ void row_max(const float (&values)[Count],
                                        float (&max)[kRowsPerThread]) {
  float partial[kRowsPerThread][2];
  partial_max(values, 0, Count, partial);
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
    max[row] = quad_max(fmaxf(partial[row][0], partial[row][1]));
  }
}

// Of scores whose groups only compare as the hook says.
template <int Rows = kRowsPerThread, class Score, int Count>
__device__ __forceinline__ void row_max(const float (&scores)[Count], const Score& score,
                                        float (&max)[kRowsPerThread]) {
  if constexpr (Score::kGroups == 1) {
    row_max<Rows>(scores, max);
#pragma unroll
    for (int row = 0; row < Rows; ++row) max[row] = score.comparable(0, row, max[row]);
  } else {
    constexpr int kSize = Count / Score::kGroups;
#pragma unroll
    for (int group = 0; group < Score::kGroups; ++group) {
      float partial[kRowsPerThread][2];
      partial_max(scores, group * kSize, (group + 1) * kSize, partial);
#pragma unroll
      for (int row = 0; row < kRowsPerThread; ++row) {
        const float x = score.comparable(group, row, fmaxf(partial[row][0], partial[row][1]));
        max[row] = group == 0 ? x : fmaxf(max[row], x);
      }
    }
#pragma unroll
    for (float& x : max) x = quad_max(x);
  }
}

// To a larger maximum. Returns what weights against the old reference are multiplied by;
// `finite_ref` is what new ones are taken against.
template <class Score>
__device__ __forceinline__ float move_reference(float& ref, float max, const Score& score,
                                                float& finite_ref) {
  const float old_ref = ref;
  ref = fmaxf(old_ref, score.reference(max));
  // A row that has seen no key: 2^(-inf - 0) = 0, where -inf - -inf would be NaN.
  finite_ref = ref == -kInfinity ? 0.0f : ref;
  return ex2(old_ref - finite_ref);
}

// Of the thread's first rows; others are left as they are.
template <int Rows = kRowsPerThread, class Score, int Count>
__device__ __forceinline__ void online_step(float (&scores)[Count], RowState& rows,
                                            const Score& score, typename Score::Result& result) {
  float max[kRowsPerThread];
  row_max<Rows>(scores, score, max);
  float finite_ref[kRowsPerThread];
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
    result.rescale[row] = move_reference(rows.ref[row], max[row], score, finite_ref[row]);
  }
  BlockSums<Score> sums;
  exponentiate<0, Count, Rows>(scores, finite_ref, score, sums);
  sums.store(score, result);
}

// An ordinary step of rows that have a reference. The first Early of the thread's weights are taken
// against that one, in the shadow of the search for the maximum, and multiplied afterwards.
// Measured: docs/lab/fp8.md.
template <int Early, class Score, int Count>
__device__ __forceinline__ void max_tracking_step(float (&scores)[Count], RowState& rows,
                                                  const Score& score,
                                                  typename Score::Result& result) {
  constexpr int kSize = Count / Score::kGroups;
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
      sums[row][i % 2] += scores[i];
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
      sums[row][i % 2] += scores[i];
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

// Whether early weights of a followed step may have overflowed in this warp: then its scores are
// lost. Below this growth they, and a thread's sums of them, are at most 2^100 * Score::kTop *
// Early.
template <class Result>
__device__ __forceinline__ bool outgrown(const Result& result) {
  const bool within = fminf(result.rescale[0], result.rescale[1]) >= 0x1p-100f;
  return __any_sync(0xffffffff, !within);
}

// `meanwhile` is called once the first Early of the thread's weights are there.
template <int Early, class Score, int Count, class Meanwhile>
__device__ __forceinline__ void guarded_step(float (&scores)[Count], const RowState& rows,
                                             const Score& score, typename Score::Result& result,
                                             const Meanwhile& meanwhile) {
  BlockSums<Score> sums;
  exponentiate<0, Early>(scores, rows.ref, score, sums);
  meanwhile();
  exponentiate<Early, Count>(scores, rows.ref, score, sums);
  sums.store(score, result);
}

// Whether some row of this warp left the guarded step's range.
template <class Score>
__device__ __forceinline__ bool guard_fires(const typename Score::Result& result) {
  const bool within =  // NaN is not
      guarded_sum(result, 0) <= Score::kBound && guarded_sum(result, 1) <= Score::kBound;
  return __any_sync(0xffffffff, !within);
}

// Whether no weight of this warp overflowed, or nearly.
template <class Result>
__device__ __forceinline__ bool can_scale_back(const Result& result) {
  return __all_sync(0xffffffff, largest_sum(result, 0) <= kLargestScalable &&
                                    largest_sum(result, 1) <= kLargestScalable);
}

// Moves ref of the rows out of range to their largest weight, which becomes Score::kTop; other rows
// are multiplied by exactly one.
template <class Score, int Count>
__device__ __forceinline__ void scale_back(float (&weights)[Count], RowState& rows,
                                           typename Score::Result& result) {
  float max[kRowsPerThread];
  row_max(weights, max);
  const unsigned quad = 0xfu << (threadIdx.x % kWarpSize & ~3u);
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    const bool within = guarded_sum(result, row) <= Score::kBound;
    const bool fired = (__ballot_sync(0xffffffff, !within) & quad) != 0;
    result.rescale[row] = fired ? Score::kTop * rcp(max[row]) : 1.0f;
    result.block_sum[row] *= result.rescale[row];
    if (fired) rows.ref[row] += lg2(max[row]) - Score::kTopLog2;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) weights[i] *= result.rescale[fragment_row_index(i)];
}

}  // namespace fa3::cuda

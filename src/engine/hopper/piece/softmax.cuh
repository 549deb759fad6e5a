// SPDX-License-Identifier: Apache-2.0
// Online softmax of one score block, in two forms that leave the same kind of state.
//
// A row keeps a reference `ref` (a whole number, in log2 units) and the sum of 2^(c s - ref) over
// the keys seen so far, c = scale * log2(e). Softmax does not depend on ref; it only must keep the
// weights in range.
//   ordinary  ref follows the row maximum: correct for any scores, costs a max, two shuffles and a
//             rescale a block.
//   guarded   ref stays. No max, no shuffle, no rescale: the block's weights are computed at once
//             and their sum, needed anyway, tells whether any grew too large. Then, and only then,
//             correct() moves ref up by a whole number, an exact scaling by a power of two.
// What correct() cannot hold (beyond 2^100, infinities, NaN) it reports; the tile is then done again
// with ordinary steps only. The rules side by side with the CPU's: docs/numerics.md.
#pragma once

#include "engine/hopper/ptx/math.cuh"
#include "engine/hopper/tile/fragment.h"

namespace fa3::hopper {

using tile::fragment_row_slot;
using tile::kRowsPerThread;

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kLn2 = 0.69314718055994531f;

// A weight of the guarded step must survive packing to fp16 (65504) and sums in fp32. A thread adds
// block_n / 4 weights a row, so each is at most this bound: 256 on average, at most 256 * 256 / 4.
template <int Keys>
constexpr float kBlockSumBound = 256.0f * Keys / 4;

// Beyond this, 2^-k and the products with it leave fp32's comfortable range.
inline constexpr float kCorrectableSum = 0x1p100f;

struct RowState {
  float ref[kRowsPerThread] = {-kInfinity, -kInfinity};
  float sum[kRowsPerThread] = {0.0f, 0.0f};  // this thread's columns only
};

// Block sums by row, and what the rows' earlier sums and outputs must be multiplied by.
struct StepResult {
  float block_sum[kRowsPerThread];
  float rescale[kRowsPerThread] = {1.0f, 1.0f};
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// With two accumulators a row.
struct BlockSums {
  float part[kRowsPerThread][2] = {};

  __device__ __forceinline__ float of(int row) const { return part[row][0] + part[row][1]; }
};

// scores [Begin, End) -> 2^(scale_log2 * score - ref).
template <int Begin, int End, int Count>
__device__ __forceinline__ void exponentiate(float (&scores)[Count], const float (&ref)[2],
                                             float scale_log2, BlockSums& sums) {
#pragma unroll
  for (int i = Begin; i < End; ++i) {
    const int row = fragment_row_slot(i);
    scores[i] = ptx::ex2(__fmaf_rn(scores[i], scale_log2, -ref[row]));
    sums.part[row][i % 2] += scores[i];
  }
}

template <int Count>
__device__ __forceinline__ void row_max(const float (&values)[Count], float (&max)[2]) {
  float partial[kRowsPerThread][2];
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    float& p = partial[fragment_row_slot(i)][i % 2];
    p = i < 4 ? values[i] : fmaxf(p, values[i]);
  }
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    max[row] = quad_max(fmaxf(partial[row][0], partial[row][1]));
  }
}

template <int Count>
__device__ __forceinline__ void ordinary_step(float (&scores)[Count], RowState& rows,
                                              float scale_log2, StepResult& result) {
  float max[kRowsPerThread];
  row_max(scores, max);
  float finite_ref[kRowsPerThread];
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    const float old_ref = rows.ref[row];
    rows.ref[row] = fmaxf(old_ref, ceilf(max[row] * scale_log2));
    // A row that has seen no key: 2^(-inf - 0) = 0, where -inf - -inf would be NaN.
    finite_ref[row] = rows.ref[row] == -kInfinity ? 0.0f : rows.ref[row];
    result.rescale[row] = ptx::ex2(old_ref - finite_ref[row]);
  }
  BlockSums sums;
  exponentiate<0, Count>(scores, finite_ref, scale_log2, sums);
  result.block_sum[0] = sums.of(0);
  result.block_sum[1] = sums.of(1);
}

// `meanwhile` is called once the first Early of the thread's weights are there.
template <int Early, int Count, class Meanwhile>
__device__ __forceinline__ void guarded_step(float (&scores)[Count], const RowState& rows,
                                             float scale_log2, StepResult& result,
                                             const Meanwhile& meanwhile) {
  BlockSums sums;
  exponentiate<0, Early>(scores, rows.ref, scale_log2, sums);
  meanwhile();
  exponentiate<Early, Count>(scores, rows.ref, scale_log2, sums);
  result.block_sum[0] = sums.of(0);
  result.block_sum[1] = sums.of(1);
}

// Whether some row of this warp left the guarded step's range. Written so that NaN says yes.
template <int Keys>
__device__ __forceinline__ bool needs_correction(const StepResult& result) {
  const bool within =
      result.block_sum[0] <= kBlockSumBound<Keys> && result.block_sum[1] <= kBlockSumBound<Keys>;
  return __any_sync(0xffffffff, !within);
}

// Moves ref of the rows out of range up to their largest weight and scales those weights; other
// rows are multiplied by exactly one. Returns false when some row is beyond correction.
template <int Keys, int Count>
__device__ __forceinline__ bool correct(float (&weights)[Count], RowState& rows,
                                        StepResult& result) {
  float max[kRowsPerThread];
  row_max(weights, max);
  bool correctable = true;
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    const float sum = result.block_sum[row];
    const unsigned quad = 0xfu << (threadIdx.x % kWarpSize & ~3u);
    const bool fired = (__ballot_sync(0xffffffff, !(sum <= kBlockSumBound<Keys>)) & quad) != 0;
    const bool beyond = __any_sync(0xffffffff, !(sum <= kCorrectableSum));
    correctable = correctable && !beyond;
    const float shift = fired && !beyond ? ceilf(ptx::lg2(max[row])) : 0.0f;
    result.rescale[row] = ptx::ex2(-shift);
    result.block_sum[row] *= result.rescale[row];
    rows.ref[row] += shift;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) weights[i] *= result.rescale[fragment_row_slot(i)];
  return correctable;
}

}  // namespace fa3::hopper

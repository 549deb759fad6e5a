// SPDX-License-Identifier: Apache-2.0
// Online softmax of one score block, in three steps that leave the same kind of state.
//
// A row keeps a reference `ref` (log2 units) and the sum of P = 2^(s - ref) over the keys seen so
// far, s being the scores in log2 units. Softmax does not depend on ref; ref only must keep P in
// range. A row's largest P is Score::kTop, a power of two, where ref was taken from its score, so
// that one key alone, or one that dominates the row, gives its V unrounded.
//
//   online_step        ref follows the row maximum: right for any scores, at the cost of a max, two
//                      shuffles and a rescale a block.
//   max_tracking_step  the same for e4m3's peaked rows (max_tracking_step.cuh).
//   guarded_step       conditional (lazy) rescaling with an overflow guard: ref stays, so there is
//                      no max, no shuffle and no rescale. The block's sum of P, needed anyway,
//                      shows whether any P grew too large. Only then the guard fires and
//                      rescale_after_guard() moves ref to the largest P. Where P overflowed the
//                      scores are lost: the caller recomputes them and takes online_step().
//
// The rules side by side with the CPU's: docs/numerics.md.
#pragma once

#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/softmax/constants.h"

namespace fa3::cuda {

// The log-sum-exp, to base 2, of a sum of P whose largest begin at 2^TopLog2. The hardware's log2
// is exact at 1 and off by 2^-19 at 2^-24: counted from the top, one score of 0 has exactly 0.
template <int TopLog2>
__device__ __forceinline__ float log_sum(float ref, float sum) {
  if constexpr (TopLog2 == 0) return ref + lg2(sum);
  constexpr float kTop = TopLog2 < 0 ? 1.0f / float(1 << -TopLog2) : float(1 << TopLog2);
  return ref + float(TopLog2) + lg2(sum * (1.0f / kTop));
}

// Above this, the reciprocal of P is not a normal fp32 number. The larger P may grow, the fewer
// scores are recomputed, which takes as long as several steps.
inline constexpr float kLargestRescalable = 0x1p126f;

struct RowState {
  float ref[kRowsPerThread] = {-kInfinity, -kInfinity};  // -inf: no key seen
  float sum[kRowsPerThread] = {0.0f, 0.0f};              // this thread's columns only
};

// The block's sums of P by row, and what the rows' earlier sums and outputs are multiplied by.
struct StepResult {
  float block_sum[kRowsPerThread];
  float rescale[kRowsPerThread] = {1.0f, 1.0f};
};

__device__ __forceinline__ float guarded_sum(const StepResult& result, int row) {
  return result.block_sum[row];
}

// What rescale_after_guard() multiplies: neither may have overflowed.
__device__ __forceinline__ float largest_sum(const StepResult& result, int row) {
  return result.block_sum[row];
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Whether sums of P begin with their first number, or with zero: an addition less, but one that
// the compiler may start early.
template <class Score>
inline constexpr bool kLeanSums = requires {
  requires Score::kLeanSums;
};

// Number i of a thread joins the accumulator of its parity: the first one there is i < begin + 4.
template <class Score>
__device__ __forceinline__ void add_p(float& sum, float p, int i, int begin) {
  sum = kLeanSums<Score> && i < begin + 4 ? p : sum + p;
}

// Sums of P while they grow: two accumulators a row for each of the score's groups of keys.
template <class Score>
struct BlockSums {
  float part[kRowsPerThread][Score::kGroups][2] = {};

  __device__ __forceinline__ void store(const Score& score, typename Score::Result& result) const {
    for (int row = 0; row < kRowsPerThread; ++row) score.add_up(part[row], row, result);
  }
};

// Scores [Begin, End) of the thread's first rows become P against `ref`.
template <int Begin, int End, int Rows = kRowsPerThread, class Score, int Count>
__device__ __forceinline__ void exponentiate(float (&scores)[Count], const float (&ref)[2],
                                             const Score& score, BlockSums<Score>& sums) {
#pragma unroll
  for (int i = Begin; i < End; ++i) {
    constexpr int kSize = Count / Score::kGroups;
    const int row = fragment_row_index(i), group = i / kSize;
    if (Rows < kRowsPerThread && row >= Rows) continue;
    scores[i] = ex2(score.exponent(group, row, scores[i], ref[row]));
    add_p<Score>(sums.part[row][group][i % 2], scores[i], i, group * kSize);
  }
}

// The maximum of the thread's values [begin, end), constants at every call. In two parts a row: one
// chain would wait for itself.
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

// The maximum of scores whose groups are comparable only as the hook says.
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

// What P is computed against. A row that has seen no key: 2^(-inf - 0) = 0, where -inf - -inf would
// be NaN.
__device__ __forceinline__ float finite_reference(float ref) {
  return ref == -kInfinity ? 0.0f : ref;
}

// Moves `ref` to a larger maximum. Returns what P against the old reference is multiplied by;
// `finite_ref` is what new P is computed against.
template <class Score>
__device__ __forceinline__ float move_reference(float& ref, float max, const Score& score,
                                                float& finite_ref) {
  const float old_ref = ref;
  ref = fmaxf(old_ref, score.reference(max));
  finite_ref = finite_reference(ref);
  return ex2(old_ref - finite_ref);
}

// ---- Scores of any size ----
//
// The exponent of a score is one fused multiplication less a rounded reference, so it is off by
// half the reference's last bit: from large references on by so much that 2^x could be 0 or
// infinite.

// Below, the rounding leaves P at most 4 times as large. An infinite reference is not large: a row
// without keys has it, and infinite scores make NaN, as in standard attention.
__device__ __forceinline__ bool is_large(float ref) {
  constexpr uint32_t kLeast = 0x4c800000, kInfinite = 0x7f800000;  // 2^26
  return (__float_as_uint(ref) & 0x7fffffff) - kLeast < kInfinite - kLeast;
}
__device__ __forceinline__ bool any_is_large(const float (&ref)[kRowsPerThread]) {
  return __any_sync(0xffffffff, is_large(ref[0]) || is_large(ref[1]));
}

// Scores of rows with large references become distances from the row's largest, which are exact, so
// equal scores keep equal P. `finite_ref` becomes what P of the distances is computed against.
template <class Score, int Count>
__device__ __forceinline__ void rebase_large_rows(float (&scores)[Count],
                                                  const float (&max)[kRowsPerThread],
                                                  const Score& score,
                                                  float (&finite_ref)[kRowsPerThread]) {
  bool rebases[kRowsPerThread];
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    // Where the row sees a key of the block.
    rebases[row] = is_large(finite_ref[row]) && fabsf(max[row]) < kInfinity;
    if (rebases[row]) {
      finite_ref[row] = finite_ref[row] - score.reference(max[row]) - Score::kTopLog2;
    }
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const int row = fragment_row_index(i);
    if (rebases[row]) scores[i] = score.distance(row, scores[i], max[row]);
  }
}

// Takes the thread's first rows; others are left as they are. Without `Rebases` it returns whether
// some row of the warp has a large reference: then P is of no use.
template <int Rows = kRowsPerThread, bool Rebases = true, class Score, int Count>
__device__ __forceinline__ bool online_step(float (&scores)[Count], RowState& rows,
                                            const Score& score, typename Score::Result& result) {
  float max[kRowsPerThread] = {};
  row_max<Rows>(scores, score, max);
  float finite_ref[kRowsPerThread] = {};
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
    result.rescale[row] = move_reference(rows.ref[row], max[row], score, finite_ref[row]);
  }
  bool large = false;
  if constexpr (Score::kRebases) {
    large = any_is_large(finite_ref);
    if (Rebases && large) rebase_large_rows(scores, max, score, finite_ref);
  }
  BlockSums<Score> sums;
  exponentiate<0, Count, Rows>(scores, finite_ref, score, sums);
  sums.store(score, result);
  return !Rebases && large;
}

// `meanwhile` is called once the thread's first Early of P are there.
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

// Whether P of some row of this warp grew too large for the guarded step.
template <class Score>
__device__ __forceinline__ bool guard_fires(const typename Score::Result& result) {
  const bool within =  // NaN is not
      guarded_sum(result, 0) <= Score::kBound && guarded_sum(result, 1) <= Score::kBound;
  return __any_sync(0xffffffff, !within);
}

// Whether no P of this warp overflowed, or nearly.
template <class Result>
__device__ __forceinline__ bool can_rescale_after_guard(const Result& result) {
  return __all_sync(0xffffffff, largest_sum(result, 0) <= kLargestRescalable &&
                                    largest_sum(result, 1) <= kLargestRescalable);
}

// rescale_after_guard() where P begins far below 1. All rows move whose largest P has outgrown
// kTop: no guard has to fire for them. A factor may be too small for a float, so P is multiplied
// twice; earlier sums are then too small for a float, too.
template <class Score, int Count>
__device__ __forceinline__ void rescale_grown_rows(float (&p)[Count], RowState& rows,
                                                   typename Score::Result& result) {
  float max[kRowsPerThread], to_one[kRowsPerThread], to_top[kRowsPerThread];
  row_max(p, max);
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    const bool grown = max[row] > Score::kTop;
    to_one[row] = grown ? rcp(max[row]) : 1.0f;
    to_top[row] = grown ? Score::kTop : 1.0f;
    result.rescale[row] = to_one[row] * to_top[row];
    result.block_sum[row] = result.block_sum[row] * to_one[row] * to_top[row];
    if (grown) rows.ref[row] += lg2(max[row]) - Score::kTopLog2;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    p[i] = p[i] * to_one[fragment_row_index(i)] * to_top[fragment_row_index(i)];
  }
}

// Moves ref of the rows out of range to their largest P, which becomes Score::kTop; other rows are
// multiplied by exactly one.
template <class Score, int Count>
__device__ __forceinline__ void rescale_after_guard(float (&p)[Count], RowState& rows,
                                                    typename Score::Result& result) {
  if constexpr (Score::kTop < 1.0f) {
    rescale_grown_rows<Score>(p, rows, result);
    return;
  }
  float max[kRowsPerThread];
  row_max(p, max);
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
  for (int i = 0; i < Count; ++i) p[i] *= result.rescale[fragment_row_index(i)];
}

}  // namespace fa3::cuda

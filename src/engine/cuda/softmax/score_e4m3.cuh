// SPDX-License-Identifier: Apache-2.0
// The score hook of e4m3 products. Next: score.cuh.
#pragma once

#include "engine/cuda/softmax/softcap_score.cuh"

namespace fa3::cuda {

// With a guard that looks at parts of the sums.
struct PartedStepResult : StepResult {
  float largest_part[kRowsPerThread];
};

__device__ __forceinline__ float guarded_sum(const PartedStepResult& result, int row) {
  return result.largest_part[row];
}
__device__ __forceinline__ float largest_sum(const PartedStepResult& result, int row) {
  return max_nan(result.largest_part[row], result.block_sum[row]);
}

// The scales of a block of keys, by groups.
template <int Groups, bool Lean>
struct BlockScales {
  float factor[Groups];  // scales of q and k, softmax scale, log2(e)
  float boost[Groups];   // log2, at most 0
};
template <int Groups>
struct BlockScales<Groups, true> : BlockScales<Groups, false> {
  float unboost[Groups];  // 2^-boost
};

// The hook of e4m3 queries, keys and values, where each kDescaleRows keys have scales of their
// own. A key's scale acts in its exponent's factor. So does its value's, as `boost`: P is
// multiplied by that scale over the largest of the head, before it is rounded, and the row's sum
// takes that factor out again.
//
// P becomes e4m3, which ends at 448 and is exact for powers of two. The guard looks at sums of 8.
//
// LeanSums: sums of P begin with their first number (softmax.cuh), and 2^-boost is given.
template <int Groups, bool LeanSums = false>
struct DescaledScore : BlockScales<Groups, LeanSums> {
  static constexpr int kGroups = Groups;
  static constexpr bool kLeanSums = LeanSums;
  static constexpr float kTop = 32.0f;
  static constexpr float kTopLog2 = 5.0f;
  static constexpr float kBound = 448.0f;

  using BlockScales<Groups, LeanSums>::factor, BlockScales<Groups, LeanSums>::boost;

  template <int Count>
  __device__ __forceinline__ void prepare(float (&)[Count]) const {}

  static constexpr bool kRebases = false;  // measured: docs/lab/hopper.md
  __device__ __forceinline__ float exponent(int group, int, float product, float ref) const {
    return __fmaf_rn(product, factor[group], boost[group] - ref);
  }
  __device__ __forceinline__ float comparable(int group, int, float product) const {
    return __fmaf_rn(product, factor[group], boost[group]);
  }
  __device__ __forceinline__ float reference(float largest) const { return largest - kTopLog2; }

  // A group's sum of P as it counts in the row's sum.
  __device__ __forceinline__ float unboosted(int group, float sum) const {
    if constexpr (LeanSums) {
      return sum * this->unboost[group];
    } else {
      return sum * ex2(-boost[group]);
    }
  }

  using Result = PartedStepResult;
  __device__ __forceinline__ void add_up(const float (&parts)[Groups][2], int row,
                                         PartedStepResult& result) const {
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
      const float sum = unboosted(group, parts[group][0] + parts[group][1]);
      const float largest = max_nan(parts[group][0], parts[group][1]);
      result.block_sum[row] = group == 0 ? sum : result.block_sum[row] + sum;
      result.largest_part[row] = group == 0 ? largest : max_nan(result.largest_part[row], largest);
    }
  }
};

// DescaledScore with an optional softcap. Products become capped scores over their factor, so all
// that follows is as before.
template <int Groups>
struct CappedDescaledScore : DescaledScore<Groups> {
  SoftCap cap;  // in log2 units; its cap is 0 without one

  template <int Count>
  __device__ __forceinline__ void prepare(float (&products)[Count]) const {
    if (cap.cap == 0) return;
#pragma unroll
    for (int i = 0; i < Count; ++i) products[i] *= this->factor[i / (Count / Groups)];
    CappedScore{cap}.prepare(products);
    float inverse[Groups];
#pragma unroll
    for (int group = 0; group < Groups; ++group) inverse[group] = rcp(this->factor[group]);
#pragma unroll
    for (int i = 0; i < Count; ++i) products[i] *= inverse[i / (Count / Groups)];
  }
};

}  // namespace fa3::cuda

// SPDX-License-Identifier: Apache-2.0
// The score hook: from the products q.k, as the tensor cores leave them, to exponents of two, and
// the range of P. Softmax needs nothing else. prepare() sees a block's products once, before mask
// and softmax, and may leave something else in their place.
#pragma once

#include "engine/cuda/instructions.cuh"
#include "engine/cuda/soft_cap.h"
#include "engine/cuda/softmax.cuh"

namespace fa3::cuda {

struct ScaledScore {
  float scale_log2;  // softmax scale * log2(e)

  __device__ __forceinline__ void set_scale(float scale) { scale_log2 = scale; }

  template <int Count>
  __device__ __forceinline__ void prepare(float (&)[Count]) const {}

  // log2 of P of a product against a reference.
  __device__ __forceinline__ float exponent(float product, float ref) const {
    return __fmaf_rn(product, scale_log2, -ref);
  }
  // The reference against which this product has the largest P.
  __device__ __forceinline__ float reference(float product) const { return product * scale_log2; }
};

// The softcap of products with a scale of their own.
struct ScaledSoftCap {
  const SoftCap& unscaled;
  float cap = unscaled.cap;
  float to_fraction = 0, largest_small = 0, to_exponent = 0;

  __device__ __forceinline__ void set_scale(float scale) {
    to_fraction = unscaled.to_fraction * scale;
    to_exponent = unscaled.to_exponent * scale;
    largest_small = unscaled.largest_small / scale;
  }
  __device__ __forceinline__ float of_small(float product) const {
    return unscaled.of_fraction(product * to_fraction);
  }
};

// softcap * tanh(scale * product / softcap). Most blocks are small all over, so a warp looks once
// and takes the polynomial for all of its products, or the long way.
template <class Cap>
struct CappedScoreOf {
  Cap cap;

  __device__ __forceinline__ void set_scale(float scale) { cap.set_scale(scale); }

  template <int Count>
  __device__ __forceinline__ void prepare(float (&products)[Count]) const {
    float largest[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < Count; ++i) largest[i % 2] = fmaxf(largest[i % 2], fabsf(products[i]));
    // NaN is not the largest: either way keeps it.
    const bool small = fmaxf(largest[0], largest[1]) <= cap.largest_small;
    if (__all_sync(0xffffffff, small)) {
#pragma unroll
      for (float& product : products) product = cap.of_small(product);
    } else {
#pragma unroll
      for (float& product : products) product = of_any(product);
    }
  }

  __device__ __forceinline__ float exponent(float score, float ref) const {
    return score - ref;
  }
  __device__ __forceinline__ float reference(float score) const {
    return score;
  }

 private:
  __device__ __forceinline__ float of_any(float product) const {
    const float size = fabsf(product);
    const float capped = cap.cap - 2 * cap.cap * rcp(ex2(size * cap.to_exponent) + 1);
    return size <= cap.largest_small ? cap.of_small(product) : copysignf(capped, product);
  }
};

using CappedScore = CappedScoreOf<SoftCap>;

// A hook for P in 16 bits. P must survive packing to fp16 (65504) and sums in fp32: a thread adds
// keys / 4 of P a row, so each is at most the bound: 256 on average, at most 256 * 256 / 4.
template <class Score, int Keys>
struct ScoreOf16BitP : Score {
  static constexpr int kGroups = 1;    // of a block's keys, with numbers of their own
  static constexpr float kTop = 1.0f;  // the largest P, where the reference is taken from its score
  static constexpr float kTopLog2 = 0.0f;
  static constexpr float kBound = 256.0f * Keys / 4;  // on guarded_sum(): above, the guard fires

  // For a product of a group of keys, in one of the thread's rows.
  __device__ __forceinline__ float exponent(int, int, float product, float ref) const {
    return Score::exponent(product, ref);
  }
  // What reference() takes. The groups' largest products are compared by it.
  __device__ __forceinline__ float comparable(int, int, float product) const { return product; }

  using Result = StepResult;
  __device__ __forceinline__ void add_up(const float (&parts)[1][2], int row,
                                         StepResult& result) const {
    result.block_sum[row] = parts[0][0] + parts[0][1];
  }
};

// Hooks for P in 16 bits and products whose rows have factors of their own, beside the tile's.
template <int Keys>
struct RowScaledScore : ScoreOf16BitP<ScaledScore, Keys> {
  float factor[kRowsPerThread];

  __device__ __forceinline__ void set_scales(float tile, const float (&rows)[kRowsPerThread]) {
    // Not zero: masked scores are -inf.
    for (int row = 0; row < kRowsPerThread; ++row) factor[row] = fmaxf(tile * rows[row], 0x1p-126f);
  }

  __device__ __forceinline__ float exponent(int, int row, float product, float ref) const {
    return __fmaf_rn(product, factor[row], -ref);
  }
  __device__ __forceinline__ float comparable(int, int row, float product) const {
    return product * factor[row];
  }
  __device__ __forceinline__ float reference(float largest) const { return largest; }
};

template <int Keys>
struct RowScaledCappedScore : ScoreOf16BitP<CappedScoreOf<ScaledSoftCap>, Keys> {
  float factor[kRowsPerThread];

  __device__ __forceinline__ void set_scales(float tile, const float (&rows)[kRowsPerThread]) {
    this->set_scale(tile);
    for (int row = 0; row < kRowsPerThread; ++row) factor[row] = rows[row];
  }

  template <int Count>
  __device__ __forceinline__ void prepare(float (&products)[Count]) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) products[i] *= factor[fragment_row_index(i)];
    CappedScoreOf<ScaledSoftCap>::prepare(products);
  }
};

// The hook of e4m3 queries, keys and values, where each FA3_DESCALE_ROWS keys have scales of their
// own. A key's scale acts in its exponent's factor. So does its value's, as `boost`: P is
// multiplied by that scale over the largest of the head, before it is rounded, and the row's sum
// takes that factor out again.
//
// P becomes e4m3, which ends at 448 and is exact for powers of two. The guard looks at sums of 8.
template <int Groups>
struct DescaledScore {
  static constexpr int kGroups = Groups;
  static constexpr float kTop = 32.0f;
  static constexpr float kTopLog2 = 5.0f;
  static constexpr float kBound = 448.0f;

  float factor[Groups];  // scales of q and k, softmax scale, log2(e)
  float boost[Groups];   // log2, at most 0

  template <int Count>
  __device__ __forceinline__ void prepare(float (&)[Count]) const {}

  __device__ __forceinline__ float exponent(int group, int, float product, float ref) const {
    return __fmaf_rn(product, factor[group], boost[group] - ref);
  }
  __device__ __forceinline__ float comparable(int group, int, float product) const {
    return __fmaf_rn(product, factor[group], boost[group]);
  }
  __device__ __forceinline__ float reference(float largest) const { return largest - kTopLog2; }

  // A group's sum of P as it counts in the row's sum.
  __device__ __forceinline__ float unboosted(int group, float sum) const {
    return sum * ex2(-boost[group]);
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

// The same with an optional softcap. Products become capped scores over their factor, so that all
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

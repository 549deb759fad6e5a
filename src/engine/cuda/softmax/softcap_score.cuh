// SPDX-License-Identifier: Apache-2.0
// Soft-capped scores: the score hook (score.cuh).
#pragma once

#include "engine/cuda/softmax/score.cuh"
#include "engine/cuda/softmax/soft_cap.h"

namespace fa3::cuda {

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

// In a backward pass: the score hook, and the softcap's derivative: from 1 to 0 towards the cap.
struct SoftcapScore : CappedScore {
  float per_cap;

  __device__ __forceinline__ float derivative(float score) const {
    const float tanh = score * per_cap;
    return fmaxf(__fmaf_rn(-tanh, tanh, 1.0f), 0.0f);  // 0 where a score is masked, -inf
  }
};

}  // namespace fa3::cuda

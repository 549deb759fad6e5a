// SPDX-License-Identifier: Apache-2.0
// The score hook: from the products q.k, as the tensor cores leave them, to exponents of two. Softmax
// asks for nothing else. prepare() sees a block's products once, before mask and softmax, and may
// leave something else in their place.
#pragma once

#include "engine/cuda/instructions.cuh"
#include "engine/cuda/soft_cap.h"

namespace fa3::cuda {

struct ScaledScore {
  float scale_log2;  // softmax scale * log2(e)

  template <int Count>
  __device__ __forceinline__ void prepare(float (&)[Count]) const {}

  // log2 of the weight of a product against a reference.
  __device__ __forceinline__ float exponent(float product, float ref) const {
    return __fmaf_rn(product, scale_log2, -ref);
  }
  // The reference against which this product has weight 1.
  __device__ __forceinline__ float reference(float product) const { return product * scale_log2; }
};

// softcap * tanh(scale * product / softcap). Most blocks are small all over, so a warp looks once and
// takes the polynomial for all of its products, or the long way.
struct CappedScore {
  SoftCap cap;

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

}  // namespace fa3::cuda

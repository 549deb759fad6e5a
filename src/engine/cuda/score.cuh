// SPDX-License-Identifier: Apache-2.0
// The score hook: from the products q.k, as the tensor cores leave them, to exponents of two. Softmax
// asks for nothing else, so a variant (softcap, a factor for each block of keys) is another struct of
// these two functions.
#pragma once

namespace fa3::cuda {

struct ScaledScore {
  float scale_log2;  // softmax scale * log2(e)

  // log2 of the weight of a product against a reference.
  __device__ __forceinline__ float exponent(float product, float ref) const {
    return __fmaf_rn(product, scale_log2, -ref);
  }
  // The reference against which this product has weight 1.
  __device__ __forceinline__ float reference(float product) const { return product * scale_log2; }
};

}  // namespace fa3::cuda

// SPDX-License-Identifier: Apache-2.0
// Arithmetic the language has no word for: the hardware's 2^x, log2 and 1/x, and paired conversions.
#pragma once

#include <cstdint>

#include "engine/cuda/element.h"

namespace fa3::cuda {

__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ uint32_t cvt_f16x2(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <Element E>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  if constexpr (E == Element::kBf16) {
    return cvt_bf16x2(low, high);
  } else {
    return cvt_f16x2(low, high);
  }
}

}  // namespace fa3::cuda

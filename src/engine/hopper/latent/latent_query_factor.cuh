// SPDX-License-Identifier: Apache-2.0
// How query rows, which are bf16, become fp16 for products with keys of bytes: each is multiplied
// by the power of two that brings its largest number to 2^7..2^8.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/unpack.cuh"

namespace fa3::hopper {

// Exponents of floats, with their bias.
inline constexpr int kExponentBias = 127, kMantissaBits = 23;

// 2^(exponent - kExponentBias), for 1 to 254.
__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(uint32_t(exponent) << kMantissaBits);
}

// The exponent of a query row's largest number, as that of a finite one. `Lanes` neighbouring lanes
// have the row's numbers: a lane those in `chunks`.
template <int Lanes, int Chunks>
__device__ __forceinline__ int largest_exponent(const uint32_t (&chunks)[Chunks][4]) {
  float most = 0.0f;
#pragma unroll
  for (const uint32_t(&chunk)[4] : chunks) {
#pragma unroll
    for (const uint32_t pair : chunk) {
      float low, high;
      cuda::unpack_pair<cuda::Element::kBf16>(pair, low, high);
      most = fmaxf(most, fmaxf(fabsf(low), fabsf(high)));
    }
  }
#pragma unroll
  for (int distance = 1; distance < Lanes; distance *= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, distance));
  }
  return min(int(__float_as_uint(most) >> kMantissaBits), 2 * kExponentBias);
}

// The exponent of the factor that brings a row with this largest exponent to the top; and that of
// the factor's inverse. Infinity is left as it is, whatever the factor.
__device__ __forceinline__ int exponent_to_top(int largest) {
  constexpr int kTop = 7;
  return min(2 * kExponentBias + kTop - largest, 2 * kExponentBias - 1);
}
__device__ __forceinline__ int inverse_exponent(int exponent) {
  return 2 * kExponentBias - exponent;
}

template <cuda::Element E>
__device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, float factor) {
  float low, high;
  cuda::unpack_pair<cuda::Element::kBf16>(pair, low, high);
  return cuda::pack_pair<E>(low * factor, high * factor);
}

}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
// What the text of a score function may call: conversions, arithmetic and functions of numbers.
// Also compiles as plain C++: that is how text is tested on the host. Next: score_function.cuh.
#pragma once

#include "engine/cuda/softmax/score_captures.h"

#if !defined(__CUDACC__) && !defined(__device__)
#define __device__
#define __forceinline__ inline
#endif

namespace fa3::cuda {

namespace score {

__device__ __forceinline__ float from_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// Loaded numbers as the function computes with them: float, int or bool.
__device__ __forceinline__ float number_of(float x) {
  return x;
}
__device__ __forceinline__ float number_of(Bfloat x) {
  return from_bits(uint32_t{x.bits} << 16);
}
__device__ __forceinline__ float number_of(Half x) {
#ifdef __CUDACC__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return float(__builtin_bit_cast(_Float16, x.bits));
#endif
}
__device__ __forceinline__ double number_of(double x) {
  return x;
}
__device__ __forceinline__ bool number_of(bool x) {
  return x;
}
template <class Int>
__device__ __forceinline__ int number_of(Int x) {
  return int(x);
}

template <class T>
__device__ __forceinline__ T maximum(T a, T b) {
  return a != a ? a : b > a || b != b ? b : a;  // NaN, if either is
}
template <class T>
__device__ __forceinline__ T minimum(T a, T b) {
  return a != a ? a : b < a || b != b ? b : a;
}
template <class T>
__device__ __forceinline__ T absolute(T x) {
  return x < T(0) ? -x : x;
}
__device__ __forceinline__ float absolute(float x) {
  return fabsf(x);
}
template <class T>
__device__ __forceinline__ T sign(T x) {
  return T(x > T(0)) - T(x < T(0));
}

// Towards minus infinity, and 0 where the divisor is: integers have nothing else to be.
__device__ __forceinline__ int floor_div(int a, int b) {
  if (b == 0) return 0;
  if (b == -1) return int(0u - unsigned(a));
  const int quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}
__device__ __forceinline__ int truncated_div(int a, int b) {
  return b == 0 ? 0 : b == -1 ? int(0u - unsigned(a)) : a / b;
}
__device__ __forceinline__ int remainder(int a, int b) {
  if (b == 0 || b == -1) return 0;
  const int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
__device__ __forceinline__ float remainder(float a, float b) {
  return a - floorf(a / b) * b;
}
__device__ __forceinline__ int shift_left(int a, int b) {
  return b < 0 || b > 31 ? 0 : int(unsigned(a) << b);
}
__device__ __forceinline__ int shift_right(int a, int b) {
  return a >> (b < 0 || b > 31 ? 31 : b);
}
// For numbers below 2^22, two instructions of full rate, where a conversion has an eighth of it.
__device__ __forceinline__ float small_to_float(int x) {
  constexpr int kBits = 0x4b400000;  // 1.5 * 2^23, whose last place is 1
  return from_bits(uint32_t(kBits + x)) - from_bits(kBits);
}
__device__ __forceinline__ int to_int(float x) {
  return x >= 2147483648.0f    ? 2147483647
         : x >= -2147483648.0f ? int(x)
         : x != x              ? 0
                               : -2147483647 - 1;
}
__device__ __forceinline__ int to_int(bool x) {
  return x;
}

// By the hardware's 2^x and log2 on a GPU.
#ifdef __CUDACC__
__device__ __forceinline__ float exponential2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float logarithm2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Volatile: it is not to move behind the products that are waited for.
__device__ __forceinline__ uint32_t load_pair(const void* place) {
  uint32_t pair;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(pair) : "l"(place));
  return pair;
}
#else
inline uint32_t load_pair(const void* place) {
  const auto* const halves = static_cast<const uint16_t*>(place);
  return halves[0] | uint32_t{halves[1]} << 16;
}
inline float exponential2(float x) {
  return exp2f(x);
}
inline float logarithm2(float x) {
  return log2f(x);
}
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline float reciprocal(float x) {
  return 1.0f / x;
}
#endif
__device__ __forceinline__ float exponential(float x) {
  return exponential2(x * 1.44269504f);
}
__device__ __forceinline__ float logarithm(float x) {
  return logarithm2(x) * 0.693147181f;
}
__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal(1.0f + exponential(-x));
}
// Near zero an odd polynomial, within 1e-7 of itself (soft_cap.h): 1 - 2 / (e^2x + 1) cancels
// there.
constexpr float kNear = 0.4f;
__device__ __forceinline__ float tangent_near_zero(float x) {
  const float square = x * x;
  return x *
         (0.99999990f + square * (-0.33331362f + square * (0.13270977f + square * -0.047553603f)));
}
__device__ __forceinline__ float tangent_anywhere(float x) {
  const float size = absolute(x);
  const float large = 1.0f - 2.0f * reciprocal(exponential2(size * 2.88539008f) + 1.0f);
  return size <= kNear ? tangent_near_zero(x) : x < 0.0f ? -large : large;
}

}  // namespace score

}  // namespace fa3::cuda

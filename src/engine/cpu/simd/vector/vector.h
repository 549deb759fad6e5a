// SPDX-License-Identifier: Apache-2.0
//
// The vector vocabulary of the kernels: V is a register of floats. GCC and Clang vector extensions
// give one source for AVX-512, AVX2, SSE2 and NEON; intrinsics appear only where those have no
// word.
//
// Every file in simd/ is compiled once per instruction set, in the namespace FA3_ISA, and uses no
// function from outside: a shared inline function compiled here for AVX-512 could be the copy that
// the linker keeps for every CPU. Next: convert.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(FA3_NEON)
#include <arm_neon.h>
#endif

// Where instructions multiply pairs of bfloat16.
#if defined(__AVX512BF16__) || (defined(FA3_NEON) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC))
#define FA3_PAIRS
#endif

#define FA3_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define FA3_UNROLL _Pragma("unroll")
#else
#define FA3_UNROLL _Pragma("GCC unroll 32")
#endif

namespace fa3::cpu::FA3_ISA {

// kPanelVectors: vectors of keys (or value columns) that a micro-kernel call takes; see
// kRowsPerGroup in block_job.h for the register count.
#if defined(__AVX512F__)
constexpr int kWidth = 16, kPanelVectors = 4;
#elif defined(__AVX2__)
constexpr int kWidth = 8, kPanelVectors = 2;
#elif defined(__aarch64__)
constexpr int kWidth = 4, kPanelVectors = 4;
#else
constexpr int kWidth = 4, kPanelVectors = 2;
#endif
constexpr int kPanel = kWidth * kPanelVectors;

typedef float V __attribute__((vector_size(4 * kWidth)));
typedef int32_t VInt __attribute__((vector_size(4 * kWidth)));
typedef uint32_t VBits __attribute__((vector_size(4 * kWidth)));
typedef uint16_t VHalf __attribute__((vector_size(2 * kWidth)));
typedef int16_t VSignedHalf __attribute__((vector_size(2 * kWidth)));
typedef uint8_t VByte __attribute__((vector_size(kWidth)));
typedef int8_t VSignedByte __attribute__((vector_size(kWidth)));

constexpr float kInfinity = __builtin_inff();

FA3_INLINE V load(const float* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

FA3_INLINE void store(float* to, V v) {
  __builtin_memcpy(to, &v, sizeof(v));
}

// Broadcasts 32 bits, which may be a float or a pair of bfloat16: so never through arithmetic.
FA3_INLINE V broadcast_from(const float* from) {
  int32_t bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return (V)(VInt{} + bits);
}

FA3_INLINE V broadcast(float value) {
  return broadcast_from(&value);
}

// Returns `object` through an address that the compiler cannot follow: what is read through the
// result is read here, and not kept in registers across a micro-kernel that needs them all.
template <class T>
FA3_INLINE const T& reread(const T& object) {
  const T* address = &object;
  asm volatile("" : "+r"(address) : "m"(object));
  return *address;
}

FA3_INLINE V maximum(V a, V b) {
  return a > b ? a : b;
}

// Between `low` and `high`, or at most `high`; NaN stays NaN, because x86's min and max return
// their second operand then, Arm's return NaN, and the comparisons are false.
FA3_INLINE V clamp(V x, float low, float high) {
#if defined(__AVX512F__)
  return (V)_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), (__m512)x));
#elif defined(__AVX2__)
  return (V)_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), (__m256)x));
#elif defined(__SSE2__)
  return (V)_mm_min_ps(_mm_set1_ps(high), _mm_max_ps(_mm_set1_ps(low), (__m128)x));
#elif defined(FA3_NEON)
  return (V)vminq_f32(vdupq_n_f32(high), vmaxq_f32(vdupq_n_f32(low), (float32x4_t)x));
#else
  x = x < broadcast(low) ? broadcast(low) : x;
  return x > broadcast(high) ? broadcast(high) : x;
#endif
}

FA3_INLINE V at_most(V x, float high) {
#if defined(__AVX512F__)
  return (V)_mm512_min_ps(_mm512_set1_ps(high), (__m512)x);
#elif defined(__AVX2__)
  return (V)_mm256_min_ps(_mm256_set1_ps(high), (__m256)x);
#elif defined(__SSE2__)
  return (V)_mm_min_ps(_mm_set1_ps(high), (__m128)x);
#elif defined(FA3_NEON)
  return (V)vminq_f32(vdupq_n_f32(high), (float32x4_t)x);
#else
  return x > broadcast(high) ? broadcast(high) : x;
#endif
}

FA3_INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

FA3_INLINE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

FA3_INLINE int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

// 0, 1, 2, ...
FA3_INLINE VInt lane_numbers() {
  VInt lanes = {};
  FA3_UNROLL
  for (int i = 0; i < kWidth; ++i) lanes[i] = i;
  return lanes;
}

FA3_INLINE float lanes_max(V v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(FA3_NEON)
  return vmaxnmvq_f32((float32x4_t)v);
#else
  float max = v[0];
  FA3_UNROLL
  for (int i = 1; i < kWidth; ++i) max = v[i] > max ? v[i] : max;
  return max;
#endif
}

FA3_INLINE float lanes_sum(V v) {
  float lanes[kWidth];
  __builtin_memcpy(lanes, &v, sizeof(v));
  FA3_UNROLL
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Whether every lane is <= bound; a NaN is not.
FA3_INLINE bool all_at_most(V v, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(bound), _CMP_LE_OQ) == 0xffff;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(bound), _CMP_LE_OQ)) == 0xff;
#elif defined(FA3_NEON)
  return vminvq_u32(vcleq_f32((float32x4_t)v, vdupq_n_f32(bound))) != 0;
#else
  for (int i = 0; i < kWidth; ++i) {
    if (!(v[i] <= bound)) return false;
  }
  return true;
#endif
}

// a0 b0 a1 b1 ... of the lower (upper) halves of a and b.
#if defined(__AVX512F__)
FA3_INLINE V interleave_low(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
FA3_INLINE V interleave_high(V a, V b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}
#elif defined(__AVX2__)
FA3_INLINE V interleave_low(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
FA3_INLINE V interleave_high(V a, V b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
#else
FA3_INLINE V interleave_low(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
FA3_INLINE V interleave_high(V a, V b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
#endif

// rows[i][j] becomes rows[j][i]: log2(kWidth) perfect shuffles.
FA3_INLINE void transpose(V (&rows)[kWidth]) {
  FA3_UNROLL
  for (int stage = 1; stage < kWidth; stage *= 2) {
    V shuffled[kWidth];
    FA3_UNROLL
    for (int i = 0; i < kWidth / 2; ++i) {
      shuffled[2 * i] = interleave_low(rows[i], rows[i + kWidth / 2]);
      shuffled[2 * i + 1] = interleave_high(rows[i], rows[i + kWidth / 2]);
    }
    FA3_UNROLL
    for (int i = 0; i < kWidth; ++i) rows[i] = shuffled[i];
  }
}

// Lane i of the result is the sum of the lanes of rows[i].
FA3_INLINE V sums_of_rows(V (&rows)[kWidth]) {
  FA3_UNROLL
  for (int half = kWidth / 2; half > 0; half /= 2) {
    FA3_UNROLL
    for (int i = 0; i < half; ++i) {
      rows[i] = interleave_low(rows[i], rows[i + half]) + interleave_high(rows[i], rows[i + half]);
    }
  }
  return rows[0];
}

}  // namespace fa3::cpu::FA3_ISA

// SPDX-License-Identifier: Apache-2.0
//
// Vectors from and to the storage types. Rounding is to nearest even, as core/dtype.h defines it.
// Partial vectors touch exactly the elements that exist. Next: exp2.h.
#pragma once

#include "engine/cpu/simd/vector/vector.h"

namespace fa3::cpu::FA3_ISA {

enum class Float16 : uint16_t {};
enum class BFloat16 : uint16_t {};
enum class Float8 : uint8_t {};  // e4m3
enum class Float8E5M2 : uint8_t {};

template <class T>
FA3_INLINE VBits load_bits16(const T* from) {
#if defined(__AVX512F__)
  return (VBits)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  VHalf half;
  __builtin_memcpy(&half, from, sizeof(half));
  return __builtin_convertvector(half, VBits);
#endif
}

template <class T>
FA3_INLINE void store_bits16(T* to, VBits bits) {
  const VHalf half = __builtin_convertvector(bits, VHalf);
  __builtin_memcpy(to, &half, sizeof(half));
}

FA3_INLINE V load(const BFloat16* from) {
  return (V)(load_bits16(from) << 16);
}

FA3_INLINE V load(const Float16* from) {
#if defined(__AVX512F__)
  return (V)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return (V)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(FA3_NEON)
  float16x4_t half;
  __builtin_memcpy(&half, from, sizeof(half));
  return (V)vcvt_f32_f16(half);
#else
  // The product moves the exponent's bias and normalises subnormals; inf and NaN keep theirs.
  const VBits half = load_bits16(from);
  const VBits magnitude = (half & 0x7fff) << 13;
  const VBits finite = (VBits)((V)magnitude * 0x1p112f);
  const VBits special = (VBits)(magnitude >= VBits{} + 0x0f800000u);
  return (V)((half & 0x8000) << 16 | ((magnitude | 0x7f800000u) & special) | (finite & ~special));
#endif
}

// Codes of e4m3 as float16 bits: the same fields, whose exponent then counts from 2^-8 times its
// value.
#if defined(__AVX512F__)
FA3_INLINE V load_as_half(const Float8* from) {
  const __m256i wide =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));  // all but the copied sign
  return (V)_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), mask));
}
#elif defined(__F16C__)
FA3_INLINE V load_as_half(const Float8* from) {
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  const __m128i mask = _mm_set1_epi16(static_cast<int16_t>(0xbf80));
  return (V)_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), mask));
}
#elif defined(FA3_NEON)
FA3_INLINE V load_as_half(const Float8* from) {
  VSignedByte codes;
  __builtin_memcpy(&codes, from, sizeof(codes));
  const VHalf half = ((VHalf) __builtin_convertvector(codes, VSignedHalf) << 7) & 0xbf80;
  return (V)vcvt_f32_f16((float16x4_t)half);
}
#else
FA3_INLINE V load_as_half(const Float8* from) {
  VByte bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  const VInt code = __builtin_convertvector(bytes, VInt);
  const VInt magnitude = code & 0x7f;
  const VInt normal = (magnitude << 20) + (112 << 23);
  const VInt subnormal = (VInt)(__builtin_convertvector(magnitude, V) * 0x1p-17f);
  const VInt is_subnormal = magnitude < 8;
  return (V)((code & 0x80) << 24 | (subnormal & is_subnormal) | (normal & ~is_subnormal));
}
#endif

FA3_INLINE V load(const Float8* from) {
  constexpr float kNotANumber = 480.0f;  // what its code would be worth
  const V value = load_as_half(from) * 256.0f;
  const V size = (V)((VInt)value & 0x7fffffff);
  return size == broadcast(kNotANumber) ? broadcast(__builtin_nanf("")) : value;
}

// The upper byte of a float16.
FA3_INLINE V load(const Float8E5M2* from) {
#if defined(__AVX512F__)
  const __m256i wide =
      _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return (V)_mm512_cvtph_ps(_mm256_slli_epi16(wide, 8));
#elif defined(__F16C__)
  const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  return (V)_mm256_cvtph_ps(_mm_slli_epi16(wide, 8));
#elif defined(FA3_NEON)
  VByte codes;
  __builtin_memcpy(&codes, from, sizeof(codes));
  return (V)vcvt_f32_f16((float16x4_t)(__builtin_convertvector(codes, VHalf) << 8));
#else
  Float16 halves[kWidth];
  for (int64_t i = 0; i < kWidth; ++i) halves[i] = Float16(uint16_t(uint8_t(from[i])) << 8);
  return load(halves);
#endif
}

FA3_INLINE void store(BFloat16* to, V v) {
#if defined(FA3_NEON) && defined(FA3_PAIRS)
  const bfloat16x4_t half = vcvt_bf16_f32((float32x4_t)v);
  __builtin_memcpy(to, &half, sizeof(half));
#else
  const VBits bits = (VBits)v;
  const VBits is_nan = (VBits)(v != v);
  const VBits rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  store_bits16(to, ((bits >> 16 | 0x40) & is_nan) | (rounded & ~is_nan));
#endif
}

FA3_INLINE void store(Float16* to, V v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)v, 0));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)v, 0));
#elif defined(FA3_NEON)
  const float16x4_t half = vcvt_f16_f32((float32x4_t)v);
  __builtin_memcpy(to, &half, sizeof(half));
#else
  const VBits magnitude = (VBits)v & 0x7fffffffu;
  const VBits sign = (VBits)v >> 16 & 0x8000u;
  const VBits rebased = magnitude - ((127u - 15u) << 23);
  const VBits normal = (rebased + 0xfff + (rebased >> 13 & 1)) >> 13;
  // Adding 0.5 aligns a subnormal result to units of 2^-24.
  const VBits subnormal = (VBits)((V)magnitude + 0.5f) - 0x3f000000u;
  VBits half = magnitude < VBits{} + 0x38800000u ? subnormal : normal;
  half = magnitude >= VBits{} + 0x477ff000u ? VBits{} + 0x7c00u : half;
  half = magnitude > VBits{} + 0x7f800000u ? VBits{} + 0x7e00u : half;
  store_bits16(to, sign | half);
#endif
}

// The first `count` elements, 0 <= count <= kWidth; zeros after them.
template <class T>
FA3_INLINE V load_first(const T* from, int64_t count) {
  if (count >= kWidth) return load(from);
  T elements[kWidth] = {};
  for (int64_t i = 0; i < count; ++i) elements[i] = from[i];
  return load(elements);
}

template <class T>
FA3_INLINE void store_first(T* to, V v, int64_t count) {
  if (count >= kWidth) return store(to, v);
  T elements[kWidth];
  store(elements, v);
  for (int64_t i = 0; i < count; ++i) to[i] = elements[i];
}

}  // namespace fa3::cpu::FA3_ISA

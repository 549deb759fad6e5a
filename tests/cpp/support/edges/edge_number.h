// SPDX-License-Identifier: Apache-2.0
//
// Numbers of every element type as bytes: what edge calls hold, and what is looked for in outputs.
#pragma once

#include <fa3/fa3.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "support/random.h"

namespace fa3::test {

inline bool is_float8(fa3_dtype dtype) {
  return dtype == FA3_FLOAT8_E4M3 || dtype == FA3_FLOAT8_E5M2;
}

inline size_t size_of(fa3_dtype dtype) {
  return dtype == FA3_FLOAT32 || dtype == FA3_INT32 ? 4 : is_float8(dtype) ? 1 : 2;
}

// Four numbers of ordinary size, in every element type.
inline uint32_t some_number(Random& random, fa3_dtype dtype) {
  constexpr uint32_t kFloat32[] = {0x3f000000, 0xbf800000, 0x3e800000, 0x3fc00000};
  constexpr uint32_t kFloat16[] = {0x3800, 0xbc00, 0x3400, 0x3e00};
  constexpr uint32_t kE4m3[] = {0x30, 0xb8, 0x28, 0x3c};
  const int64_t i = random.below(4);
  if (dtype == FA3_FLOAT32) return kFloat32[i];
  if (dtype == FA3_FLOAT16) return kFloat16[i];
  if (dtype == FA3_FLOAT8_E5M2) return kFloat16[i] >> 8;
  return dtype == FA3_FLOAT8_E4M3 ? kE4m3[i] : kFloat32[i] >> 16;
}

inline bool is_nan(const std::byte* number, fa3_dtype dtype) {
  uint32_t bits = 0;
  std::memcpy(&bits, number, size_of(dtype));
  if (dtype == FA3_FLOAT32) return (bits & 0x7fffffff) > 0x7f800000;
  if (dtype == FA3_FLOAT16) return (bits & 0x7fff) > 0x7c00;
  if (dtype == FA3_BFLOAT16) return (bits & 0x7fff) > 0x7f80;
  return (bits & 0x7f) > (dtype == FA3_FLOAT8_E5M2 ? 0x7cu : 0x7eu);
}

inline bool is_zero(const std::byte* number, fa3_dtype dtype) {
  uint32_t bits = 0;
  std::memcpy(&bits, number, size_of(dtype));
  return bits << (33 - 8 * size_of(dtype)) == 0;
}

}  // namespace fa3::test

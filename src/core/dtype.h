// SPDX-License-Identifier: Apache-2.0
//
// Element types and their scalar conversions on the host. Rounding is to nearest, ties to even.
// Vector conversions belong to the engines; these are the definition that they must agree with.
#pragma once

#include <fa3/fa3.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace fa3 {

enum class DType : int32_t {
  float32 = FA3_FLOAT32,
  float16 = FA3_FLOAT16,
  bfloat16 = FA3_BFLOAT16,
  float8_e4m3 = FA3_FLOAT8_E4M3,
  int32 = FA3_INT32,
  float8_e5m2 = FA3_FLOAT8_E5M2,
};

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      return 1;
  }
  return 0;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float8_e4m3:
      return "float8_e4m3";
    case DType::float8_e5m2:
      return "float8_e5m2";
    case DType::int32:
      return "int32";
  }
  return "unknown dtype";
}

constexpr bool is_known(int32_t dtype) {
  return dtype >= FA3_FLOAT32 && dtype <= FA3_FLOAT8_E5M2;
}

// Numbers that stand for others by their scale (core/quantization.h).
constexpr bool is_float8(DType dtype) {
  return dtype == DType::float8_e4m3 || dtype == DType::float8_e5m2;
}

// Storage types: bits only, so that a tensor of them can never be used without a conversion.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
// 4 bits of exponent with bias 7, 3 of fraction: no infinity, up to 448; NaN is 0x7f and 0xff.
struct Float8E4M3 {
  uint8_t bits;
};
// 5 bits of exponent with bias 15, 2 of fraction: the upper half of a float16, infinity and NaN
// included; up to 57344.
struct Float8E5M2 {
  uint8_t bits;
};

inline float to_float(float value) {
  return value;
}

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}

inline float to_float(Float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // inf, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  }
  if (magnitude < 0x400u) {  // zero, subnormal: the value is magnitude * 2^-24, exact in float
    const float scaled = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -scaled : scaled;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

inline float to_float(Float8E4M3 value) {
  const uint32_t sign = uint32_t{value.bits & 0x80u} << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {  // zero, subnormal
    const float scaled = static_cast<float>(magnitude) * 0x1p-9f;
    return sign ? -scaled : scaled;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

inline float to_float(Float8E5M2 value) {
  return to_float(Float16{static_cast<uint16_t>(value.bits << 8)});
}

template <class T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
  return value;
}

template <>
inline BFloat16 from_float<BFloat16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

template <>
inline Float16 from_float<Float16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};   // NaN
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to inf
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 aligns the result to units of 2^-24
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u))};
  }
  const uint32_t rebased = magnitude - ((127u - 15u) << 23);
  return {static_cast<uint16_t>(sign | ((rebased + 0xfffu + (rebased >> 13 & 1u)) >> 13))};
}

// The code of the nearest number of 8 bits, `kFraction` of them for the fraction; `kLargest` beyond
// it. Magnitudes are those of floats.
template <uint32_t kFraction, uint32_t kSmallestNormal, uint32_t kLargest>
uint32_t round_to_float8(uint32_t magnitude) {
  constexpr uint32_t kDropped = 23 - kFraction;
  const uint32_t finite = magnitude < kLargest ? magnitude : kLargest;
  const uint32_t binade = finite & 0x7f800000u;
  const uint32_t exponent = binade > kSmallestNormal ? binade : kSmallestNormal;
  // Added to a float whose last bit is worth what the code's is there, the value is rounded to it.
  const float grid = std::bit_cast<float>(exponent + (kDropped << 23));
  const uint32_t steps =
      std::bit_cast<uint32_t>(std::bit_cast<float>(finite) + grid) - std::bit_cast<uint32_t>(grid);
  return ((exponent - kSmallestNormal) >> kDropped) + steps;
}

// Beyond 448 finite numbers saturate; infinity becomes NaN, for it stands for no number here.
template <>
inline Float8E4M3 from_float<Float8E4M3>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return {0x7fu};
  const uint32_t code = round_to_float8<3, 0x3c800000u, 0x43e00000u>(magnitude);  // 2^-6, 448
  return {static_cast<uint8_t>(code | (bits >> 24 & 0x80u))};
}

// Beyond 57344 finite numbers saturate; infinity and NaN stay what they are.
template <>
inline Float8E5M2 from_float<Float8E5M2>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7f800000u) return {0x7fu};
  if (magnitude == 0x7f800000u) return {static_cast<uint8_t>(sign | 0x7cu)};
  const uint32_t code = round_to_float8<2, 0x38800000u, 0x47600000u>(magnitude);  // 2^-14, 57344
  return {static_cast<uint8_t>(code | sign)};
}

// Calls `visit` with a value-initialised object of the C++ type that stores `dtype`.
// Not for float8, whose numbers mean nothing without their scale (core/quantization.h).
template <class Visitor>
decltype(auto) visit_dtype(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::float16:
      return visit(Float16{});
    case DType::bfloat16:
      return visit(BFloat16{});
    default:
      return visit(float{});
  }
}

}  // namespace fa3

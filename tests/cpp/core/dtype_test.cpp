// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace fa3::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value of a 16-bit float from its fields, as IEEE 754 defines it.
double value_of(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

struct Half {
  using Type = Float16;
  static constexpr int kExponentBits = 5, kFractionBits = 10;
};
struct Brain {
  using Type = BFloat16;
  static constexpr int kExponentBits = 8, kFractionBits = 7;
};

template <class Format>
class SixteenBits : public testing::Test {
 protected:
  using Type = typename Format::Type;
  static double definition(uint32_t bits) {
    return value_of(static_cast<uint16_t>(bits), Format::kExponentBits, Format::kFractionBits);
  }
  static constexpr uint32_t kInfinityBits = ((1u << Format::kExponentBits) - 1)
                                            << Format::kFractionBits;
  static uint32_t round(double value) { return from_float<Type>(static_cast<float>(value)).bits; }
};
using Formats = testing::Types<Half, Brain>;
TYPED_TEST_SUITE(SixteenBits, Formats);

TYPED_TEST(SixteenBits, every_pattern_has_its_ieee_value) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double want = this->definition(bits);
    const float got = to_float(typename TypeParam::Type{static_cast<uint16_t>(bits)});
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << std::hex << bits;
    } else {
      EXPECT_EQ(got, want) << std::hex << bits;
      EXPECT_EQ(std::signbit(got), std::signbit(want)) << std::hex << bits;
    }
  }
}

TYPED_TEST(SixteenBits, every_pattern_survives_a_round_trip) {
  using Type = typename TypeParam::Type;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(Type{static_cast<uint16_t>(bits)});
    const Type back = from_float<Type>(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(back))) << std::hex << bits;
    } else {
      EXPECT_EQ(back.bits, bits) << std::hex << bits;
    }
  }
}

// Between any two neighbours: just below the middle, the middle (a tie), just above it.
TYPED_TEST(SixteenBits, rounding_is_to_nearest_and_ties_go_to_even) {
  for (uint32_t bits = 0; bits < this->kInfinityBits; ++bits) {
    const double low = this->definition(bits);
    const double high = bits + 1 == this->kInfinityBits
                            ? 2 * low - this->definition(bits - 1)  // where infinity begins
                            : this->definition(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    if (double{middle} != (low + high) / 2) continue;  // bfloat16's smallest: not a float32
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (uint32_t sign : {0u, 0x8000u}) {
      const float s = sign != 0 ? -1.0f : 1.0f;
      EXPECT_EQ(this->round(s * middle), even | sign) << std::hex << bits;
      EXPECT_EQ(this->round(s * std::nextafter(middle, 0.0f)), bits | sign) << std::hex << bits;
      EXPECT_EQ(this->round(s * std::nextafter(middle, kInfinity)), (bits + 1) | sign)
          << std::hex << bits;
    }
  }
}

TYPED_TEST(SixteenBits, infinity_and_nan_keep_their_kind_and_sign) {
  using Type = typename TypeParam::Type;
  EXPECT_EQ(from_float<Type>(kInfinity).bits, this->kInfinityBits);
  EXPECT_EQ(from_float<Type>(-kInfinity).bits, this->kInfinityBits | 0x8000u);
  // NaNs whose payload lies only in the bits that rounding drops must not become infinity.
  for (uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffffffffu, 0x7fffffffu}) {
    const Type rounded = from_float<Type>(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(to_float(rounded))) << std::hex << bits;
    EXPECT_EQ(rounded.bits >> 15, bits >> 31) << std::hex << bits;
  }
}

TYPED_TEST(SixteenBits, rounding_is_monotonic_over_all_float32_exponents) {
  uint32_t previous = 0;
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 4099) {
    const uint32_t rounded = from_float<typename TypeParam::Type>(std::bit_cast<float>(bits)).bits;
    ASSERT_GE(rounded, previous) << std::hex << bits;
    previous = rounded;
  }
}

double value_of_e4m3(uint32_t code) {
  const double sign = code & 0x80 ? -1 : 1;
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, -9);
  return sign * std::ldexp(8 + fraction, exponent - 10);
}

uint32_t rounded_e4m3(float value) {
  return from_float<Float8E4M3>(value).bits;
}

TEST(Float8, every_code_has_its_value_and_survives_a_round_trip) {
  EXPECT_EQ(value_of_e4m3(0x7e), 448);
  for (uint32_t code = 0; code < 0x100; ++code) {
    const float got = to_float(Float8E4M3{static_cast<uint8_t>(code)});
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(got)) << std::hex << code;
      continue;
    }
    EXPECT_EQ(got, value_of_e4m3(code)) << std::hex << code;
    EXPECT_EQ(std::signbit(got), code >= 0x80) << std::hex << code;
    EXPECT_EQ(rounded_e4m3(got), code) << std::hex << code;
  }
}

TEST(Float8, rounding_is_to_nearest_and_ties_go_to_even) {
  for (uint32_t code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((value_of_e4m3(code) + value_of_e4m3(code + 1)) / 2);
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    for (uint32_t sign : {0u, 0x80u}) {
      const float s = sign != 0 ? -1.0f : 1.0f;
      EXPECT_EQ(rounded_e4m3(s * middle), even | sign) << std::hex << code;
      EXPECT_EQ(rounded_e4m3(s * std::nextafter(middle, 0.0f)), code | sign) << std::hex << code;
      EXPECT_EQ(rounded_e4m3(s * std::nextafter(middle, kInfinity)), (code + 1) | sign)
          << std::hex << code;
    }
  }
}

TEST(Float8, large_numbers_saturate_and_what_is_not_finite_is_nan) {
  for (float large : {448.1f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(rounded_e4m3(large), 0x7eu) << large;
    EXPECT_EQ(rounded_e4m3(-large), 0xfeu) << large;
  }
  for (float special : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
    EXPECT_EQ(rounded_e4m3(special), 0x7fu) << special;
  }
  EXPECT_EQ(rounded_e4m3(0x1p-140f), 0u);
  EXPECT_EQ(rounded_e4m3(-0x1p-140f), 0x80u);
}

uint32_t rounded_e5m2(float value) {
  return from_float<Float8E5M2>(value).bits;
}

double value_of_e5m2(uint32_t code) {
  const int exponent = code >> 2 & 31, fraction = code & 3;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -16) : std::ldexp(4 + fraction, exponent - 17);
  return code & 0x80 ? -magnitude : magnitude;
}

TEST(Float8E5M2, every_code_has_its_value_and_survives_a_round_trip) {
  EXPECT_EQ(value_of_e5m2(0x7b), 57344);
  for (uint32_t code = 0; code < 0x100; ++code) {
    const float got = to_float(Float8E5M2{static_cast<uint8_t>(code)});
    EXPECT_EQ(std::signbit(got), code >= 0x80) << std::hex << code;
    if ((code & 0x7f) > 0x7c) {
      EXPECT_TRUE(std::isnan(got)) << std::hex << code;
      continue;
    }
    EXPECT_EQ(rounded_e5m2(got), code) << std::hex << code;
    if ((code & 0x7f) == 0x7c) {
      EXPECT_TRUE(std::isinf(got)) << std::hex << code;
    } else {
      EXPECT_EQ(got, value_of_e5m2(code)) << std::hex << code;
    }
  }
}

TEST(Float8E5M2, rounding_is_to_nearest_and_ties_go_to_even) {
  for (uint32_t code = 0; code < 0x7b; ++code) {
    const auto middle = static_cast<float>((value_of_e5m2(code) + value_of_e5m2(code + 1)) / 2);
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    for (uint32_t sign : {0u, 0x80u}) {
      const float s = sign != 0 ? -1.0f : 1.0f;
      EXPECT_EQ(rounded_e5m2(s * middle), even | sign) << std::hex << code;
      EXPECT_EQ(rounded_e5m2(s * std::nextafter(middle, 0.0f)), code | sign) << std::hex << code;
      EXPECT_EQ(rounded_e5m2(s * std::nextafter(middle, kInfinity)), (code + 1) | sign)
          << std::hex << code;
    }
  }
}

TEST(Float8E5M2, large_numbers_saturate_and_what_is_not_finite_stays) {
  for (float large : {57345.0f, 61440.0f, 65536.0f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(rounded_e5m2(large), 0x7bu) << large;
    EXPECT_EQ(rounded_e5m2(-large), 0xfbu) << large;
  }
  EXPECT_EQ(rounded_e5m2(kInfinity), 0x7cu);
  EXPECT_EQ(rounded_e5m2(-kInfinity), 0xfcu);
  EXPECT_EQ(rounded_e5m2(std::nanf("")), 0x7fu);
}

TEST(DType, sizes_and_names_match_the_abi) {
  const std::vector<std::tuple<int32_t, int64_t, std::string>> all = {
      {FA3_FLOAT32, 4, "float32"},   {FA3_FLOAT16, 2, "float16"},
      {FA3_BFLOAT16, 2, "bfloat16"}, {FA3_FLOAT8_E4M3, 1, "float8_e4m3"},
      {FA3_INT32, 4, "int32"},       {FA3_FLOAT8_E5M2, 1, "float8_e5m2"}};
  for (const auto& [code, size, name] : all) {
    EXPECT_TRUE(is_known(code));
    EXPECT_EQ(size_of(static_cast<DType>(code)), size);
    EXPECT_EQ(name_of(static_cast<DType>(code)), name);
  }
  EXPECT_FALSE(is_known(-1));
  EXPECT_FALSE(is_known(FA3_FLOAT8_E5M2 + 1));
}

TEST(DType, visit_gives_the_storage_type) {
  EXPECT_EQ(visit_dtype(DType::float32, []<class T>(T) { return sizeof(T); }), 4u);
  EXPECT_TRUE(visit_dtype(DType::float16, []<class T>(T) { return std::is_same_v<T, Float16>; }));
  EXPECT_TRUE(visit_dtype(DType::bfloat16, []<class T>(T) { return std::is_same_v<T, BFloat16>; }));
}

}  // namespace
}  // namespace fa3::test

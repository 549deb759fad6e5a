// SPDX-License-Identifier: Apache-2.0
//
// Terms of keys as columns of an operand: three numbers of bf16 are all of a float32.
#include "engine/hopper/config/key_term.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace fa3::hopper {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

float from_bf16(uint32_t bits) {
  return std::bit_cast<float>(bits << 16);
}

// What a product with the ones adds up to, in float64.
double product_of(KeyTermWords term) {
  const uint32_t words[2] = {term.first, term.second};
  const uint32_t ones[2] = {kKeyTermOnes.first, kKeyTermOnes.second};
  double sum = 0;
  for (int column = 0; column < 4; ++column) {
    const int shift = column % 2 * 16;
    sum += double(from_bf16(words[column / 2] >> shift & 0xffff)) *
           double(from_bf16(ones[column / 2] >> shift & 0xffff));
  }
  return sum;
}

TEST(KeyTerm, KeepsAllBits) {
  std::mt19937 random(1);
  std::uniform_int_distribution<uint32_t> bits;
  std::vector<float> terms{0.0f, 1.0f, -1.0f, 0x1.fffffep0f, -0x1.fffffep127f, 0x1.000002p-60f};
  for (int i = 0; i < 100'000; ++i) {
    const float x = std::bit_cast<float>(bits(random));
    if (std::isfinite(x) && std::fabs(x) > 0x1p-100f) terms.push_back(x);
  }
  for (const float x : terms) EXPECT_EQ(product_of(key_term_words(x)), double(x)) << x;
}

TEST(KeyTerm, InfinityAndNanStayWhatTheyAre) {
  EXPECT_EQ(product_of(key_term_words(kInfinite)), kInfinite);
  EXPECT_EQ(product_of(key_term_words(-kInfinite)), -kInfinite);
  for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(product_of(key_term_words(std::bit_cast<float>(nan))))) << nan;
  }
}

TEST(KeyTerm, IsBoundedUnlessItHides) {
  for (const float x : {0.0f, -3.5f, kLargestTerm, -kLargestTerm, kInfinite, -kInfinite}) {
    EXPECT_EQ(bounded_term(x), x);
  }
  EXPECT_EQ(bounded_term(1e30f), kLargestTerm);
  EXPECT_EQ(bounded_term(-1e30f), -kLargestTerm);
  EXPECT_TRUE(std::isnan(bounded_term(std::numeric_limits<float>::quiet_NaN())));
}

// Fields count 16 bytes (PTX ISA, "matrix descriptor format").
TEST(KeyTerm, DescriptorsLeadToRowsAndZeros) {
  constexpr uint32_t kTerms = 0x1000, kZeros = 0x3000;
  const auto field = [](uint64_t descriptor, int first) {
    return uint32_t(descriptor >> first & 0x3fff) << 4;
  };
  const uint64_t terms = key_term_descriptor(kTerms, kZeros);
  EXPECT_EQ(field(terms, 0), kTerms);
  EXPECT_EQ(field(terms, 0) + field(terms, 16), kZeros);
  EXPECT_EQ(field(terms, 32), 8u * kKeyTermRowBytes);  // to the next eight keys
  const uint64_t ones = ones_descriptor(kTerms, kZeros);
  EXPECT_EQ(field(ones, 0) + field(ones, 16), kZeros);
  EXPECT_EQ(field(ones, 32), 0u);  // all rows are the same
  EXPECT_EQ(terms >> 62, 0u);      // no swizzle
  EXPECT_EQ(ones >> 62, 0u);
}

}  // namespace
}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
//
// Tiles bit for bit: the emulation against the instruction's definition (Intel's manual,
// TDPBF16PS), the instruction against the emulation.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "engine/cpu/kernels/isa.h"
#include "tile_program.h"

namespace fa3::cpu::test {
namespace {

constexpr int kSide = 32, kPairs = 16;

struct Product {
  std::vector<float> left, right, sums;  // factors are pairs of bfloat16
};

uint32_t bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}

float bf16_of_pair(float pair, int which) {
  return std::bit_cast<float>(bits_of(pair) << (which == 0 ? 16 : 0) & 0xffff0000u);
}

// Numbers of all sizes, some of them subnormal, whose products and sums are often subnormal too.
Product random_product(int seed, int smallest_exponent, int largest_exponent) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<uint32_t> bits;
  std::uniform_int_distribution<uint32_t> exponent(smallest_exponent, largest_exponent);
  const auto number = [&] { return (bits(random) & 0x807fffffu) | exponent(random) << 23; };
  const auto pair = [&] { return (number() & 0xffff0000u) | number() >> 16; };
  Product product;
  for (int i = 0; i < kSide * kPairs; ++i) {
    product.left.push_back(std::bit_cast<float>(pair()));
    product.right.push_back(std::bit_cast<float>(pair()));
  }
  for (int i = 0; i < kSide * kSide; ++i) product.sums.push_back(std::bit_cast<float>(number()));
  return product;
}

float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

// Element (row, column) after the product.
float defined_sum(const Product& p, int row, int column) {
  float chains[2] = {};
  for (int k = 0; k < kPairs; ++k) {
    for (int which : {0, 1}) {
      const float left = flushed(bf16_of_pair(p.left[row * kPairs + k], which));
      const float right =
          flushed(bf16_of_pair(p.right[(column / 16 * kPairs + k) * 16 + column % 16], which));
      chains[which] = flushed(std::fma(left, right, chains[which]));
    }
  }
  return flushed(flushed(p.sums[row * kSide + column]) + flushed(chains[0] + chains[1]));
}

constexpr int kOrdinary[] = {118, 136}, kTiny[] = {0, 130}, kSubnormal[] = {0, 70};

std::vector<Product> products() {
  std::vector<Product> all;
  for (const auto& range : {kOrdinary, kTiny, kSubnormal}) {
    for (int seed : {1, 2, 3}) all.push_back(random_product(seed, range[0], range[1]));
  }
  return all;
}

TEST(Tiles, emulated_round_as_defined) {
  if (find_kernels("avx512_bf16") == nullptr) GTEST_SKIP() << "this machine has no avx512_bf16";
  for (const Product& product : products()) {
    std::vector<float> sums = product.sums;
    multiply_emulated(product.left.data(), product.right.data(), sums.data());
    for (int i = 0; i < kSide * kSide; ++i) {
      ASSERT_EQ(bits_of(sums[i]), bits_of(defined_sum(product, i / kSide, i % kSide))) << i;
    }
  }
}

TEST(Tiles, of_the_machine_are_those_emulated) {
  if (find_kernels("amx") == nullptr) GTEST_SKIP() << "this machine has no amx";
  for (const Product& product : products()) {
    std::vector<float> sums = product.sums, emulated = product.sums;
    multiply_by_tiles(product.left.data(), product.right.data(), sums.data());
    multiply_emulated(product.left.data(), product.right.data(), emulated.data());
    for (int i = 0; i < kSide * kSide; ++i) {
      ASSERT_EQ(bits_of(sums[i]), bits_of(emulated[i])) << i;
    }
  }
}

}  // namespace
}  // namespace fa3::cpu::test

// SPDX-License-Identifier: Apache-2.0
//
// What Hopper's tensor cores make of a sum of e4m3 products, by 32 products a step: each addend,
// the sum so far among them, is cut towards zero at 13 bits below the exponent of the largest, and
// so is the result. Exponents of products are sums of their factors'. Measured errors of O and of
// the LSE are those of this model: docs/lab/fp8.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

#include "core/dtype.h"

namespace fa3::test {

inline constexpr int kKeptBits = 13;
inline constexpr int kProductsPerStep = 32;

inline float rounded_to_e4m3(double x) {
  return to_float(from_float<Float8E4M3>(static_cast<float>(x)));
}

inline std::vector<float> random_e4m3(size_t count, float mean, float deviation, unsigned seed) {
  std::mt19937 random{seed};
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> numbers(count);
  for (float& x : numbers) x = rounded_to_e4m3(normal(random));
  return numbers;
}

inline int exponent_of_e4m3(float x) {
  return std::max(std::ilogb(x), -6);  // of subnormal numbers too
}

inline double cut_below(double x, int exponent) {
  const double unit = std::ldexp(1.0, exponent - kKeptBits);
  return std::trunc(x / unit) * unit;
}

// `sum` and the products of a step.
inline double add_e4m3_products(double sum, std::span<const float> a, std::span<const float> b) {
  constexpr int kNone = -1000;
  int largest = sum == 0 ? kNone : std::ilogb(sum);
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == 0 || b[i] == 0) continue;
    largest = std::max(largest, exponent_of_e4m3(a[i]) + exponent_of_e4m3(b[i]));
  }
  if (largest == kNone) return 0;
  double total = cut_below(sum, largest);
  for (size_t i = 0; i < a.size(); ++i) total += cut_below(double{a[i]} * b[i], largest);
  return total == 0 ? 0 : cut_below(total, std::ilogb(total));
}

inline double e4m3_sum(double sum, std::span<const float> a, std::span<const float> b) {
  for (size_t i = 0; i < a.size(); i += kProductsPerStep) {
    sum = add_e4m3_products(sum, a.subspan(i, kProductsPerStep), b.subspan(i, kProductsPerStep));
  }
  return sum;
}

}  // namespace fa3::test

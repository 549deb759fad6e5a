// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/latent/backward/integer_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/random.h"

namespace fa3::hopper {
namespace {

using test::Random;

// As a lane does.
void add(int64_t* sum, float contribution, const RowScale& scale) {
  const float x = contribution * scale.factor;
  if (std::abs(x) <= scale.largest) {
    *sum += std::llrint(x);
  } else {
    *sum = std::max(*sum, kNotFinite);
  }
}

// What is at most the bound fits, as often as the row is named, and all digits of float32 of what
// is 2^-12 of the bound are there.
TEST(IntegerSums, hold_what_the_bound_allows) {
  for (const float bound : {1e-25f, 1e-3f, 1.0f, 1.5f, 1e9f, 1e30f}) {
    for (const int64_t additions : {1, 2, 3, 4096, 1 << 24}) {
      for (const float weight_factor : {1.0f, 1024.0f}) {
        const RowScale scale = row_scale(
            {.additions = additions, .fixed = bound / 2, .of_value = bound / 8}, 4, weight_factor);
        EXPECT_LE(double{bound} * weight_factor * scale.factor, double{scale.largest} / 2);
        EXPECT_LE(double{scale.largest} * double(additions), std::exp2(kSumBits));
        EXPECT_GE(double{bound} * weight_factor * scale.factor, std::exp2(24 + 12 - 3));
      }
    }
  }
}

TEST(IntegerSums, are_those_of_double_precision_in_any_order) {
  Random random(1);
  for (const double spread : {1e-20, 1.0, 1e20}) {
    std::vector<float> numbers(5000);
    double sum = 0;
    float most = 0;
    for (float& x : numbers) {
      x = float(spread * random.normal());
      most = std::max(most, std::abs(x));
      sum += double{x};
    }
    const RowScale scale = row_scale({.additions = 5000, .fixed = most}, 0, 16);
    int64_t forwards = 0, backwards = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      add(&forwards, 16 * numbers[i], scale);
      add(&backwards, 16 * numbers[numbers.size() - 1 - i], scale);
    }
    EXPECT_EQ(forwards, backwards);
    EXPECT_FLOAT_EQ(gradient_of(forwards, scale, 16), float(sum));
  }
}

// Whatever is added before and after, also if several numbers are not finite.
TEST(IntegerSums, of_what_is_not_finite_are_nan) {
  const RowScale scale = row_scale({.additions = 64, .fixed = 1}, 0, 1);
  for (const float broken : {INFINITY, -INFINITY, NAN, -NAN, 3e38f}) {
    for (const float other : {1.0f, -1.0f, 0.0f}) {
      for (const int before : {0, 1, 30, 62}) {
        int64_t sum = 0;
        for (int i = 0; i < before; ++i) add(&sum, other, scale);
        add(&sum, broken, scale);
        for (int i = before; i < 62; ++i) add(&sum, other, scale);
        EXPECT_TRUE(std::isnan(gradient_of(sum, scale, 1)));
        add(&sum, broken, scale);
        EXPECT_TRUE(std::isnan(gradient_of(sum, scale, 1)));
      }
    }
  }
}

// Bounds that float32 does not hold: contributions are floats all the same.
TEST(IntegerSums, take_any_bound) {
  for (const float fixed : {0.0f, INFINITY, 3e38f}) {
    for (const float of_value : {0.0f, INFINITY, 3e38f}) {
      for (const double values : {0.0, 1e39, 1e300}) {
        const RowScale scale = row_scale({1000, fixed, of_value}, values, 1024);
        EXPECT_TRUE(std::isnormal(scale.factor));
        if (fixed == 0 && (of_value == 0 || values == 0)) continue;
        EXPECT_LE(double{scale.factor} * 0x1p128, double{scale.largest});
      }
    }
  }
  const RowScale none = row_scale({}, 0, 1);
  EXPECT_EQ(gradient_of(0, none, 1), 0);
}

}  // namespace
}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
//
// The factors of an output gate, by the kernels' own sources: how exact they are, and what becomes
// of logits at the ends.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/cuda/softmax/output_gate.cuh"
#include "numeric/runtime.h"

namespace fa3::cuda {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double logistic_of(double x) {
  return 1 / (1 + std::exp(-x));
}

TEST(GateFactors, are_exact_relative_to_themselves_beside_any_others) {
  for (const float other : {-80.0f, 0.0f, 80.0f, kInf, -kInf}) {
    for (float x = -80; x <= 80; x += 0.37f) {
      const FourLogistics factors({x, other, -other, -x});
      const double expected = logistic_of(double(x)), of_negative = logistic_of(-double(x));
      EXPECT_NEAR(double(factors.of[0]) / expected, 1, 1e-5) << x;
      EXPECT_NEAR(double(factors.of_negative[0]) / of_negative, 1, 1e-5) << x;
      EXPECT_NEAR(double(factors.of[3]) / of_negative, 1, 1e-5) << x;
    }
  }
}

TEST(GateFactors, of_infinite_logits_are_zero_and_one) {
  const FourLogistics factors({kInf, -kInf, kInf, -kInf});
  EXPECT_EQ(factors.of[0], 1);
  EXPECT_EQ(factors.of[1], 0);
}

TEST(GateFactors, keep_a_nan_to_its_own_logit) {
  const FourLogistics factors({0.5f, kNan, -1.0f, 2.0f});
  EXPECT_TRUE(std::isnan(factors.of[1]) && std::isnan(factors.of_negative[1]));
  EXPECT_NEAR(double(factors.of[2]), logistic_of(-1), 1e-6);
}

}  // namespace
}  // namespace fa3::cuda

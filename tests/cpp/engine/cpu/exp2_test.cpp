// SPDX-License-Identifier: Apache-2.0
//
// The vector exp2 of every instruction set that this machine has.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/cpu/kernels/isa.h"

namespace fa3::cpu {
namespace {

class Exp2 : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    kernels_ = find_kernels(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this machine has no " << GetParam();
  }

  // Sixteen copies, because kernels take whole vectors.
  float exp2(float x) const {
    std::vector<float> lanes(16, x);
    kernels_->exp2(lanes.data(), 16);
    return lanes[7];
  }

  const Kernels* kernels_ = nullptr;
};

TEST_P(Exp2, is_within_four_ulp_of_the_true_value) {
  std::vector<float> x(16 * 40000), y;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = -126.0f + 252.0f * static_cast<float>(i) / static_cast<float>(x.size());
  }
  y = x;
  kernels_->exp2(y.data(), static_cast<int64_t>(y.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp2(double{x[i]});
    worst = std::max(worst, std::abs(y[i] - expected) / expected);
  }
  EXPECT_LT(worst, 2.5e-7);
}

// The largest weight of a row is 1, not nearly 1.
TEST_P(Exp2, of_zero_is_exactly_one) {
  EXPECT_EQ(exp2(0.0f), 1.0f);
}

TEST_P(Exp2, of_a_hidden_score_is_zero) {
  EXPECT_EQ(exp2(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exp2(-1e30f), 0.0f);
  EXPECT_EQ(exp2(-200.0f), 0.0f);
}

TEST_P(Exp2, overflows_to_something_that_fails_the_guard) {
  EXPECT_GE(exp2(128.5f), 0x1p126f);
  EXPECT_GE(exp2(1e30f), 0x1p126f);
  EXPECT_GE(exp2(std::numeric_limits<float>::infinity()), 0x1p126f);
}

TEST_P(Exp2, keeps_nan) {
  EXPECT_TRUE(std::isnan(exp2(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(exp2(-std::numeric_limits<float>::quiet_NaN())));
}

#if defined(__aarch64__)
constexpr const char* kIsas[] = {"portable", "neon", "neon_bf16"};
#else
constexpr const char* kIsas[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
#endif
INSTANTIATE_TEST_SUITE_P(EveryIsa, Exp2, testing::ValuesIn(kIsas));

}  // namespace
}  // namespace fa3::cpu

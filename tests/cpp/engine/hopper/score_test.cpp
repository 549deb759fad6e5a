// SPDX-License-Identifier: Apache-2.0
// Softcap's polynomial and factors, against the C library.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/cuda/soft_cap.h"

namespace fa3::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;

TEST(SoftCap, is_the_capped_score_in_log2_units_up_to_a_few_roundings) {
  for (double softcap : {1e-3, 1.0, 15.0, 50.0, 1e4, 1e30}) {
    for (double scale : {0.01, 0.0884, 1.0}) {
      const SoftCap cap = SoftCap::of(scale, softcap);
      EXPECT_GT(cap.largest_small, 0.39 * softcap / scale);
      for (int i = -1000; i <= 1000; ++i) {
        const float product = cap.largest_small * float(i) / 1000;
        const double want = softcap * kLog2E * std::tanh(scale * product / softcap);
        EXPECT_NEAR(cap.of_small(product), want, 5 * 0x1p-24 * std::abs(want)) << product;
      }
    }
  }
}

TEST(SoftCap, of_a_score_of_zero_is_zero_and_no_factor_is_infinite) {
  for (double softcap : {1e-42, 1e-30, 3e38}) {
    for (double scale : {1e-38, 0.125, 3e38}) {
      const SoftCap cap = SoftCap::of(scale, softcap);
      EXPECT_EQ(cap.of_small(0), 0) << softcap << " " << scale;
      EXPECT_TRUE(std::isfinite(cap.to_exponent * 0)) << softcap << " " << scale;
    }
  }
}

}  // namespace
}  // namespace fa3::cuda

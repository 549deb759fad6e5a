// SPDX-License-Identifier: Apache-2.0
// Softcap's polynomial and factors, against the C library. Which rows count as peaked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "engine/cuda/softmax/peaked_rows.h"
#include "engine/cuda/softmax/soft_cap.h"

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

// In how many of 200 groups of rows with random scores, natural units.
int peaked_of_200(float deviation, int keys) {
  constexpr int kRows = 64, kLanes = 4;
  constexpr float kTop = 32;
  std::mt19937 random{unsigned(keys)};
  std::normal_distribution<float> score(0, deviation);
  int peaked = 0;
  for (int trial = 0; trial < 200; ++trial) {
    unsigned low = 0;
    for (int row = 0; row < kRows; ++row) {
      std::vector<float> scores(static_cast<size_t>(keys));
      for (float& x : scores) x = score(random);
      const float largest = *std::max_element(scores.begin(), scores.end());
      float sum[kLanes] = {};
      for (size_t i = 0; i < scores.size(); ++i) {
        sum[i / 2 % kLanes] += kTop * std::exp(scores[i] - largest);
      }
      for (const float x : sum) low += x < peaked_below(keys, kTop);
    }
    peaked += low >= enough_low_sums(kRows * kLanes);
  }
  return peaked;
}

TEST(PeakedRows, are_those_of_scores_with_twice_the_normal_deviation) {
  for (const int keys : {128, 192, 256}) {
    for (const float deviation : {0.0f, 0.02f, 1.0f}) {
      EXPECT_EQ(peaked_of_200(deviation, keys), 0) << deviation << ", " << keys << " keys";
    }
    for (const float deviation : {2.0f, 4.0f, 16.0f}) {
      EXPECT_EQ(peaked_of_200(deviation, keys), 200) << deviation << ", " << keys << " keys";
    }
  }
}

// A thread that has the largest key and no other counts too, and half of the sums are enough.
TEST(PeakedRows, are_those_with_one_key) {
  EXPECT_LT(32.0f, peaked_below(128, 32.0f));
  EXPECT_EQ(enough_low_sums(256), 128u);
}

}  // namespace
}  // namespace fa3::cuda

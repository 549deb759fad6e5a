// SPDX-License-Identifier: Apache-2.0
//
// Softmax steps of scores so large that the rounding of their reference leaves the range of 2^x,
// compiled with numbers: equal scores share a row, and what is not finite stays so.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/cuda/softmax/max_tracking_step.cuh"
#include "engine/cuda/softmax/score.cuh"
#include "engine/cuda/softmax/score_e4m3.cuh"
#include "engine/cuda/softmax/score_quantized_keys.cuh"

namespace fa3::cuda {
namespace {

constexpr int kScores = 24;  // of a thread, of two rows
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Products = std::array<float, kScores>;

template <class Score>
struct Step {
  Step(const Score& score, const Products& products) : score(score) { take(products); }

  void take(const Products& products) {
    std::copy(products.begin(), products.end(), p);
    online_step(p, rows, score, result);
    large = any_is_large(rows.ref);
  }
  // P of the score with this number among those of row 0.
  float of_first_row(int i) const { return p[i / 2 * 4 + i % 2]; }

  Score score;
  float p[kScores];
  RowState rows{};
  typename Score::Result result{};
  bool large = false;
};

// Hooks for P in 16 bits, whose scores are products times `factor`, in log2 units.
ScoreOf16BitP<ScaledScore, 48, 24> of_bf16(float factor) {
  return {{factor}};
}
RowScaledScore<48> of_cache(float factor) {
  RowScaledScore<48> score;
  score.factor[0] = score.factor[1] = factor;
  return score;
}

template <class Use>
void for_every_hook(const Use& use) {
  for (const float factor : {0.18f, 1.44269504f, 3e5f}) {
    use(of_bf16(factor), factor);
    use(of_cache(factor), factor);
  }
}

constexpr float kSizes[] = {1e3f, 1e6f, 7e7f, 3e9f, 1e12f, 1e15f, 1e25f, 1e30f};

TEST(LargeReferences, of_equal_scores_leave_equal_weights) {
  for_every_hook([](const auto& score, float factor) {
    using Score = std::remove_cvref_t<decltype(score)>;
    for (const float size : kSizes) {
      for (const float sign : {1.0f, -1.0f}) {
        Products products;
        products.fill(sign * size / factor);
        const Step<Score> step(score, products);
        // Below, off by the rounding of the reference; beyond, by none but of the headroom.
        EXPECT_GE(step.p[0], Score::kTop / 256) << size << " " << factor;
        EXPECT_LE(step.p[0], std::max(4 * Score::kTop, 1.0f)) << size << " " << factor;
        for (const float p : step.p) EXPECT_EQ(p, step.p[0]) << size;
        EXPECT_EQ(step.large, size > 6.8e7f) << size;
        const float ref = step.rows.ref[0] + Score::kTopLog2;
        EXPECT_NEAR(ref, sign * size, 4e-7f * size + 1e-3f) << factor;
      }
    }
  });
}

// In a block of their own, too, and beside smaller ones: a step of float32 is a lot.
TEST(LargeReferences, of_the_blocks_before_are_met_by_equal_scores) {
  for_every_hook([](const auto& score, float factor) {
    using Score = std::remove_cvref_t<decltype(score)>;
    for (const float size : {3e9f, 1e15f}) {
      Products products;
      products.fill(size / factor);
      Step<Score> step(score, products);
      const float top = step.p[0];
      products[0] = std::nextafter(products[0], 0.0f);
      step.take(products);
      EXPECT_EQ(step.result.rescale[0], 1.0f);
      EXPECT_EQ(step.of_first_row(1), top);
      EXPECT_LT(step.of_first_row(0), 1e-6f * top);
      // A block of smaller ones alone leaves nothing.
      products.fill(size / factor / 2);
      step.take(products);
      for (const float p : step.p) EXPECT_EQ(p, 0.0f);
      // A block that the row does not see.
      products.fill(-kInfinity);
      step.take(products);
      for (const float p : step.p) EXPECT_EQ(p, 0.0f);
      EXPECT_EQ(step.result.rescale[0], 1.0f);
    }
  });
}

// One step of float32 apart, in blocks of their own: the headroom leaves no reference equal.
TEST(LargeReferences, of_unequal_scores_in_two_blocks_are_not_equal) {
  for_every_hook([](const auto& score, float factor) {
    using Score = std::remove_cvref_t<decltype(score)>;
    float size = 2.2e8f / factor;
    for (int i = 0; i < 100; ++i) {
      Products products;
      products.fill(size);
      Step<Score> step(score, products);
      const float top = step.p[0];
      products.fill(std::nextafter(size, 0.0f));
      step.take(products);
      size = std::nextafter(size, kInfinity);
      EXPECT_LT(step.p[0], 0.02f * top) << factor;
    }
  });
}

TEST(LargeReferences, hide_no_nan_and_no_infinity) {
  for_every_hook([](const auto& score, float factor) {
    using Score = std::remove_cvref_t<decltype(score)>;
    for (const float odd : {kNan, kInfinity}) {
      Products products;
      products.fill(3e12f / factor);
      products[0] = odd;
      const Step<Score> step(score, products);
      EXPECT_TRUE(std::isnan(step.of_first_row(0)));
      EXPECT_EQ(step.p[2], step.p[3]) << "the other row";
    }
  });
}

// P of bf16 begins at 2^-24, P of e4m3 at 2^5.
TEST(LogSum, of_one_score_of_zero_is_zero) {
  EXPECT_EQ(log_sum<0>(0, 1), 0.0f);
  EXPECT_EQ(log_sum<-24>(24, 0x1p-24f), 0.0f);
  EXPECT_EQ(log_sum<5>(-5, 32), 0.0f);
  EXPECT_EQ(log_sum<-24>(-kInfinity, 0), -kInfinity);
  EXPECT_TRUE(std::isnan(log_sum<-24>(0, kNan)));
  EXPECT_EQ(log_sum<-24>(0, kInfinity), kInfinity);
  for (const float sum : {3e-20f, 0.7f, 1.5f, 3e20f}) {
    EXPECT_NEAR(log_sum<-24>(7, sum), 7 + std::log2(sum), 1e-5f) << sum;
  }
}

// Scores that are computed again may be below the reference that the lost ones have set.
TEST(OutgrownReferences, are_forgotten) {
  RowState rows{.ref = {3e5f, 7}, .sum = {}};
  StepResult result{};
  result.rescale[0] = 0x1p-101f, result.rescale[1] = 0x1p-99f;
  EXPECT_TRUE(outgrown(result));
  forget_outgrown_references(rows, result);
  EXPECT_EQ(rows.ref[0], -kInfinity);
  EXPECT_EQ(rows.ref[1], 7);
}

}  // namespace
}  // namespace fa3::cuda

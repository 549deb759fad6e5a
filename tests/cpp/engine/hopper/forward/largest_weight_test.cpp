// SPDX-License-Identifier: Apache-2.0
//
// The largest score of a row from its largest P, through every kind of step, compiled with numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "engine/cuda/softmax/max_logit.cuh"
#include "engine/cuda/softmax/score.cuh"

namespace fa3::cuda {
namespace {

constexpr int kScores = 40, kHeadroom = 24;
using Score = ScoreOf16BitP<ScaledScore, 2 * kScores, kHeadroom>;

// As a consumer goes through blocks (hopper/forward/consumer/{consumer,guard}.cuh), whose order of
// calls is repeated here: one that is forgotten there passes.
struct Walk {
  Score score;
  RowState rows;
  float largest_p[kRowsPerThread] = {};
  int fired = 0, lost = 0;

  void take(const float (&products)[kScores], bool guarded) {
    const float seen[kRowsPerThread] = {largest_p[0], largest_p[1]};
    float p[kScores];
    std::copy_n(products, kScores, p);
    StepResult result;
    if (!guarded) return take_online(p, result);
    guarded_step<0>(p, rows, score, result, [] {});
    raise_to_largest_p<0, kScores>(largest_p, p);
    if (!guard_fires<Score>(result)) return;
    ++fired;
    if (can_rescale_after_guard(result)) {
      rescale_after_guard<Score>(p, rows, result);
      std::copy_n(seen, kRowsPerThread, largest_p);
      rescale(result);
      raise_to_largest_p<0, kScores>(largest_p, p);
      return;
    }
    ++lost;
    std::copy_n(seen, kRowsPerThread, largest_p);
    std::copy_n(products, kScores, p);
    StepResult again;
    take_online(p, again);
  }

  float max_logit(int row) const {
    return log_sum<-kHeadroom>(rows.ref[row], largest_p[row]) * kLn2;
  }

 private:
  void take_online(float (&p)[kScores], StepResult& result) {
    online_step(p, rows, score, result);
    rescale(result);
    raise_to_largest_p<0, kScores>(largest_p, p);
  }
  void rescale(const StepResult& result) {
    for (int row = 0; row < kRowsPerThread; ++row) largest_p[row] *= result.rescale[row];
  }
};

// Blocks of normal products times `sharpness`, each `rise` above the block before.
Walk walk(float sharpness, float rise, bool guarded, double (&largest)[kRowsPerThread]) {
  Walk w;
  w.score.set_scale(0.125f * kLog2E);
  std::mt19937 random{7};
  std::normal_distribution<float> normal;
  largest[0] = largest[1] = -INFINITY;
  for (int block = 0; block < 20; ++block) {
    float products[kScores];
    for (int i = 0; i < kScores; ++i) {
      products[i] = sharpness * normal(random) + rise * float(block);
      double& most = largest[fragment_row_index(i)];
      most = std::max(most, 0.125 * double(products[i]));
    }
    w.take(products, guarded && block > 0);
  }
  return w;
}

TEST(LargestWeight, is_of_the_largest_score_through_every_kind_of_step) {
  int fired = 0, lost = 0;
  for (const bool guarded : {false, true}) {
    for (const float sharpness : {0.0f, 1.0f, 30.0f, 1e4f, 1e9f}) {
      for (const float rise :
           {-1000.0f, 0.0f, 100.0f, 400.0f, 780.0f, 800.0f, 820.0f, 830.0f, 2000.0f}) {
        double largest[kRowsPerThread];
        const Walk w = walk(sharpness, rise, guarded, largest);
        for (int row = 0; row < kRowsPerThread; ++row) {
          EXPECT_NEAR(w.max_logit(row), largest[row], 1e-5 + 1e-6 * std::abs(largest[row]))
              << guarded << " " << sharpness << " " << rise;
        }
        fired += w.fired, lost += w.lost;
      }
    }
  }
  EXPECT_GT(fired, lost);
  EXPECT_GT(lost, 0);
}

TEST(LargestWeight, is_none_of_a_row_without_keys_and_nan_where_a_score_is) {
  Walk w;
  w.score.set_scale(1);
  float products[kScores];
  for (int i = 0; i < kScores; ++i) products[i] = fragment_row_index(i) == 0 ? -INFINITY : float(i);
  products[kFirstElement[1] + 4] = NAN;
  w.take(products, false);
  w.take(products, true);
  EXPECT_EQ(w.max_logit(0), -INFINITY);
  EXPECT_TRUE(std::isnan(w.max_logit(1)));
}

}  // namespace
}  // namespace fa3::cuda

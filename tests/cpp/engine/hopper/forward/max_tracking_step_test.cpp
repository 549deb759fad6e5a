// SPDX-License-Identifier: Apache-2.0
//
// The step that tracks a row's maximum, compiled with numbers, beside the ordinary one.
#include "engine/cuda/softmax/max_tracking_step.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "engine/cuda/softmax/score_e4m3.cuh"

namespace fa3::cuda {
namespace {

constexpr int kScores = 64, kEarly = 24;
using Score = DescaledScore<2>;

struct Step {
  float p[kScores];
  RowState rows;
  PartedStepResult result{};

  Step(const std::array<float, kScores>& scores, const RowState& before) : rows(before) {
    std::copy(scores.begin(), scores.end(), p);
  }
};

Score random_scales(std::mt19937& random) {
  std::uniform_real_distribution<float> real(0, 1);
  return {{{0.5f + real(random), 0.5f + real(random)}, {-real(random), -3 * real(random)}}};
}

// Rows that the block before has left far below, near, or far above.
TEST(MaxTrackingStep, agrees_with_the_ordinary_one_however_far_the_maximum_moves) {
  std::mt19937 random{2};
  std::normal_distribution<float> normal(0, 3);
  for (const float moves : {-2000.0f, -90.0f, -4.0f, 0.0f, 4.0f, 90.0f, 2000.0f}) {
    for (int trial = 0; trial < 50; ++trial) {
      const Score score = random_scales(random);
      std::array<float, kScores> scores;
      for (float& x : scores) x = normal(random) + moves;
      RowState before;
      before.ref[0] = normal(random), before.ref[1] = normal(random);
      Step tracking(scores, before), ordinary(scores, before);
      max_tracking_step<kEarly>(tracking.p, tracking.rows, score, tracking.result);
      online_step(ordinary.p, ordinary.rows, score, ordinary.result);
      for (int row = 0; row < kRowsPerThread; ++row) {
        EXPECT_EQ(tracking.rows.ref[row], ordinary.rows.ref[row]);
        EXPECT_EQ(tracking.result.rescale[row], ordinary.result.rescale[row]);
        EXPECT_NEAR(tracking.result.block_sum[row], ordinary.result.block_sum[row],
                    1e-6 * ordinary.result.block_sum[row]);
      }
      for (int i = 0; i < kScores; ++i) {
        EXPECT_NEAR(tracking.p[i], ordinary.p[i], 1e-6 * ordinary.p[i]) << i << ", " << moves;
      }
    }
  }
}

// Whichever element has it: a power of two, which e4m3 holds.
TEST(MaxTrackingStep, gives_the_largest_score_the_largest_weight) {
  for (int largest = 0; largest < kScores; ++largest) {
    std::array<float, kScores> scores{};
    scores[size_t(largest)] = 10.3f;
    RowState before;
    before.ref[0] = before.ref[1] = -Score::kTopLog2;
    Step step(scores, before);
    max_tracking_step<kEarly>(step.p, step.rows, Score{{{1.0f, 1.0f}, {0.0f, 0.0f}}}, step.result);
    EXPECT_NEAR(step.p[largest], Score::kTop, 1e-5f) << largest;
  }
}

}  // namespace
}  // namespace fa3::cuda

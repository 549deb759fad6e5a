// SPDX-License-Identifier: Apache-2.0
//
// Softmax steps of e4m3 scores with sums that begin with their first number and a factor that is
// given, compiled with numbers: they have the bits of the others, NaN and infinity among them.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "engine/cuda/softmax/max_tracking_step.cuh"
#include "engine/cuda/softmax/score_e4m3.cuh"

namespace fa3::cuda {
namespace {

constexpr int kGroups = 3, kScores = 96, kEarly = 36;

// What a step leaves, as bits.
using Left = std::array<uint32_t, kScores + 4 * kRowsPerThread>;

template <bool Lean>
Left left_by(int step, const std::array<float, kScores>& scores, const RowState& before) {
  DescaledScore<kGroups, Lean> score;
  for (int group = 0; group < kGroups; ++group) {
    score.factor[group] = 0.5f + float(group);
    score.boost[group] = -0.7f * float(group);
    if constexpr (Lean) score.unboost[group] = ex2(-score.boost[group]);
  }
  float p[kScores];
  std::copy(scores.begin(), scores.end(), p);
  RowState rows = before;
  PartedStepResult result{};
  if (step == 0) online_step(p, rows, score, result);
  if (step == 1) guarded_step<0>(p, rows, score, result, [] {});
  if (step == 2) max_tracking_step<kEarly>(p, rows, score, result);
  Left left;
  size_t at = 0;
  const auto add = [&](float x) { left[at++] = std::bit_cast<uint32_t>(x); };
  for (const float x : p) add(x);
  for (int row = 0; row < kRowsPerThread; ++row) {
    add(rows.ref[row]), add(result.rescale[row]), add(result.block_sum[row]);
    add(step == 2 ? 0 : result.largest_part[row]);
  }
  return left;
}

TEST(LeanSums, have_the_bits_of_the_others) {
  std::mt19937 random{1};
  std::normal_distribution<float> normal(0, 4);
  for (int trial = 0; trial < 100; ++trial) {
    std::array<float, kScores> scores;
    for (float& x : scores) x = normal(random);
    const float odd[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
    if (trial % 4 < 3) scores[random() % kScores] = odd[trial % 4];
    RowState rows;
    rows.ref[0] = normal(random), rows.ref[1] = normal(random);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(left_by<true>(step, scores, rows), left_by<false>(step, scores, rows))
          << "trial " << trial << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace fa3::cuda

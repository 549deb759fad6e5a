// SPDX-License-Identifier: Apache-2.0
//
// The guarded softmax step, driven into its corners: references that lag, overflow, NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>

#include "engine/cpu/tiled/tiled.h"
#include "problem.h"

namespace fa3::cpu {
namespace {

using test::DenseProblem;

void run(DenseProblem* problem) {
  Plan plan;
  ASSERT_TRUE(plan_forward(*problem, &plan).ok());
  constexpr size_t kAlignment = 256;
  const size_t bytes = (plan.workspace_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(kAlignment, bytes),
                                                              &std::free);
  std::fill_n(static_cast<unsigned char*>(workspace.get()), bytes, 0xff);
  ASSERT_TRUE(run_forward(*problem, plan, workspace.get(), nullptr).ok());
}

// O of one row in double precision.
double expected_o(const DenseProblem& p, int64_t row, int64_t column) {
  double max = -std::numeric_limits<double>::infinity();
  std::vector<double> scores(p.lengths_k.max);
  for (int64_t j = 0; j < p.lengths_k.max; ++j) {
    for (int64_t c = 0; c < p.head_dim; ++c) {
      scores[j] += double{p.scale} * p.q_data[row * p.head_dim + c] * p.k_data[j * p.head_dim + c];
    }
    max = std::max(max, scores[j]);
  }
  double sum = 0, o = 0;
  for (int64_t j = 0; j < p.lengths_k.max; ++j) {
    sum += std::exp(scores[j] - max);
    o += std::exp(scores[j] - max) * p.v_data[j * p.head_dim + column];
  }
  return o / sum;
}

void expect_right(const DenseProblem& p, double tolerance) {
  for (int64_t row = 0; row < p.lengths_q.max; row += 13) {
    for (int64_t c = 0; c < p.head_dim; c += 7) {
      ASSERT_NEAR(p.o_data[row * p.head_dim + c], expected_o(p, row, c), tolerance)
          << "row " << row << ", column " << c;
    }
  }
}

// Keys whose scores rise by far more than the guard allows, tile after tile, for some rows only.
TEST(GuardedSoftmax, follows_scores_that_keep_rising) {
  for (float step : {0.5f, 4.0f, 60.0f}) {
    DenseProblem p(100, 2000, 1, 32);
    for (int64_t row = 0; row < 100; ++row) p.q_data[row * 32] = row % 5 == 0 ? 8.0f : 0.0f;
    for (int64_t j = 0; j < 2000; ++j) p.k_data[j * 32] = step * static_cast<float>(j / 250);
    run(&p);
    expect_right(p, 3e-5);
  }
}

TEST(GuardedSoftmax, survives_one_score_beyond_the_range_of_floats) {
  DenseProblem p(100, 2000, 1, 32);
  for (int64_t row = 0; row < 100; ++row) p.q_data[row * 32] = 8.0f;
  p.k_data[1500 * 32] = 500.0f;
  run(&p);
  expect_right(p, 3e-5);
}

TEST(GuardedSoftmax, a_nan_key_reaches_every_row_and_only_through_its_scores) {
  DenseProblem p(100, 2000, 1, 32);
  p.k_data[1500 * 32 + 3] = std::numeric_limits<float>::quiet_NaN();
  run(&p);
  for (float o : p.o_data) EXPECT_TRUE(std::isnan(o));
  for (float lse : p.lse_data) EXPECT_TRUE(std::isnan(lse));
}

TEST(GuardedSoftmax, a_nan_query_stays_in_its_row) {
  DenseProblem p(100, 2000, 1, 32);
  p.q_data[50 * 32] = std::numeric_limits<float>::quiet_NaN();
  run(&p);
  for (int64_t row = 0; row < 100; ++row) {
    EXPECT_EQ(std::isnan(p.o_data[row * 32]), row == 50) << "row " << row;
  }
}

}  // namespace
}  // namespace fa3::cpu

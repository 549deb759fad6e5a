// SPDX-License-Identifier: Apache-2.0
//
// What tensor cores cut off e4m3 scores (support/oracle/e4m3_sum.h), beside what the rule allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "cli/call/error_rule.h"
#include "support/oracle/e4m3_sum.h"

namespace fa3::test {
namespace {

double log_sum_exp(const std::vector<double>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double s : scores) sum += std::exp(s - largest);
  return largest + std::log(sum);
}

struct LseError {
  double error = 0;
  double largest_score = 0;
};

// The error for queries whose channels have one mean, on keys whose channels have another.
LseError lse_error(int dim, float query_mean, float key_mean) {
  constexpr int kQueries = 24, kKeys = 256;
  const std::vector<float> q = random_e4m3(size_t(kQueries * dim), query_mean, 4, 1);
  const std::vector<float> k = random_e4m3(size_t(kKeys * dim), key_mean, 1, 2);
  const double scale = 1 / std::sqrt(double(dim));
  LseError worst;
  for (int row = 0; row < kQueries; ++row) {
    const std::span query(&q[size_t(row * dim)], size_t(dim));
    std::vector<double> scores, cut;
    for (int key = 0; key < kKeys; ++key) {
      const std::span keys(&k[size_t(key * dim)], size_t(dim));
      scores.push_back(scale * std::inner_product(query.begin(), query.end(), keys.begin(), 0.0));
      cut.push_back(scale * e4m3_sum(0, query, keys));
      worst.largest_score = std::max(worst.largest_score, std::abs(scores.back()));
    }
    worst.error = std::max(worst.error, std::abs(log_sum_exp(cut) - log_sum_exp(scores)));
  }
  return worst;
}

TEST(E4m3Scores, of_one_sign_are_off_by_more_but_within_the_rule) {
  const auto allowed = [](const LseError& e) {
    return allowed_lse_error(e.largest_score, kE4m3ScoreRoundoff);
  };
  for (const int dim : {64, 128, 256}) {
    const LseError centred = lse_error(dim, -3, 0), negative = lse_error(dim, -3, 1.5);
    EXPECT_LT(centred.error, 0.012) << dim;
    EXPECT_LT(centred.error, allowed(centred)) << dim;
    EXPECT_LT(negative.error, allowed(negative)) << dim;
    if (dim < 256) continue;
    EXPECT_GT(negative.error, 0.025);
    EXPECT_GT(negative.error, 4 * centred.error);
  }
}

}  // namespace
}  // namespace fa3::test

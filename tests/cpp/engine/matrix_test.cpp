// SPDX-License-Identifier: Apache-2.0
//
// The acceptance matrix: every engine, forward and backward, against the textbook in float64.
#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/engines.h"
#include "support/sample.h"

namespace fa3::test {
namespace {

using EngineCase = std::tuple<EngineUnderTest, Case>;
class MatrixTest : public testing::TestWithParam<EngineCase> {};
class Forward : public MatrixTest {};
class Backward : public MatrixTest {};

std::string name_of_case(const testing::TestParamInfo<EngineCase>& info) {
  const auto& [engine, c] = info.param;
  return std::string(engine.name) + "_" + std::to_string(c.seed) + "_" + name_of(c.dtype) + "_q" +
         std::to_string(c.q.rows) + "_k" + std::to_string(c.k.rows) + "_d" + std::to_string(c.dim);
}

TEST_P(Forward, agrees_with_float64) {
  const auto& [engine, c] = GetParam();
  EXPECT_TRUE(forward_agrees({engine, c}));
}

TEST_P(Backward, agrees_with_float64) {
  const auto& [engine, c] = GetParam();
  EXPECT_TRUE(backward_agrees({engine, c}));
}

MatrixLimits forward_limits() {
  return by_effort<MatrixLimits>({1 << 14, 1 << 22, 1}, {1 << 21, 1 << 25, 1},
                                 {1 << 25, 1 << 30, 6});
}
MatrixLimits backward_limits() {
  return by_effort<MatrixLimits>({1 << 13, 1 << 22, 1}, {1 << 20, 1 << 23, 1},
                                 {1 << 23, 1 << 29, 6});
}
MatrixLimits packed_limits() {
  return by_effort<MatrixLimits>({1 << 12, 1 << 22, 1}, {1 << 18, 1 << 25, 1},
                                 {1 << 22, 1 << 28, 6});
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Forward);
#define FA3_MATRIX(fixture, prefix, cases)                                                 \
  INSTANTIATE_TEST_SUITE_P(                                                                \
      prefix, fixture,                                                                     \
      testing::Combine(testing::ValuesIn(engines_under_test()), testing::ValuesIn(cases)), \
      name_of_case)
FA3_MATRIX(Forward, dense, dense_matrix(forward_limits()));
FA3_MATRIX(Forward, long, effort() == Effort::quick ? std::vector<Case>{} : long_cases());
FA3_MATRIX(Forward, packed, packed_matrix(packed_limits()));
FA3_MATRIX(Backward, dense, dense_matrix(backward_limits()));
FA3_MATRIX(Backward, packed, packed_matrix(packed_limits()));

}  // namespace
}  // namespace fa3::test

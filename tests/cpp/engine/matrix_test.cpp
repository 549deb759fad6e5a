// SPDX-License-Identifier: Apache-2.0
//
// The acceptance matrix: every engine, forward and backward, against the textbook in float64.
#include <gtest/gtest.h>

#include "engine/fixture.h"
#include "support/sample.h"

namespace fa3::test {
namespace {

class MatrixTest : public CaseTest {};
class Forward : public MatrixTest {};
class Backward : public MatrixTest {};

TEST_P(Forward, agrees_with_float64) {
  if (does(GetParam().c)) {
    EXPECT_TRUE(forward_agrees({engine(), GetParam().c}));
  }
}

TEST_P(Backward, agrees_with_float64) {
  if (does_backward(GetParam().c)) {
    EXPECT_TRUE(backward_agrees({engine(), GetParam().c}));
  }
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

// The cases that `make` gives for each engine.
template <class Make>
std::vector<EngineCase> for_each_engine(Make&& make) {
  std::vector<EngineCase> cases;
  for (const EngineUnderTest& engine : engines_under_test()) {
    for (const Case& c : make(engine)) {
      const std::string name = std::to_string(c.seed) + "_" + name_of(c.dtype) + "_q" +
                               std::to_string(c.q.rows) + "_k" + std::to_string(c.k.rows) + "_d" +
                               std::to_string(c.dim);
      cases.push_back({engine, c, name});
    }
  }
  return cases;
}

std::vector<EngineCase> dense(Pass pass, const MatrixLimits& limits) {
  return for_each_engine(
      [&](const EngineUnderTest& engine) { return dense_matrix(engine, pass, limits); });
}
std::vector<EngineCase> packed(Pass pass) {
  return for_each_engine(
      [&](const EngineUnderTest& engine) { return packed_matrix(engine, pass, packed_limits()); });
}
std::vector<EngineCase> of_long_lengths() {
  return for_each_engine([](const EngineUnderTest&) {
    return effort() == Effort::quick ? std::vector<Case>{} : long_cases();
  });
}

// Of an engine that does none of them.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Forward);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Backward);
#define FA3_MATRIX(fixture, prefix, cases) \
  INSTANTIATE_TEST_SUITE_P(prefix, fixture, testing::ValuesIn(cases), name_of_case)
FA3_MATRIX(Forward, dense, dense(Pass::forward, forward_limits()));
FA3_MATRIX(Forward, long, of_long_lengths());
FA3_MATRIX(Forward, packed, packed(Pass::forward));
FA3_MATRIX(Backward, dense, dense(Pass::backward, backward_limits()));
FA3_MATRIX(Backward, packed, packed(Pass::backward));

}  // namespace
}  // namespace fa3::test

// SPDX-License-Identifier: Apache-2.0
//
// The acceptance matrix: every engine, forward and backward, against the textbook in float64.
#include <gtest/gtest.h>

#include "contract/fixture.h"
#include "support/random.h"
#include "support/runs/sample.h"

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
  return by_effort<MatrixLimits>({1 << 13, 1 << 21, 1}, {1 << 20, 1 << 23, 1},
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

// Cases of the other matrices with float8 operands.
Case with_fp8(Case c) {
  Random random(c.seed);
  const auto scales = [&] { return static_cast<Scales>(random.below(4)); };
  c.fp8 = {.kv = true,
           .k = scales(),
           .v = scales(),
           .k_mean = random.one_in(2),
           .v_mean = random.one_in(2)};
  if (random.one_in(2)) {
    c.dtype = FA3_FLOAT8_E4M3;
    c.fp8.q = scales();
    c.fp8.q_by_kv_head = random.one_in(2);
  } else {
    c.fp8.e5m2 = random.one_in(2);
  }
  return c;
}

std::vector<EngineCase> fp8() {
  return for_each_engine([](const EngineUnderTest& engine) {
    const auto limits = by_effort<MatrixLimits>({1 << 12, 1 << 21, 1}, {1 << 15, 1 << 22, 1},
                                                {1 << 22, 1 << 28, 6});
    std::vector<Case> cases = dense_matrix(engine, Pass::forward, limits);
    const std::vector<Case> packed = packed_matrix(engine, Pass::forward, limits);
    cases.insert(cases.end(), packed.begin(), packed.end());
    for (const Case& c : long_cases()) {
      if (c.q.rows == 1 && effort() != Effort::quick) cases.push_back(c);
    }
    for (Scores scores : {Scores::nan_query, Scores::nan_key, Scores::nan_value}) {
      cases.push_back(dense_case(1, 40, 100, 2, 1, 64, 64));
      cases.back().scores = scores;
      cases.back().seed = 9100 + static_cast<uint64_t>(scores);
    }
    for (Case& c : cases) c = with_fp8(c);
    std::erase_if(cases, [&](const Case& c) {
      // A question does not know the longest packed sequence, and so how many blocks it has.
      Case asked = c;
      for (Scales* scales : {&asked.fp8.q, &asked.fp8.k, &asked.fp8.v}) {
        if (*scales == Scales::block) *scales = Scales::head;
      }
      const std::string reason = refusal(engine, asked, Pass::forward);
      if (!reason.empty()) leave_out(reason);
      return !reason.empty();
    });
    return cases;
  });
}

std::vector<EngineCase> of_long_lengths() {
  return for_each_engine([](const EngineUnderTest&) {
    return effort() == Effort::quick ? std::vector<Case>{} : long_cases();
  });
}

// An engine may do none of them.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Forward);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Backward);
#define FA3_MATRIX(fixture, prefix, cases) \
  INSTANTIATE_TEST_SUITE_P(prefix, fixture, testing::ValuesIn(cases), name_of_case)
FA3_MATRIX(Forward, dense, dense(Pass::forward, forward_limits()));
FA3_MATRIX(Forward, long, of_long_lengths());
FA3_MATRIX(Forward, packed, packed(Pass::forward));
FA3_MATRIX(Forward, fp8, fp8());
FA3_MATRIX(Backward, dense, dense(Pass::backward, backward_limits()));
FA3_MATRIX(Backward, packed, packed(Pass::backward));

}  // namespace
}  // namespace fa3::test

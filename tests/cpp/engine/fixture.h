// SPDX-License-Identifier: Apache-2.0
//
// For suites that run once per engine.
#pragma once

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/engines.h"
#include "support/run.h"

namespace fa3::test {

class EngineTest : public testing::TestWithParam<EngineUnderTest> {
 protected:
  const EngineUnderTest& engine() const { return GetParam(); }

  // Runs that must succeed.
  ForwardRun forward(const Case& c, const Inputs& inputs) const {
    ForwardRun run = run_forward(engine(), c, inputs);
    EXPECT_EQ(run.problem, "") << c;
    return run;
  }
  BackwardRun backward(const Case& c, const Inputs& inputs, const ForwardRun& at) const {
    BackwardRun run = run_backward(engine(), c, inputs, at);
    EXPECT_EQ(run.problem, "") << c;
    return run;
  }
};

inline std::string name_of_engine(const testing::TestParamInfo<EngineUnderTest>& info) {
  return info.param.name;
}

}  // namespace fa3::test

// Instantiates `fixture`, a class derived from EngineTest.
#define FA3_FOR_EVERY_ENGINE(fixture) \
  INSTANTIATE_TEST_SUITE_P(engine, fixture, testing::ValuesIn(engines_under_test()), name_of_engine)

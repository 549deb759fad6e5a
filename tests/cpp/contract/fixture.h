// SPDX-License-Identifier: Apache-2.0
//
// For suites that run once per engine. A test asks does(c) before it runs a case: what the engine
// cannot do is left out and counted, and a test of which nothing is left is skipped with the
// reason.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "support/engines.h"
#include "support/oracle/compare.h"
#include "support/runs/ability.h"
#include "support/runs/run.h"

namespace fa3::test {

// A forward, and the backward after it where the engine has one.
struct Runs {
  ForwardRun forward;
  std::optional<BackwardRun> backward;
};

template <class Param>
class EngineTestOf : public testing::TestWithParam<Param> {
 protected:
  virtual const EngineUnderTest& engine() const = 0;

  bool does(const Case& c) { return does(c, Pass::forward); }
  bool does_backward(const Case& c) { return does(c, Pass::backward); }

  // The case in each dtype that the engine takes.
  std::vector<Case> in_each_dtype(Case c) {
    std::vector<Case> cases;
    for (fa3_dtype dtype : {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16}) {
      c.dtype = dtype;
      if (does(c)) cases.push_back(c);
    }
    return cases;
  }

  // Runs that must succeed.
  ForwardRun forward(const Case& c, const Inputs& inputs) const {
    ForwardRun run = run_forward(engine(), c, inputs);
    EXPECT_EQ(run.problem, "") << c;
    return run;
  }
  BackwardRun backward(const Case& c, const Inputs& inputs, const ForwardRun& at,
                       bool deterministic = true) const {
    BackwardRun run = run_backward(engine(), c, inputs, at, deterministic);
    EXPECT_EQ(run.problem, "") << c;
    return run;
  }
  Runs both(const Case& c, const Inputs& inputs) {
    Runs runs{.forward = forward(c, inputs), .backward = {}};
    if (does_backward(c)) runs.backward = backward(c, inputs, runs.forward);
    return runs;
  }

  // Every output against the textbook, as far as the engine does the case.
  testing::AssertionResult agrees(const Case& c) {
    if (!does(c)) return testing::AssertionSuccess();
    return does_backward(c) ? backward_agrees({engine(), c}) : forward_agrees({engine(), c});
  }

  void TearDown() override {
    if (done_ == 0 && !reason_.empty()) GTEST_SKIP() << engine().name << ": " << reason_;
  }

 private:
  bool does(const Case& c, Pass pass) {
    const std::string reason = refusal(engine(), c, pass);
    if (reason.empty()) {
      ++done_;
      return true;
    }
    leave_out(reason);
    if (reason_.empty()) reason_ = reason;
    return false;
  }

  int done_ = 0;
  std::string reason_;  // the first one
};

class EngineTest : public EngineTestOf<EngineUnderTest> {
 protected:
  const EngineUnderTest& engine() const override { return GetParam(); }
};

// For suites that run once per engine and case.
struct EngineCase {
  EngineUnderTest engine;
  Case c;
  std::string name;
};
inline std::ostream& operator<<(std::ostream& out, const EngineCase& at) {
  return out << at.engine << ", " << at.c;
}

class CaseTest : public EngineTestOf<EngineCase> {
 protected:
  const EngineUnderTest& engine() const override { return GetParam().engine; }
};

inline std::string name_of_case(const testing::TestParamInfo<EngineCase>& info) {
  return std::string(info.param.engine.name) + "_" + info.param.name;
}

inline std::string name_of_engine(const testing::TestParamInfo<EngineUnderTest>& info) {
  return info.param.name;
}

}  // namespace fa3::test

// Instantiates `fixture`, a class derived from EngineTest.
#define FA3_FOR_EVERY_ENGINE(fixture) \
  INSTANTIATE_TEST_SUITE_P(engine, fixture, testing::ValuesIn(engines_under_test()), name_of_engine)

// SPDX-License-Identifier: Apache-2.0
//
// The engines that the suites run on. A new engine joins by one line in engines.cpp.
#pragma once

#include <fa3/fa3.h>

#include <iosfwd>
#include <string>
#include <vector>

namespace fa3::test {

struct EngineUnderTest {
  const char* name;  // as fa3_engine gives it
  fa3_engine_id id;
  fa3_device_type memory = FA3_CPU;  // where its tensors must be
  bool rounds_scores = false;    // stores S and P in the input dtype: its LSE is as rough as that
  bool exact = false;            // double precision inside: only its outputs are rounded
  bool rows_apart = true;        // a row's bits depend on no other row
  bool merges_by_lse = false;    // splits of a row: beyond 1e5 an LSE cannot count equal keys
  bool multiplies_e4m3 = false;  // where q, k and v are: weights are rounded to it, scores rough
  float large = 1e37f;           // the mean of 512 values of this size does not overflow
};

// The engines of the list that this build contains and this machine can run; only the one that the
// environment variable FA3_TEST_ENGINE names, if it is set.
std::vector<EngineUnderTest> engines_under_test();

// Standard attention, whose rounding error sets the measure.
EngineUnderTest baseline();

// What the library says of an engine: for one that is not under test here, why.
std::string engine_detail(const char* name);

// For gtest: names and messages.
std::string engine_name(const EngineUnderTest& engine);
std::ostream& operator<<(std::ostream& out, const EngineUnderTest& engine);

// How much of the case tables to run: FA3_TEST_QUICK=1 (sanitizers, the lesser instruction sets),
// nothing (the default of ctest) or FA3_TEST_FULL=1.
enum class Effort { quick, normal, full };
Effort effort();

template <class T>
T by_effort(T quick, T normal, T full) {
  return effort() == Effort::quick ? quick : effort() == Effort::full ? full : normal;
}

}  // namespace fa3::test

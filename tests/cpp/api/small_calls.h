// SPDX-License-Identifier: Apache-2.0
//
// One small call of every function of the C ABI that computes, plans or answers, on every engine of
// the CPU, each with memory of its own.
#pragma once

#include <fa3/fa3.h>

#include <functional>
#include <ostream>
#include <vector>

namespace fa3::test {

struct SmallCall {
  const char* name;
  std::function<fa3_status()> run;
  std::function<std::vector<float>()> results;  // what it wrote
  fa3_status expected = FA3_OK;
};

std::vector<SmallCall> small_calls();

inline void PrintTo(const SmallCall& call, std::ostream* out) {
  *out << call.name;
}

}  // namespace fa3::test

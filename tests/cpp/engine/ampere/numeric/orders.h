// SPDX-License-Identifier: Apache-2.0
//
// A call in many random orders of its warps: right in each, or found out in each if its protocol is
// broken.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime.h"

namespace fa3::ampere {

inline const machine::Pace kOrders[] = {
    {.name = "even"},
    {.name = "one slow warp", .weight = [](int warp) { return warp % 4 == 1 ? 0.01 : 1.0; }},
    {.name = "slow first four warps", .weight = [](int warp) { return warp < 4 ? 0.01 : 1.0; }},
    {.name = "slow other warps", .weight = [](int warp) { return warp < 4 ? 1.0 : 0.01; }},
    {.name = "rarely interrupted", .interruption = 0.001},
};

// problem(): runs a call; "" or what went wrong.
template <class Problem, class Check>
void in_many_orders(machine::Fault fault, int barrier, const Problem& problem, const Check& check) {
  const machine::Setting before = machine::launch_setting;
  for (const machine::Pace& pace : kOrders) {
    for (const unsigned seed : {0u, 1000u}) {
      SCOPED_TRACE(std::string(pace.name) + ", seed " + std::to_string(seed));
      machine::launch_setting = {.seed = seed, .pace = pace, .fault = fault, .barrier = barrier};
      check(problem());
    }
  }
  machine::launch_setting = before;
}

template <class Problem>
void expect_right_in_any_order(const Problem& problem) {
  in_many_orders(machine::Fault::kNone, 0, problem,
                 [](const std::string& said) { EXPECT_EQ(said, ""); });
}

// What the model says where somebody does not wait.
inline const std::vector<std::string> kUnordered{
    "read before it was filled", "no barrier between the store of", "overwritten while it is read",
    "overwritten while a copy arrives", "named barrier"};

template <class Problem>
void expect_found_in_any_order(machine::Fault fault, int barrier, const Problem& problem) {
  in_many_orders(fault, barrier, problem, [](const std::string& said) {
    const auto begins = [&](const std::string& words) { return said.starts_with(words); };
    EXPECT_TRUE(std::any_of(kUnordered.begin(), kUnordered.end(), begins))
        << "said: '" << said << "'";
  });
}

}  // namespace fa3::ampere

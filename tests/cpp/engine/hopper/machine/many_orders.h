// SPDX-License-Identifier: Apache-2.0
//
// Runs a program in many random orders, and holds what the model says of it against what it should.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "machine.h"

namespace fa3::machine {

// What the model says most often.
inline constexpr char kOverRead[] = "overwritten while it is read";
inline constexpr char kUnfilled[] = "read before it was filled";
inline constexpr char kUntold[] = "no barrier between the store of warp";
inline constexpr char kUnfenced[] = "no fence.proxy.async between the store of warp";

template <int First, int Last>
double slow(int warp) {
  return warp >= First && warp <= Last ? 0.01 : 1;
}

inline const Pace kManyPaces[] = {
    {},
    {.name = "slow producer", .weight = slow<0, 0>},
    {.name = "slow writer of dQ", .weight = slow<1, 1>},
    {.name = "slow first warpgroup", .weight = slow<4, 7>},
    {.name = "slow second warpgroup", .weight = slow<8, 11>},
    {.name = "one slow warp", .weight = slow<9, 9>},
    {.name = "slow copies", .engines = 0.02},
    {.name = "often interrupted", .interruption = 0.8},
};
inline constexpr unsigned kSeeds = 25;

// How much of a long table to run: FA3_TEST_QUICK=1, nothing or FA3_TEST_FULL=1.
inline unsigned by_effort(unsigned quick, unsigned usual, unsigned full) {
  return std::getenv("FA3_TEST_FULL") ? full : std::getenv("FA3_TEST_QUICK") ? quick : usual;
}

// Calls check(outcome) after a range in each order.
template <class Check>
void in_many_orders(int warps, const std::vector<Buffer>& buffers,
                    const std::function<void()>& program, const Check& check) {
  for (const Pace& pace : kManyPaces) {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
      SCOPED_TRACE(std::string(pace.name) + ", seed " + std::to_string(seed));
      const Setting setting{.seed = seed, .pace = pace, .buffers = buffers};
      check(run_block(setting, warps, 1, program));
      if (testing::Test::HasFailure()) return;
    }
  }
}

// The program must be found out in every order, with one of these complaints; each of them must
// occur.
inline void expect_found(int warps, const std::vector<Buffer>& buffers,
                         const std::function<void()>& program,
                         const std::set<std::string>& complaints) {
  std::set<std::string> found;
  in_many_orders(warps, buffers, program, [&](const Outcome& outcome) {
    const auto complaint =
        std::find_if(complaints.begin(), complaints.end(),
                     [&](const std::string& c) { return outcome.error.starts_with(c); });
    ASSERT_NE(complaint, complaints.end()) << "said: '" << outcome.error << "'";
    found.insert(*complaint);
  });
  EXPECT_EQ(found, complaints);
}
inline void expect_right(int warps, const std::vector<Buffer>& buffers,
                         const std::function<void()>& program) {
  in_many_orders(warps, buffers, program,
                 [](const Outcome& outcome) { EXPECT_EQ(outcome.error, ""); });
}

}  // namespace fa3::machine

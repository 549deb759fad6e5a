// SPDX-License-Identifier: Apache-2.0
// Division by a number that is known at launch.
#include "engine/cuda/tile/divisor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace fa3::cuda {
namespace {

constexpr int kMost = 0x7fffffff;

TEST(Divisor, divides_as_the_language_does) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> any(0, kMost);
  for (int power = 0; power <= 31; ++power) {
    const auto near = int((int64_t{1} << power) - 1);
    for (int value :
         {near - 1, near, near < kMost ? near + 1 : near, any(random) >> (31 - power)}) {
      if (value < 1) continue;
      const Divisor divisor = value;
      EXPECT_EQ(int(divisor), value);
      const int64_t last = int64_t{kMost} / value * value;  // where quotients change
      for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{value} - 1, int64_t{value}, last - 1, last,
                        int64_t{kMost}, int64_t{any(random)}}) {
        const auto number = int(std::max<int64_t>(n, 0));
        EXPECT_EQ(number / divisor, number / value) << number << " / " << value;
        EXPECT_EQ(number % divisor, number % value) << number << " % " << value;
      }
    }
  }
}

TEST(Divisor, may_be_zero_where_nothing_is_divided) {
  EXPECT_EQ(int(Divisor(0)), 0);
}

}  // namespace
}  // namespace fa3::cuda

// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/fp8/transpose_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace fa3::hopper {
namespace {

constexpr TransposeOrder kOrders[] = {
    {.heads = 40, .parts_of_head = 4, .ctas = 132, .first_heads = 33, .late_ctas = 8},
    {.heads = 512, .parts_of_head = 4, .ctas = 132, .first_heads = 33, .late_ctas = 8},
    {.heads = 8, .parts_of_head = 128, .ctas = 132, .first_heads = 2, .late_ctas = 132},
    {.heads = 5, .parts_of_head = 3, .ctas = 2, .first_heads = 1, .late_ctas = 1},
    {.heads = 7, .parts_of_head = 5, .ctas = 3, .first_heads = 0, .late_ctas = 2},
    {.heads = 64, .parts_of_head = 8, .ctas = 132, .first_heads = 64, .late_ctas = 0},
    {.heads = 1, .parts_of_head = 1, .ctas = 1, .first_heads = 1, .late_ctas = 0},
};

TEST(TransposeOrder, gives_every_part_to_one_team_and_late_ones_to_few_ctas) {
  for (const TransposeOrder& order : kOrders) {
    for (const int teams : {3, 4, 6, 12}) {
      std::vector<int> times(size_t(order.parts()));
      for (int cta = 0; cta < order.ctas; ++cta) {
        for (int team = 0; team < teams; ++team) {
          bool late = false;
          for (TeamParts parts(order, cta, team, teams); !parts.done(); parts.advance()) {
            ASSERT_LT(parts.get(), order.parts());
            ++times[size_t(parts.get())];
            if (parts.get() >= order.first_parts()) late = true;
            ASSERT_EQ(parts.get() >= order.first_parts(), late) << "first parts come first";
            ASSERT_TRUE(!late || cta < order.late_ctas);
          }
        }
      }
      for (const int count : times) ASSERT_EQ(count, 1);
    }
  }
}

// So all SMs load from memory at once: what is first needed is there soonest.
TEST(TransposeOrder, spreads_neighbouring_parts_over_the_ctas) {
  const TransposeOrder& order = kOrders[1];
  for (int cta = 0; cta < order.ctas; ++cta) {
    EXPECT_EQ(TeamParts(order, cta, 0, 6).get(), cta);
  }
}

}  // namespace
}  // namespace fa3::hopper

// SPDX-License-Identifier: Apache-2.0
// Who holds which element of an accumulator, and that packing makes it the next product's operand.
#include "engine/hopper/forward_config.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace fa3::hopper::tile {
namespace {

constexpr int kColumns = 128;
constexpr int kElements = kColumns / 2;  // a thread

std::pair<int, int> place(int thread, int element) {
  return {fragment_row(thread) + fragment_row_slot(element) * kRowDistance,
          fragment_column(element) + fragment_lane_column(thread)};
}

TEST(Fragment, each_element_of_the_accumulator_is_held_once) {
  std::set<std::pair<int, int>> held;
  for (int thread = 0; thread < kWarpgroupSize; ++thread) {
    for (int element = 0; element < kElements; ++element) {
      const auto [row, column] = place(thread, element);
      EXPECT_LT(row, kRowsPerWarpgroup);
      EXPECT_LT(column, kColumns);
      held.insert({row, column});
    }
  }
  EXPECT_EQ(held.size(), size_t(kRowsPerWarpgroup) * kColumns);
}

TEST(Fragment, lanes_of_a_quad_and_only_they_share_rows) {
  for (int thread = 0; thread < kWarpgroupSize; ++thread) {
    for (int other = 0; other < kWarpgroupSize; ++other) {
      EXPECT_EQ(thread / kQuadLanes == other / kQuadLanes,
                fragment_row(thread) == fragment_row(other));
    }
  }
}

// PTX ISA, wgmma with A in registers, 16-bit elements: of the k-step's 16 columns a lane holds, in
// register r, row lane / 4 + 8 * (r % 2) and columns 2 * (lane % 4) + 8 * (r / 2) + {0, 1}.
TEST(Fragment, packed_pairs_are_the_operand_of_the_next_product) {
  for (int thread = 0; thread < kWarpgroupSize; ++thread) {
    const int warp = thread / kWarpSize, lane = thread % kWarpSize;
    for (int step = 0; step < kColumns / 16; ++step) {
      for (int reg = 0; reg < 4; ++reg) {
        for (int half = 0; half < 2; ++half) {
          const int element = 2 * (4 * step + reg) + half;
          const int row = 16 * warp + lane / 4 + 8 * (reg % 2);
          const int column = 16 * step + 2 * (lane % 4) + 8 * (reg / 2) + half;
          ASSERT_EQ(place(thread, element), std::pair(row, column));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fa3::hopper::tile
